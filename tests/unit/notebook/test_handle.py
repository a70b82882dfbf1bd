"""A launch and its handle, without running anything: records, secrets, outcomes, refusals."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApiServer
from launch_samples import a_server, an_object
from notebook_launches import KEY_OF_LAUNCH, a_launch

import ddpipe
from ddpipe.errors import ClusterUnreachable, CorruptObject, Forbidden, ParameterError
from ddpipe.jobs.pytorchjob import RESOURCE
from ddpipe.kube.api import Refused
from ddpipe.notebook import background, handle
from ddpipe.notebook.folder import KEY, Launch, publish, verified
from ddpipe.notebook.handle import Handle
from ddpipe.notebook.machine import Machine
from ddpipe.storage import Store, open_store

SECRET = "s3cr3t-value"  # noqa: S105


def work() -> int:
    return 1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeApiServer:
    server = a_server()
    monkeypatch.setattr(background, "connect", lambda: server)
    monkeypatch.setattr(handle, "connect", lambda: server)
    return server


def adopted(folder: Store, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any] | None:
    """What a second launcher, started by attach, records."""
    monkeypatch.setattr("sys.argv", ["background", folder.uri, "adopt"])
    background.main()
    return json.loads(folder.read("outcome.json")) if folder.exists("outcome.json") else None


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"backend": "local", "image": "mine"}, "image is for the pods of a job"),
        ({"backend": "local", "env": {"A": "b"}}, "env is for the pods of a job"),
        ({"backend": "local", "nodes": 0}, "`nodes` is 0, not a whole number from 1 to"),
        ({"image": ""}, "`image` is empty"),
        ({"image": "mine", "backend": "steam"}, "`backend` is 'steam'"),
        ({"backend": "local", "name": "../up"}, "name"),
    ],
)
def test_wrong_options_are_rejected_before_anything_is_written(
    given: dict[str, Any], seen: str, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match=seen):
        ddpipe.launch(work, runs=str(tmp_path), **given)
    assert not list(tmp_path.iterdir())


def test_rejected_env_is_not_printed(tmp_path: Path) -> None:
    with pytest.raises(ParameterError) as rejected:
        ddpipe.launch(work, runs=str(tmp_path), image="mine", env={"TOKEN": SECRET, "N": 1})  # type: ignore[dict-item]
    assert "env" in str(rejected.value)
    assert SECRET not in str(rejected.value)


def test_secrets_stay_on_the_machine_of_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "start", lambda *_: None)  # what runs is not the subject
    launched = ddpipe.launch(work, runs=str(tmp_path), name="one", image="mine", env={"TOKEN": SECRET})
    for path in (tmp_path / "one").rglob("*"):
        assert SECRET not in path.read_text(errors="replace"), path
        assert launched.key not in path.read_text(errors="replace"), path
    kept = next((Path(os.environ["DDPIPE_CACHE"]) / "launches").rglob("secrets"))
    assert kept.stat().st_mode & 0o077 == 0
    known = Machine(launched.uri).secrets()
    job = Launch.read(open_store(launched.uri)).job(launched.uri, "team", known.options, known.key)
    assert (dict(job.env), dict(job.hidden)) == ({"TOKEN": SECRET}, {KEY: launched.key})


def test_launch_of_a_taken_name_is_rejected(tmp_path: Path, folder: Store) -> None:
    a_launch(folder)
    with pytest.raises(ParameterError, match="a launch of this name exists"):
        ddpipe.launch(work, runs=str(tmp_path), name="one", image="mine")


def test_attach_without_a_launch_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="nothing was launched under this name"):
        ddpipe.attach("never", str(tmp_path))


def test_a_record_is_read_as_it_was_written(folder: Store) -> None:
    launched = a_launch(folder, private=("env",))
    assert Launch.read(folder) == launched


def test_a_record_with_the_options_of_0_1_0_gives_the_same_job(folder: Store) -> None:
    """It holds all of them, also those that are gone; one of these that had an effect is not ignored."""
    launched = a_launch(folder)
    former = {"spread": "", "host_network": False, "outage": 600.0, "extended_resources": {}}
    before = replace(launched, options={**launched.options, **former})
    job = launched.job("s3://runs/one", "team", {}, "key")
    assert before.job("s3://runs/one", "team", {}, "key") == job
    with pytest.raises(ParameterError, match="spread"):
        replace(launched, options={"spread": "zone"}).job("s3://runs/one", "team", {}, "key")


@pytest.mark.parametrize("record", ["[]", "{", '{"name": 1}'])
def test_damaged_record_is_an_error(folder: Store, tmp_path: Path, record: str) -> None:
    folder.write("launch.json", record.encode())
    with pytest.raises(CorruptObject, match="record"):
        ddpipe.attach("one", str(tmp_path))


@pytest.mark.parametrize("outcome", ["[]", "{", "{}", '{"error": {"error": "listed"}}'])
def test_damaged_outcome_is_an_error(folder: Store, tmp_path: Path, outcome: str) -> None:
    a_launch(folder)
    folder.write("outcome.json", outcome.encode())
    with pytest.raises(CorruptObject, match="outcome"):
        ddpipe.attach("one", str(tmp_path))


def test_attach_after_the_job_expired_finds_its_success(
    folder: Store, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = a_launch(folder)
    publish(folder, KEY_OF_LAUNCH, launched.sha256, b"", {}, 1)
    folder.write("ranks/0", b"")
    outcome = adopted(folder, monkeypatch)
    assert outcome
    assert (outcome["phase"], outcome["error"]) == ("succeeded", None)


def test_attach_records_nothing_without_a_job(
    folder: Store, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher on another machine may be about to create it."""
    a_launch(folder)
    assert adopted(folder, monkeypatch) is None


def test_attach_records_nothing_where_it_may_not_look(
    folder: Store, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_launch(folder)
    cluster.fail(lambda request: "/pytorchjobs" in request.path, Refused(403, "Forbidden", "no"))
    assert adopted(folder, monkeypatch) is None


def test_attach_records_nothing_without_a_cluster(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job may run on: this machine does not reach it."""
    a_launch(folder)

    def unreachable() -> FakeApiServer:
        raise ClusterUnreachable(what="no", which="cluster", seen="nothing", do="wait")

    monkeypatch.setattr(background, "connect", unreachable)
    assert adopted(folder, monkeypatch) is None


def test_launcher_records_the_namespace_of_its_account(
    folder: Store, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine has another default namespace, and would look for the job there."""
    a_launch(folder, namespace="", options={"image": "mine", "backend": "pytorchjob", "patch": {}})
    cluster.allowed = lambda _: False  # it ends in preflight
    monkeypatch.setattr("sys.argv", ["background", folder.uri])
    background.main()
    assert Launch.read(folder).namespace == cluster.namespace


def stopping(folder: Store) -> Handle:
    launched = a_launch(folder)
    return Handle(launched, folder, Machine(folder.uri))


def test_stop_deletes_the_job_of_a_lost_launch(folder: Store, cluster: FakeApiServer) -> None:
    stopped = stopping(folder)
    job = Launch.read(folder).job(folder.uri, "team", {}, KEY_OF_LAUNCH)
    path = RESOURCE.path("team", job.name)
    cluster.put(RESOURCE.path("team"), an_object(job, "Running"))
    assert stopped.stop().phase == "stopped"
    assert path not in cluster._objects


def test_stop_is_an_error_if_the_job_cannot_be_deleted(folder: Store, cluster: FakeApiServer) -> None:
    stopped = stopping(folder)
    job = Launch.read(folder).job(folder.uri, "team", {}, KEY_OF_LAUNCH)
    cluster.put(RESOURCE.path("team"), an_object(job, "Running"))
    refusal = Refused(403, "Forbidden", 'pytorchjobs is forbidden: User "kim" cannot delete')
    cluster.fail(lambda request: request.method == "DELETE", refusal)
    with pytest.raises(Forbidden, match="cannot delete"):
        stopped.stop()
    assert not folder.exists("outcome.json")


def test_output_outside_the_folder_is_rejected(folder: Store, tmp_path: Path) -> None:
    launched = a_launch(folder)
    publish(folder, KEY_OF_LAUNCH, launched.sha256, b"", {"../../escaped": "0"}, 1)
    with pytest.raises(ParameterError, match="leads out"):
        Handle(launched, folder, Machine(folder.uri)).outputs(tmp_path / "mine")


def test_replaced_output_is_rejected(folder: Store, tmp_path: Path) -> None:
    launched = a_launch(folder)
    folder.write("outputs/model", b"another")
    publish(folder, KEY_OF_LAUNCH, launched.sha256, b"", {"model": "0" * 64}, 1)
    with pytest.raises(CorruptObject, match="hash"):
        Handle(launched, folder, Machine(folder.uri)).outputs(tmp_path / "mine")
    assert not list((tmp_path / "mine").iterdir())


def test_replaced_value_is_rejected(folder: Store) -> None:
    """Opening it would run code of anyone who may write to the bucket."""
    publish(folder, KEY_OF_LAUNCH, "5" * 64, b"ours", {}, 1)
    assert verified(folder, KEY_OF_LAUNCH, "5" * 64).packed_value() == b"ours"
    folder.write("value", b"theirs")
    with pytest.raises(CorruptObject, match="hash"):
        verified(folder, KEY_OF_LAUNCH, "5" * 64).packed_value()


def test_seal_of_another_key_is_rejected(folder: Store) -> None:
    publish(folder, "cd" * 32, "5" * 64, b"theirs", {}, 1)
    with pytest.raises(CorruptObject, match="not made with the key"):
        verified(folder, KEY_OF_LAUNCH, "5" * 64)


def test_result_is_not_opened_without_its_key(folder: Store) -> None:
    publish(folder, KEY_OF_LAUNCH, "5" * 64, b"", {}, 1)
    with pytest.raises(ParameterError, match="key"):
        verified(folder, "", "5" * 64)


def test_result_of_another_call_is_rejected(folder: Store) -> None:
    publish(folder, KEY_OF_LAUNCH, "4" * 64, b"", {}, 1)
    with pytest.raises(CorruptObject, match="another call"):
        verified(folder, KEY_OF_LAUNCH, "5" * 64)


@pytest.mark.parametrize("facts", [{}, {"hmac": 1}, {"sealed": [], "hmac": "ü"}])
def test_damaged_seal_is_rejected(folder: Store, facts: dict[str, Any]) -> None:
    folder.write("result.json", json.dumps({"schema": 2, "facts": facts, "sha256": {}}).encode())
    with pytest.raises(CorruptObject):
        verified(folder, KEY_OF_LAUNCH, "5" * 64)


def test_key_of_another_form_is_rejected(
    folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_launch(folder, backend="local", options={})
    monkeypatch.setenv("DDPIPE_CACHE", str(tmp_path / "elsewhere"))
    with pytest.raises(ParameterError, match="launch: key: 5 characters, not 64 hexadecimal"):
        ddpipe.attach("one", str(tmp_path), key="short")
