"""One message at the end of a run: its body, what a busy or absent server changes, and who sends it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner
from launch_samples import PODS, a_server

from ddpipe.__main__ import cli
from ddpipe.commands import jobs
from ddpipe.launching import ownership
from ddpipe.processes import notices
from ddpipe.processes.notices import body_for, notify

WORKFLOW, NODE = "workflows.argoproj.io/workflow", "workflows.argoproj.io/node-name"


class Chat:
    """A server that answers with the next of some codes, and keeps what it accepted."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.accepted: list[dict[str, Any]] = []
        self.requests = 0
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                chat.requests += 1
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code = chat.codes.pop(0) if chat.codes else 200
                if code == 200:
                    chat.accepted.append(body)
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.send_header("Retry-After", "86400")  # no step waits for that
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook/very-secret"


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    monkeypatch.setattr(notices, "_PAUSE", 0.01)
    chat = Chat()
    thread = Thread(target=chat.server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("DDPIPE_NOTIFY_URL", chat.url)
    yield chat
    chat.server.shutdown()
    chat.server.server_close()
    thread.join()


def test_slack_and_teams_get_what_they_accept() -> None:
    slack = body_for("https://hooks.slack.com/services/T/B/x", "failed", "<!channel> & why")
    assert slack == {"text": "*failed*\n&lt;!channel&gt; &amp; why"}
    teams = body_for("https://prod.westeurope.logic.azure.com/workflows/x", "failed", "what\nwhy")
    (card,) = teams["attachments"]
    assert card["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert [line["text"] for line in card["content"]["body"]] == ["failed", "what\n\nwhy"]
    assert len(json.dumps(body_for("https://a.office.com/x", "t", "x" * 100_000))) < 4000


def test_a_busy_server_gets_the_message_once(chat: Chat) -> None:
    chat.codes = [503, 429]
    notify("failed", "why", succeeded=False)
    assert chat.accepted == [{"text": "*failed*\nwhy"}]


@pytest.mark.parametrize("codes", [[503] * 9, [404], [302]])
def test_a_message_that_is_not_accepted_is_one_warning(
    chat: Chat, codes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    chat.codes = codes
    with caplog.at_level(logging.WARNING):
        notify("failed", "why", succeeded=False)
    assert chat.requests <= 4
    (warning,) = (record.getMessage() for record in caplog.records if record.name.startswith("ddpipe"))
    assert "secret" not in warning


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "nothing", "http://[", "ftp://a/b"])
def test_an_absent_server_or_a_wrong_url_is_no_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_PAUSE", 0.01)
    monkeypatch.setenv("DDPIPE_NOTIFY_URL", url)
    notify("failed", "why", succeeded=False)


def test_success_is_sent_where_it_is_wanted(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    notify("succeeded", "", succeeded=True)
    assert chat.requests == 0
    monkeypatch.setenv("DDPIPE_NOTIFY_SUCCESS_URL", chat.url)
    notify("succeeded", "runs/first/report.html", succeeded=True)
    assert chat.accepted == [{"text": "*succeeded*\nruns/first/report.html"}]


def test_a_run_that_fails_sends_its_cause_once(chat: Chat, tmp_path: Any) -> None:
    place = ("--runs", str(tmp_path / "runs"), "--store", str(tmp_path / "store"), "--run", "first")
    ended = CliRunner().invoke(
        cli, ["run", *place, "--source", "folder", "--source-path", str(tmp_path / "no")]
    )
    (message,) = chat.accepted
    assert message["text"] == f"*ddpipe run failed*\n{ended.stderr.strip()}"


def pod(step: str, phase: str, created: int, message: str = "") -> dict[str, Any]:
    metadata = {
        "name": f"w-{step}-{created}".replace("(", "-").replace(")", ""),
        "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
        "labels": {WORKFLOW: "w"},
        "annotations": {NODE: f"w.root.{step}"},
    }
    end = {"terminated": {"exitCode": 31, "reason": "Error", "message": message}}
    statuses = [{"name": "main", "state": end}] if phase == "Failed" else []
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": statuses}}


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        (
            [pod("prepare", "Succeeded", 1), pod("train.executor", "Failed", 2, "the job failed")],
            "*digits: run r1 failed*\ntrain: the job failed\n\nSee: ddpipe runs show r1",
        ),
        (
            [pod("train(0)", "Failed", 1, "its node is gone"), pod("train(1)", "Failed", 2)],
            "*digits: run r1 failed*\ntrain: exit code 31 (Error)\n\nSee: ddpipe runs show r1",
        ),
        ([pod("train(0)", "Failed", 1, "its node is gone"), pod("train(1)", "Succeeded", 2)], None),
    ],
)
def test_the_last_step_of_a_pipeline_sends_how_the_run_has_ended(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, pods: list[dict[str, Any]], text: str | None
) -> None:
    server = a_server()
    for one in [*pods, pod("clean-up", "Running", 9)]:
        server.put(PODS, one)
    monkeypatch.setattr(jobs, "connect", lambda: server)
    monkeypatch.setattr(ownership, "own_pod_path", lambda: f"{PODS}/w-clean-up-9")
    command = ["jobs", "clean-up", "--run-id", "r1", "--pipeline", "digits"]
    assert CliRunner().invoke(cli, command, catch_exceptions=False).exit_code == 0
    assert [message["text"] for message in chat.accepted] == ([text] if text else [])
