"""A server that answers 200 with anything: every command ends in time, with an error of ours."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_commands import ddpipe, refusal
from odd_server import answering

from ddpipe.engine import client, runs
from ddpipe.engine.answers import RUN as SHAPE
from ddpipe.engine.answers import NotAsDescribed, fitted
from ddpipe.engine.client import connect
from ddpipe.engine.endpoint import Endpoint
from ddpipe.errors import (
    DdpipeError,
    EngineError,
    EngineForbidden,
    EngineUnreachable,
    LoginRequired,
    NotAnEngine,
    ParameterError,
)
from ddpipe.kube import api

COMMANDS = (
    ("submit", "custom-job"),
    ("runs", "ls"),
    ("runs", "show", "7", "--wait"),
    ("runs", "logs", "7"),
    ("runs", "stop", "7"),
    ("schedule", "ls"),
    ("schedule", "rm", "nightly"),
)

RUN = {"run_id": "7", "display_name": "one", "state": "FAILED"}


def healthy(body: bytes | dict[str, Any]) -> Callable[[str], bytes]:
    """A server whose health is right, so that the garbage comes later."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda path: b'{"multi_user": false}' if "healthz" in path else content


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs, "_PAUSE", 0)
    monkeypatch.setattr(runs, "_OUTAGE", 0)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "body", [b"[]", b"", b"7", b'"text"', b"null", b"\xff\xfe\x00", b"{", b"[" * 100_000]
)
def test_garbage_is_not_kubeflow_pipelines(body: bytes) -> None:
    """As the very first answer, and as every later one."""
    for answer in (lambda _: body, healthy(body)):
        with answering(answer) as url:
            for command in COMMANDS:
                result = ddpipe(*command, "--endpoint", url)
                assert result.exit_code >= EngineError.exit_code, (command, result.output)
                assert result.exception is None or isinstance(result.exception, SystemExit), result.exception


@pytest.mark.parametrize(
    "body",
    [
        {"runs": "text", "recurringRuns": "text", "pipelines": "text"},
        {"runs": [7], "recurringRuns": [7], "pipelines": [7], "run_id": [], "display_name": {}},
        {"runs": [{}], "recurringRuns": [{}], "pipelines": [{}]},
        {"runs": [RUN | {"created_at": "yesterday"}], **RUN, "created_at": "2026-11-23T10:00:00"},
        {"runs": [RUN | {"state": 7}], **RUN, "run_details": {"task_details": [None, 7]}},
        {**RUN, "pipeline_spec": [7]},
        {**RUN, "pipeline_spec": {"root": {"dag": {"tasks": {"a": 7}}}}},
        {**RUN, "recurring_run_id": "7", "trigger": {"cron_schedule": "x"}, "experiment_id": ["x"]},
    ],
)
def test_wrong_types_are_no_tracebacks(body: dict[str, Any]) -> None:
    with answering(healthy(body)) as url:
        for command in COMMANDS:
            result = ddpipe(*command, "--endpoint", url)
            assert result.exception is None or isinstance(result.exception, SystemExit), (
                command,
                result.exception,
            )


def test_charset_of_a_header_is_not_believed() -> None:
    with answering(healthy({"runs": [RUN]}), "application/json; charset=klingon") as url:
        assert ddpipe("runs", "ls", "--endpoint", url).exit_code == 0


def test_truncated_answer_is_an_error() -> None:
    with answering(healthy({"runs": [RUN]}), missing=7) as url:
        refusal(EngineUnreachable, "runs", "ls", "--endpoint", url)


def test_one_byte_now_and_then_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.5)
    with answering(healthy({"runs": [RUN] * 100}), pause=0.1) as url:
        assert "not complete" in refusal(EngineUnreachable, "runs", "ls", "--endpoint", url)["seen"]


def test_too_long_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 10_000)
    with answering(healthy({"runs": [RUN] * 1000})) as url:
        assert "longer than" in refusal(EngineUnreachable, "runs", "ls", "--endpoint", url)["seen"]


@pytest.mark.parametrize("tokens", [itertools.repeat("same"), map(str, itertools.count())])
def test_endless_pages_end(tokens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MOST_PAGES", 20)

    def page(path: str) -> bytes:
        return b"{}" if "healthz" in path else json.dumps({"next_page_token": next(tokens)}).encode()

    with answering(page) as url:
        assert "do not end" in refusal(NotAnEngine, "runs", "ls", "--endpoint", url)["seen"]


def test_end_of_a_log_needs_no_memory_for_its_beginning() -> None:
    log = b"\n".join(b"line %d" % number for number in range(3_000_000))
    with answering(lambda path: log if "log" in path else b"{}", "text/plain") as url:
        server = connect(Endpoint(url=url))
        tracemalloc.start()
        text = server.client.text("/log", {}, 2**16)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert text.endswith("line 2999999")
    assert len(text) == 2**16
    assert most < 8 * 2**20 < len(log)


@pytest.mark.parametrize("url", ["http://[::1", "http://host:port", "http://a b", "http://", "http://x\n.y"])
def test_address_that_is_no_url_is_rejected(url: str) -> None:
    refusal(ParameterError, "runs", "ls", "--endpoint", url)
    result = ddpipe("doctor", "--endpoint", url)
    assert result.stdout.startswith("endpoint  fail")


@pytest.mark.parametrize("name", ["KFP_TOKEN", "KFP_COOKIES"])
@pytest.mark.parametrize("value", ["secret\nsecond", "sécret", "secret\x7f"])
def test_token_that_no_header_can_have_is_rejected_unseen(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    parts = refusal(ParameterError, "runs", "ls", "--endpoint", "http://127.0.0.1:1")
    assert parts["which"] == name
    assert "cret" not in json.dumps(parts)
    assert "fail" in ddpipe("doctor", "--endpoint", "http://127.0.0.1:1").stdout


@pytest.mark.parametrize("option", ["--token-file", "--cookies-file"])
def test_binary_token_file_is_rejected(option: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff\x00\xfe")
    refusal(ParameterError, "runs", "ls", "--endpoint", "http://127.0.0.1:1", option, str(tmp_path / "file"))


@pytest.mark.parametrize("content", [b"[]", b"\xff\xfe\x00", b"7", b"a: [", b"{}", b"contexts: 7"])
def test_kubeconfig_of_another_kind_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(content)
    with pytest.raises(DdpipeError, match="config"):
        api.connect(str(tmp_path / "config"))


def test_kubeconfig_with_broken_base64_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in `doctor`, where a missing kubeconfig is no failure."""
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": "a"}}
    user = {"name": "u", "user": {"token": "x"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config = {"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "x"}
    (tmp_path / "config").write_text(json.dumps(config))
    with pytest.raises(DdpipeError, match="kubeconfig"):
        api.connect(str(tmp_path / "config"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with answering(healthy({"experiments": []})) as url:
        result = ddpipe("doctor", "--endpoint", url)
    assert ["secret", "fail"] in [line.split()[:2] for line in result.stdout.splitlines()]


def test_unknown_fields_and_states_are_accepted() -> None:
    assert fitted({"runs": [RUN | {"state": "NEWER", "more": 7}]}, {"runs": [SHAPE]}).runs[0].state == "NEWER"
    with pytest.raises(NotAsDescribed, match=r"runs\[0\] has no display_name"):
        fitted({"runs": [{"run_id": "7"}]}, {"runs": [SHAPE]})


@pytest.mark.parametrize(
    ("status", "body", "kind", "seen"),
    [
        (403, b"RBAC: access denied", LoginRequired, "HTTP 403: RBAC: access denied"),
        (
            403,
            b'{"error": "User is not authorized", "details": [7]}',
            EngineForbidden,
            "User is not authorized",
        ),
        (401, b"", LoginRequired, "HTTP 401"),
        (500, b"[]", EngineUnreachable, "HTTP 500: []"),
    ],
)
def test_refusal_has_its_own_status_and_the_host(
    status: int, body: bytes, kind: type[EngineError], seen: str
) -> None:
    with answering(lambda _: body, status=status) as url:
        parts = refusal(kind, "runs", "ls", "--endpoint", url)
    assert parts["seen"] == seen
    assert parts["which"] == f"GET {url}/apis/v2beta1/healthz"


def test_odd_answer_is_reported_with_the_host() -> None:
    with answering(healthy({"runs": "text"})) as url:
        parts = refusal(NotAnEngine, "runs", "ls", "--endpoint", url)
    assert parts["which"] == f"GET {url}/apis/v2beta1/runs"
    assert "runs is str, not list" in parts["seen"]
