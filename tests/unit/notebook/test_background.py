"""What the launcher of a handle records at its end; the job's own launch is replaced."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from fake_api import FakeApiServer
from launch_samples import a_server
from notebook_launches import KEY_OF_LAUNCH, a_launch

from ddpipe.errors import Interrupted, NameTaken, ReplicaFailed
from ddpipe.jobs.job import TrainingJob
from ddpipe.notebook import background
from ddpipe.notebook.folder import publish
from ddpipe.notebook.machine import Machine, Secrets
from ddpipe.storage import Store

FAILED = ReplicaFailed(what="the job failed", which="rank 1", seen="exit code 3", do="look")
STOPPED = Interrupted(what="stopped", which="one", seen="SIGTERM", do="launch again")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeApiServer:
    server = a_server()
    monkeypatch.setattr(background, "connect", lambda: server)
    return server


def outcome(
    folder: Store, monkeypatch: pytest.MonkeyPatch, end: Any, *mode: str, seen: list[Any] | None = None
) -> dict[str, Any] | None:
    """What is recorded when the launch of the job ends like this: with numbers, or an error."""

    def launch(job: TrainingJob, *_: object, **options: Any) -> SimpleNamespace:
        if seen is not None:
            seen.extend([job, options])
        if isinstance(end, Exception):
            raise end
        return SimpleNamespace(metrics=end)

    monkeypatch.setattr(background, "launch", launch)
    monkeypatch.setattr("sys.argv", ["background", folder.uri, *mode])
    background.main()
    return json.loads(folder.read("outcome.json")) if folder.exists("outcome.json") else None


def returned(folder: Store, ranks: int = 1) -> None:
    publish(folder, KEY_OF_LAUNCH, "5" * 64, b"", {}, ranks)
    folder.write("ranks/0", b"")


@pytest.mark.usefixtures("cluster")
def test_success_is_recorded_with_the_job_s_numbers(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    a_launch(folder, private=("env",))
    Machine(folder.uri).keep(Secrets(KEY_OF_LAUNCH, {"env": {"TOKEN": "1"}}))
    returned(folder)
    seen: list[Any] = []
    found = outcome(folder, monkeypatch, {"loss": 0.5}, seen=seen)
    assert found
    assert found["seconds"] >= 0
    assert found == {
        "phase": "succeeded",
        "error": None,
        "metrics": {"loss": 0.5},
        "seconds": found["seconds"],
    }
    job, options = seen
    assert job.namespace == "team"
    assert (dict(job.env), dict(job.hidden)) == ({"TOKEN": "1"}, {"DDPIPE_RESULT_KEY": KEY_OF_LAUNCH})
    assert (options["is_process"], options["begin"]) == (True, background.adopt_or_create)
    assert Machine(folder.uri).secrets() == Secrets(KEY_OF_LAUNCH), (
        "the job has ended: only its key is needed"
    )


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("error", "phase"), [(FAILED, "failed"), (STOPPED, "stopped")])
def test_an_error_is_recorded(
    error: Exception, phase: str, folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_launch(folder)
    found = outcome(folder, monkeypatch, error)
    assert found
    assert (found["phase"], found["metrics"]) == (phase, {})
    assert found["error"]["seen"] == error.seen  # type: ignore[attr-defined]


@pytest.mark.usefixtures("cluster")
def test_its_log_has_the_bare_messages(
    folder: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A notebook shows them as they are."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    a_launch(folder)
    returned(folder)
    outcome(folder, monkeypatch, {})
    capsys.readouterr()
    logging.getLogger("ddpipe").info("[launch] a line")
    assert capsys.readouterr().err == "[launch] a line\n"


@pytest.mark.usefixtures("cluster")
def test_only_the_first_launcher_records_that_it_could_not_follow(
    folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_launch(folder)
    taken = NameTaken(what="no", which="job", seen="it is a stranger's", do="rename")
    assert outcome(folder, monkeypatch, taken, "adopt") is None
    failed = outcome(folder, monkeypatch, taken)
    assert failed
    assert failed["phase"] == "failed"


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("ranks", "missing"), [(0, "rank 0"), (2, "rank 1 of 2")])
def test_a_rank_that_did_not_return_is_a_failure(
    ranks: int, missing: str, folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_launch(folder)
    if ranks:
        returned(folder, ranks)
    found = outcome(folder, monkeypatch, {})
    assert found
    assert (found["phase"], found["error"]["which"]) == ("failed", missing)


@pytest.mark.usefixtures("cluster")
def test_a_job_that_may_be_created_again_needs_its_private_options(
    folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"image": "mine", "backend": "pytorchjob", "nodes": 2, "min_nodes": 1, "max_restarts": 1}
    a_launch(folder, private=("env",), options=options)
    assert outcome(folder, monkeypatch, {}, "adopt") is None
    Machine(folder.uri).keep(Secrets(KEY_OF_LAUNCH, {"env": {"TOKEN": "1"}}))
    returned(folder)
    found = outcome(folder, monkeypatch, {}, "adopt")
    assert found
    assert found["phase"] == "succeeded"


def test_a_local_launch_has_a_rank_for_each_process(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    a_launch(folder, backend="local", options={})
    calls: list[tuple[Any, ...]] = []
    monkeypatch.delenv("DDPIPE_RESULT_KEY", raising=False)

    def run_local(*given: Any) -> None:
        calls.append(given)
        returned(folder)

    monkeypatch.setattr(background, "run_local", run_local)
    monkeypatch.setattr("sys.argv", ["background", folder.uri])
    background.main()
    assert calls == [("ddpipe.notebook.call", [folder.uri, "5" * 64], 1)]
    assert json.loads(folder.read("outcome.json"))["phase"] == "succeeded"
