"""How far a training is, posted to a server as Kubeflow Trainer's; the real one: cluster/test_training.py."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from processes import until

import ddpipe
from ddpipe.processes.trainjob_status import TrainJobStatus, trainjob_status


class Server(ThreadingHTTPServer):
    """Keeps what is posted, and answers once it may."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.may_answer = Event()
        self.may_answer.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/trainjobs/a/status"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posted.append((str(self.headers["Authorization"]), body["trainerStatus"]))
        self.server.may_answer.wait()
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A controller, and the environment that it gives to pods."""
    (tmp_path / "token").write_text("first\n")
    with Server() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", server.url)
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(tmp_path / "token"))
        trainjob_status.cache_clear()
        yield server
        server.may_answer.set()
        server.shutdown()
    trainjob_status.cache_clear()


def test_a_report_of_any_script_reaches_the_job(server: Server) -> None:
    ddpipe.report(step=10, of=10, loss=0.25)  # the last one is waited for
    ((token, status),) = server.posted
    assert token == "Bearer first"  # noqa: S105 - the test's own
    assert status["progressPercentage"] == 100
    assert {"name": "loss", "value": "0.25"} in status["metrics"]
    assert status["lastUpdatedTime"].endswith("Z")


def test_only_the_newest_of_many_reports_is_posted_with_the_token_of_now(
    server: Server, tmp_path: Path
) -> None:
    server.may_answer.clear()
    status = TrainJobStatus(server.url, pause=0)
    status.put(1.0, None, {})
    until(lambda: bool(server.posted))
    (tmp_path / "token").write_text("second")
    for number in range(1000):  # nobody waits for a controller that does not answer
        status.put(number / 10, 7.4, {})
    server.may_answer.set()
    status.post()
    assert [(token, one["progressPercentage"]) for token, one in server.posted] == [
        ("Bearer first", 1),
        ("Bearer second", 99),
    ]
    assert server.posted[-1][1]["estimatedRemainingSeconds"] == 7


def test_a_controller_that_is_away_is_reported_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    status = TrainJobStatus("http://127.0.0.1:9/away", pause=0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            status.put(1.0, None, {})
            status.post()
    assert len(caplog.records) == 1
    assert "the status of the TrainJob is not updated" in caplog.text
    assert "training continues" in caplog.text
