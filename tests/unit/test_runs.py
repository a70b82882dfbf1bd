"""A run's folder records how each step went."""

import time
from pathlib import Path

import pytest

from ddpipe.errors import CorruptObject, ParameterError, SourceError, Unreachable
from ddpipe.runs import Run


def test_a_step_that_ends_well_leaves_its_facts(tmp_path: Path) -> None:
    run = Run.named(str(tmp_path), "first")
    with run.step("prepare") as facts:
        facts["dataset_id"] = "abc"
    (record,) = run.steps()
    assert record["status"] == "succeeded"
    assert record["facts"] == {"dataset_id": "abc"}
    assert record["seconds"] >= 0


def test_a_step_that_fails_leaves_its_error(tmp_path: Path) -> None:
    run = Run.named(str(tmp_path), "first")
    error = Unreachable(what="no dataset", which="here", seen="nothing", do="Give some.")
    with pytest.raises(Unreachable), run.step("prepare"):
        raise error
    (record,) = run.steps()
    assert record["status"] == "failed"
    assert record["error"] == error.as_dict()


def test_rejected_input_is_recorded_once_a_run_has_begun(tmp_path: Path) -> None:
    run = Run.named(str(tmp_path), "first")
    error = SourceError(what="no dataset", which="here", seen="nothing", do="Give some.")
    for step, count in (("prepare", 0), ("train", 2)):
        with pytest.raises(SourceError), run.step(step):
            raise error
        if not count:
            assert run.steps() == []
            with run.step("prepare"):
                pass
    assert [record["status"] for record in run.steps()] == ["succeeded", "failed"]


def test_a_step_done_again_replaces_its_record(tmp_path: Path) -> None:
    run = Run.named(str(tmp_path), "first")
    for attempt in range(2):
        with run.step("train") as facts:
            facts["attempt"] = attempt
    (record,) = run.steps()
    assert record["facts"] == {"attempt": 1}


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "", ".hidden", "x" * 200])
def test_a_name_that_could_leave_the_folder_is_rejected(name: str) -> None:
    with pytest.raises(ParameterError):
        Run.named("runs", name)


def test_fast_steps_keep_their_order(tmp_path: Path) -> None:
    run = Run.named(str(tmp_path), "first")
    names = ["prepare", "train", "evaluate", "export"]
    for name in names:
        with run.step(name):
            time.sleep(0.002)
    assert [record["step"] for record in run.steps()] == names


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"[" * 100_000, b'{"step": "train"}', b'{"facts": 3}'],
    ids=lambda content: repr(content[:20]),
)
def test_a_malformed_record_of_a_step_is_rejected_by_name(tmp_path: Path, content: bytes) -> None:
    run = Run.named(str(tmp_path), "first")
    with run.step("train"):
        pass
    (tmp_path / "first" / "steps" / "train.json").write_bytes(content)
    for read in (run.steps, lambda: run.facts("train"), run.state):
        with pytest.raises(CorruptObject, match=r"steps/train\.json"):
            read()


def test_the_origin_of_a_result_stays_in_the_folder_of_runs(tmp_path: Path) -> None:
    run = Run.named(str(tmp_path), "first")
    for elsewhere in ("../../x", ["x/y"]):
        with run.step("train") as facts:
            facts["same_as"] = elsewhere
        with pytest.raises(ParameterError):
            run.origin("train")
