"""What a handle says of its launch, in each state that the launch can be in."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from notebook_launches import KEY_OF_LAUNCH, a_launch

import ddpipe
from ddpipe.errors import Interrupted, JobDeleted, ParameterError, ReplicaFailed
from ddpipe.notebook import handle as module
from ddpipe.notebook.folder import Launch, publish
from ddpipe.notebook.handle import Handle, Status, _html_of
from ddpipe.notebook.machine import Machine, Secrets
from ddpipe.processes.packing import packed_value
from ddpipe.storage import Store, open_store


class Scripted(Machine):
    """A machine whose launcher is alive for so many looks, and has printed these lines."""

    def __init__(self, uri: str, looks: int = 0, lines: tuple[str, ...] = ()) -> None:
        super().__init__(uri)
        self.looks, self.printed = looks, list(lines)

    def is_launching(self) -> bool:
        self.looks -= 1
        return self.looks >= 0

    def last_lines(self) -> list[str]:
        return self.printed

    def stop(self) -> None:
        self.looks = 0


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.001)


def a_handle(folder: Store, looks: int = 0, lines: tuple[str, ...] = (), **changes: Any) -> Handle:
    return Handle(a_launch(folder, **changes), folder, Scripted(folder.uri, looks, lines))


def ended(folder: Store, phase: str = "succeeded", **facts: Any) -> None:
    folder.write("outcome.json", json.dumps({"phase": phase, "error": None, "metrics": {}, **facts}).encode())


LINES = (
    "[launch] created",
    "[worker-0] epoch=1/2 loss=.5",
    "[launch] running: 1 of 1 pods",
    "[worker-0] epoch=2/2 loss=.25",
)


def test_a_status_has_the_last_message_and_the_last_numbers(folder: Store) -> None:
    status = a_handle(folder, looks=1, lines=LINES).status()
    assert (status.phase, status.remark) == ("running", "running: 1 of 1 pods")
    assert status.metrics == {"epoch": 2, "loss": 0.25}
    assert not status.is_over


def test_a_status_has_the_progress(folder: Store) -> None:
    lines = (*LINES, "[launch] progress=0.42 step=420 seconds_left=580 loss=0.5", "[worker-0] step=43 of=100")
    running = a_handle(folder, looks=2, lines=lines)
    status = running.status()
    assert str(status.progress).startswith("43 %, 9 min 40 s left")
    assert (status.progress.step, status.remark) == (43, "running: 1 of 1 pods")
    assert "43 %, 9 min" in running._repr_html_()


def test_a_launch_without_launcher_and_outcome_is_lost(folder: Store) -> None:
    lost = a_handle(folder, lines=LINES)
    assert lost.status().phase == "lost"
    assert lost.status().is_over
    with pytest.raises(JobDeleted, match=r"its last message: running: 1 of 1 pods"):
        lost.result()
    with pytest.raises(JobDeleted) as silent:
        a_handle(folder).result()
    assert "its last message" not in str(silent.value)


def test_an_outcome_s_numbers_replace_those_of_the_log(folder: Store) -> None:
    done = a_handle(folder, lines=LINES)
    ended(folder)
    assert done.status().metrics["loss"] == 0.25
    ended(folder, metrics={"loss": 0.125})
    assert done.status() == Status(
        phase="succeeded", remark="running: 1 of 1 pods", metrics={"loss": 0.125}, error=None
    )


def test_a_result_is_what_the_function_returned(folder: Store) -> None:
    done = a_handle(folder, looks=3)
    publish(folder, KEY_OF_LAUNCH, "5" * 64, packed_value({"loss": 0.5}), {}, 1)
    ended(folder)
    assert done.result() == {"loss": 0.5}
    assert done.key == KEY_OF_LAUNCH


def test_a_failed_launch_raises_its_error(folder: Store) -> None:
    failed = a_handle(folder)
    error = ReplicaFailed(what="the job failed", which="rank 1", seen="exit code 3", do="look")
    ended(folder, "failed", error=error.as_dict())
    with pytest.raises(ReplicaFailed, match="exit code 3"):
        failed.result()
    assert "exit code 3" in failed._repr_html_()


def test_waiting_ends_after_its_timeout(folder: Store) -> None:
    running = a_handle(folder, looks=10**9)
    assert running.wait(0.01).phase == "running"
    with pytest.raises(TimeoutError, match=r"one still runs after 0\.01 s"):
        running.result(0.01)


def test_waiting_shows_the_progress_and_the_end(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        module.Display, "show", lambda _, picture, *, last=False: shown.append((picture(), last))
    )
    assert a_handle(folder, looks=4, lines=LINES).wait().phase == "lost"
    assert [last for _, last in shown] == [False, False, True]
    assert "running: 1 of 1 pods" in shown[0][0]
    shown.clear()
    a_handle(folder).wait()
    assert shown == [], "nothing was waited for"


def test_a_handle_is_shown_as_its_name_and_phase(folder: Store) -> None:
    assert repr(a_handle(folder, looks=1)) == "<one: running>"
    lines = tuple(f"line {number}" for number in range(20))
    picture = a_handle(folder, looks=1, lines=lines)._repr_html_()
    assert re.findall(r"line \d+", picture) == [f"line {number}" for number in range(8, 20)]
    assert folder.uri in picture


def test_a_picture_has_phase_numbers_and_escaped_text() -> None:
    status = Status(phase="failed", remark="<r>", metrics={"loss": 0.5, "rate": 1234567.0})
    picture = _html_of("<n>", "<u>", status, ["<a>", "<b>"])
    assert "loss 0.5, rate 1.23457e+06" in picture
    assert "&lt;a&gt;\n&lt;b&gt;" in picture
    for text in ("<n>", "<u>", "<r>", "<a>"):
        assert text not in picture
    assert "color: #cf222e" in picture
    plain = _html_of("n", "u", Status(phase="running"), [])
    assert "color: #0969da" in plain
    assert plain.count("<br>") == 1


def test_stop_of_a_local_launch_records_it(folder: Store) -> None:
    stopped = a_handle(folder, looks=1, lines=LINES, backend="local", options={})
    status = stopped.stop()
    assert (status.phase, status.metrics["loss"]) == ("stopped", 0.25)
    with pytest.raises(Interrupted, match="one: stop"):
        stopped.result()


def test_stop_changes_nothing_when_it_is_over(folder: Store) -> None:
    done = a_handle(folder)
    ended(folder, metrics={"loss": 1.0})
    assert done.stop() == done.status()
    assert done.status().phase == "succeeded"


def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The modes of the launchers that would have been started."""
    modes: list[tuple[str, ...]] = []
    monkeypatch.setattr(Machine, "start", lambda _, *mode: modes.append(mode))
    return modes


def train_net(epochs: int = 1) -> int:
    return epochs


def test_a_launch_is_recorded_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes, before = started(monkeypatch), datetime.now(UTC)
    launched = ddpipe.launch(
        train_net, runs=str(tmp_path), image="mine", namespace="team", nodes=2, args={"epochs": 3}
    )
    assert modes == [()]
    assert re.fullmatch(r"train-net-\d{8}-\d{6}-\d{6}", launched.name)
    assert launched.name[10:25] >= f"{before:%Y%m%d-%H%M%S}"
    store = open_store(launched.uri)
    record = Launch.read(store)
    assert (record.work, record.nodes, record.namespace, record.private) == ("train_net", 2, "team", ())
    assert record.options["image"] == "mine"
    assert "return epochs" in store.read("call.py").decode()
    assert launched.uri == f"{tmp_path}/{launched.name}"


def test_attach_to_a_lost_launch_looks_for_its_job(
    folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = started(monkeypatch)
    a_launch(folder)
    assert ddpipe.attach("one", str(tmp_path)).name == "one"
    assert modes == [("adopt",)]
    ended(folder)
    ddpipe.attach("one", str(tmp_path))
    assert modes == [("adopt",)], "its end is known"


def test_attach_to_a_lost_local_launch_starts_nothing(
    folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = started(monkeypatch)
    a_launch(folder, backend="local", options={})
    assert ddpipe.attach("one", str(tmp_path)).status().phase == "lost"
    assert modes == []


def test_attach_keeps_a_key_where_none_is_known(
    folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(monkeypatch)
    a_launch(folder)
    assert ddpipe.attach("one", str(tmp_path), key="cd" * 32).key == KEY_OF_LAUNCH
    monkeypatch.setenv("DDPIPE_CACHE", str(tmp_path / "elsewhere"))
    assert ddpipe.attach("one", str(tmp_path)).key == ""
    assert ddpipe.attach("one", str(tmp_path), key="cd" * 32).key == "cd" * 32
    assert Machine(folder.uri).secrets() == Secrets("cd" * 32)


@pytest.mark.parametrize(("name", "readable"), [("Train_Net2", "train-net2"), ("__", "work"), ("ä b", "b")])
def test_a_launch_s_name_has_plain_characters(
    name: str, readable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(monkeypatch)
    (script := tmp_path / f"{name}.py").write_text("")
    assert ddpipe.launch(script, runs=str(tmp_path), backend="local").name.startswith(f"{readable}-20")


def test_local_options_that_are_defaults_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(monkeypatch)
    launched = ddpipe.launch(train_net, runs=str(tmp_path), backend="local", nodes=2, processes=3)
    record = Launch.read(open_store(launched.uri))
    assert (record.backend, record.nodes, record.processes, record.options) == ("local", 2, 3, {})
    with pytest.raises(ParameterError) as rejected:
        ddpipe.launch(train_net, runs=str(tmp_path), backend="local", image="mine", processes=-1)
    assert "2 problems" in rejected.value.seen
