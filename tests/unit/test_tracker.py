"""What a run sends to MLflow, and that no tracker slows or fails it; with a real server in test_mlflow.py."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_api import FakeApiServer
from launch_samples import PODS, a_job
from processes import PATIENCE, until

from ddpipe import tracker
from ddpipe.jobs.pods import template
from ddpipe.kube.api import Refused
from ddpipe.launching.ownership import tracker_variables
from ddpipe.tracker import tracked


class FakeMlflow:
    """Counts runs; every call fails while it is down."""

    def __init__(self) -> None:
        self.made, self.taken = 0, list[object]()
        self.down, self.stuck = False, threading.Event()
        self.stuck.set()

    def create_run(self, _experiment: str, run_name: str) -> Any:
        self._answer()
        self.made += 1
        return SimpleNamespace(info=SimpleNamespace(run_id=f"{run_name}-{self.made}"))

    def set_tag(self, *_: str) -> None:
        self._answer()

    def take(self, item: object) -> None:
        self._answer()
        self.taken.append(item)

    def _answer(self) -> None:
        assert self.stuck.wait(PATIENCE)
        if self.down:
            raise ConnectionError("refused")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    made = FakeMlflow()
    monkeypatch.setattr(tracker, "_client", lambda: made)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker")
    return made


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(tmp_path / "runs" / "a")


def known(run: str) -> str:
    return str(json.loads(Path(run, "mlflow.json").read_text())["run_id"])


def test_a_run_has_one_mlflow_run_in_all_its_processes(server: FakeMlflow, run: str) -> None:
    for number in range(2):
        with tracked(run) as one:
            one.put(lambda client, given, number=number: client.take((given, number)))
    assert server.taken == [("a-1", 0), ("a-1", 1)]
    assert known(run) == "a-1"


def test_the_run_of_the_engine_is_continued(
    server: FakeMlflow, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "of-the-engine")
    with tracked(run) as one:
        one.status("RUNNING")  # the engine says that
        one.put(lambda client, given: client.take(given))
    assert (server.taken, server.made, known(run)) == (["of-the-engine"], 0, "of-the-engine")


def test_nothing_is_sent_without_an_address(
    server: FakeMlflow, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with tracked(run) as one:
        one.put(lambda client, given: client.take(given))
    assert not server.taken
    assert not Path(run).exists()


def test_a_tracker_that_is_away_costs_one_warning_and_gets_the_rest_later(
    server: FakeMlflow, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.down = True
    failed, done = threading.Event(), threading.Event()
    with tracked(run) as one:
        for number in range(3):
            one.put(lambda client, _run, number=number: client.take(number))
        one.put(lambda _client, _run: failed.set())
        until(one._queue.empty)
        server.down = False
        one.put(lambda client, _run: client.take("again"))
        one.put(lambda _client, _run: done.set())
        assert done.wait(PATIENCE)
        assert failed.is_set()
    assert sorted(map(str, server.taken)) == ["0", "1", "2", "again"]
    assert caplog.text.count("MLflow may lack a part of this run: ConnectionError: refused") == 1


def test_a_tracker_that_hangs_delays_nothing(
    server: FakeMlflow, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.stuck.clear()
    with tracked(run, seconds=0.1) as one:
        for _ in range(1000):  # more than the queue has room for
            one.put(lambda client, given: client.take(given))
    assert not server.taken
    assert caplog.text.count("MLflow") == 1
    server.stuck.set()


def test_pods_get_the_run_and_of_credentials_the_name_of_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    key = {"name": "MLFLOW_TRACKING_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}
    cluster = FakeApiServer()
    cluster.know(PODS, {"metadata": {"name": "step"}, "spec": {"containers": [{}, {"env": [key]}]}})
    assert tracker_variables(cluster) == []
    given = {"TRACKING_URI": "http://t", "RUN_ID": "r", "TRACKING_TOKEN": "secret", "TRACKING_PASSWORD": "p"}
    for name, value in given.items():
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    monkeypatch.setenv("POD_NAME", "step")
    monkeypatch.setenv("POD_NAMESPACE", "team")
    found = tracker_variables(cluster)
    assert [one["name"] for one in found] == ["MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_TRACKING_TOKEN"]
    assert found[2] == key
    env = template(a_job(unhashed=found), "pytorch")["spec"]["containers"][0]["env"]
    assert [one for one in env if one["name"].startswith("MLFLOW_")] == found
    cluster.fail(lambda _: True, Refused(500, "", "away"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:password@t")
    assert tracker_variables(cluster) == [{"name": "MLFLOW_RUN_ID", "value": "r"}]
