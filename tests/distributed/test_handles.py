"""A function launched from Python on this machine, and the handle on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import processes, until

from ddpipe import attach, launch
from ddpipe.distributed import process_group
from ddpipe.errors import CorruptObject, Interrupted, JobDeleted, ParameterError, ReplicaFailed
from ddpipe.notebook.handle import Handle


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has this file: what it defines is shipped, as from a notebook."""
    monkeypatch.chdir(Path(__file__).parent)


def summed(offset: int) -> int:
    with process_group() as world:
        for epoch in range(3):
            print(f"epoch={epoch + 1} loss={1 / (epoch + 1)}")  # noqa: T201 - as a training does
        Path(os.environ["DDPIPE_OUTPUTS"], "deep").mkdir()
        Path(os.environ["DDPIPE_OUTPUTS"], "deep", "note.txt").write_text(f"rank {world.rank}")
        return int(world.sum(torch.tensor(world.rank + offset)))


def failing() -> None:
    weights: dict[str, int] = {}
    weights["missing"] += 1


def endless() -> None:
    print("epoch=1 loss=<b>1</b>")  # noqa: T201 - as a training does
    while True:
        torch.zeros(1).add_(1)


def launched(work: Any, folder: Path, **given: Any) -> Handle:
    return launch(work, backend="local", runs=str(folder), **given)


@pytest.mark.slow
def test_value_and_files_of_rank_0_come_back(tmp_path: Path) -> None:
    handle = launched(summed, tmp_path, nodes=2, args={"offset": 10})
    assert handle.result() == 21
    status = handle.status()
    assert (status.phase, status.metrics) == ("succeeded", {"epoch": 3, "loss": pytest.approx(1 / 3)})
    assert list(handle.logs(follow=True)).count("epoch=3 loss=0.3333333333333333") == 2
    (note,) = handle.outputs(tmp_path / "mine")
    assert (note, note.read_text()) == (tmp_path / "mine/deep/note.txt", "rank 0")
    again = attach(handle.name, str(tmp_path))
    assert again.result() == 21
    assert "def summed(offset: int)" in (tmp_path / handle.name / "call.py").read_text()
    with pytest.raises(ParameterError, match="a launch of this name exists"):
        launched(summed, tmp_path, name=handle.name, args={"offset": 1})


@pytest.mark.slow
def test_failing_function_reports_its_error(tmp_path: Path) -> None:
    handle = launched(failing, tmp_path)
    with pytest.raises(ReplicaFailed, match="KeyError: 'missing'"):
        handle.result()
    assert handle.status().phase == "failed"
    with pytest.raises(ReplicaFailed, match="KeyError: 'missing'"):
        attach(handle.name, str(tmp_path)).result()


KERNEL = """
import sys
import ddpipe

def endless():
    print("epoch=1 loss=<b>1</b>", flush=True)
    while True:
        pass

ddpipe.launch(endless, backend="local", name="one", runs=sys.argv[1])
"""


@pytest.mark.slow
def test_another_kernel_attaches_and_stops_a_launch(tmp_path: Path) -> None:
    """The kernel that launched it is gone, but its work continues."""
    subprocess.run([sys.executable, "-c", KERNEL, str(tmp_path)], check=True)
    handle = attach("one", str(tmp_path))
    assert "loss=<b>1</b>" in next(handle.logs(follow=True))
    assert handle.wait(timeout=0).phase == "running"
    with pytest.raises(TimeoutError):
        handle.result(timeout=0)
    assert "loss=&lt;b&gt;1&lt;/b&gt;" in handle._repr_html_()
    assert handle.stop().phase == "stopped"
    assert handle.stop().phase == "stopped"
    with pytest.raises(Interrupted):
        handle.result()


@pytest.mark.slow
def test_killed_launcher_is_lost_with_its_ranks(tmp_path: Path) -> None:
    handle = launched(endless, tmp_path)
    next(handle.logs(follow=True))
    process = handle._machine._process
    assert process
    process.kill()
    until(lambda: handle.status().phase == "lost")
    until(lambda: not any(handle.uri in process.command for process in processes()))
    with pytest.raises(JobDeleted, match="is unknown"):
        attach(handle.name, str(tmp_path)).result()


def exits_with_0() -> int:
    raise SystemExit(0)


def rank_1_dies_with_0() -> str:
    if os.environ["RANK"] == "1":
        os._exit(0)
    return "rank 0 is content"


def rank_0_dies_with_0() -> None:
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "nodes", "seen"),
    [
        (exits_with_0, 1, r"called sys.exit\(0\)"),
        (rank_1_dies_with_0, 2, "rank 1 of 2: it ended with exit code 0"),
        (rank_0_dies_with_0, 1, "rank 0: it ended with exit code 0"),
    ],
)
def test_exit_code_0_before_the_end_is_no_success(work: Any, nodes: int, seen: str, tmp_path: Path) -> None:
    handle = launched(work, tmp_path, nodes=nodes)
    with pytest.raises(ReplicaFailed, match=seen):
        handle.result()
    assert handle.status().phase == "failed"


@pytest.mark.slow
def test_script_that_exits_with_1_fails(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nsys.exit('no data')\n")
    with pytest.raises(ReplicaFailed, match="no data"):
        launched(script, tmp_path).result()


@pytest.mark.slow
def test_result_of_a_stranger_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a value that was replaced, nor one sealed with another key, nor one without a key here."""
    handle = launched(summed, tmp_path, args={"offset": 1})
    assert handle.result() == 1
    folder = tmp_path / handle.name
    value, seal = (folder / "value").read_bytes(), (folder / "result.json").read_text()
    mine = launched(summed, tmp_path, args={"offset": 2})
    assert mine.result() == 2
    (folder / "value").write_bytes((tmp_path / mine.name / "value").read_bytes())
    with pytest.raises(CorruptObject, match="hash"):
        handle.result()
    (folder / "result.json").write_text((tmp_path / mine.name / "result.json").read_text())
    with pytest.raises(CorruptObject, match="key of this launch"):
        handle.result()
    (folder / "value").write_bytes(value)
    (folder / "result.json").write_text(seal)
    assert handle.result() == 1
    key = handle.key
    monkeypatch.setenv("DDPIPE_CACHE", str(tmp_path / "another machine"))
    with pytest.raises(ParameterError, match="does not have the key"):
        attach(handle.name, str(tmp_path)).result()
    assert attach(handle.name, str(tmp_path), key=key).result() == 1
