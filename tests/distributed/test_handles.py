"""A function launched from Python onto processes of this machine, and the handle on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import processes, until

from ddpipe.distributed import process_group
from ddpipe.errors import Interrupted, JobDeleted, ParameterError, ReplicaFailed
from ddpipe.notebook.background import Launch
from ddpipe.notebook.handle import Handle, attach, launch
from ddpipe.notebook.result import RESULT
from ddpipe.storage import open_store


def summed(offset: int) -> int:
    with process_group() as world:
        for epoch in range(3):
            print(f"epoch={epoch + 1} loss={1 / (epoch + 1)}")  # noqa: T201 - what a training prints
        Path(os.environ["DDPIPE_OUTPUTS"], "deep").mkdir()
        Path(os.environ["DDPIPE_OUTPUTS"], "deep", "note.txt").write_text(f"rank {world.rank}")
        return int(world.sum(torch.tensor(world.rank + offset)))


def failing() -> None:
    weights: dict[str, int] = {}
    weights["missing"] += 1


def endless() -> None:
    print("epoch=1 loss=<b>1</b>")  # noqa: T201 - what a training prints
    while True:
        torch.zeros(1).add_(1)


def launched(work: Any, folder: Path, **given: Any) -> Handle:
    return launch(work, backend="local", runs=str(folder), **given)


@pytest.mark.slow
def test_what_rank_0_returned_and_wrote_comes_back(tmp_path: Path) -> None:
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
    with pytest.raises(ParameterError, match="there is a launch of this name"):
        launched(summed, tmp_path, name=handle.name, args={"offset": 1})


@pytest.mark.slow
def test_a_function_that_fails_tells_why(tmp_path: Path) -> None:
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
def test_another_kernel_attaches_and_stops_it(tmp_path: Path) -> None:
    """The one that launched it is gone, its work goes on."""
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
def test_a_launcher_that_was_killed_is_lost_and_its_ranks_with_it(tmp_path: Path) -> None:
    handle = launched(endless, tmp_path)
    next(handle.logs(follow=True))
    process = handle._process
    assert process
    process.kill()
    until(lambda: handle.status().phase == "lost")
    until(lambda: not any(handle.uri in process.command for process in processes()))
    with pytest.raises(JobDeleted, match="not known"):
        attach(handle.name, str(tmp_path)).result()


def test_an_output_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = open_store(str(tmp_path / "one"))
    Launch(name="one", work="work", sha256="", backend="local", nodes=1, processes=1).write(folder)
    RESULT.publish(folder, {}, {"outputs": ["../../escaped"]})
    with pytest.raises(ParameterError, match="lead out"):
        attach("one", str(tmp_path)).outputs(tmp_path / "mine")


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"backend": "local", "image": "mine"}, "image is for the pods of a job"),
        ({"backend": "local", "nodes": 0}, "nodes is 0, not a whole number from 1 to"),
        ({"image": ""}, "image is empty"),
        ({"image": "mine", "colour": "red"}, "'colour' is no parameter"),
        ({"image": "mine", "backend": "steam"}, "backend is 'steam'"),
        ({"backend": "local", "name": "../up"}, "a name has letters"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    given: dict[str, Any], seen: str, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match=seen):
        launch(failing, runs=str(tmp_path), **given)
    assert not list(tmp_path.iterdir())


def test_there_is_nothing_to_attach_to_where_nothing_was_launched(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="nothing was launched under this name"):
        attach("never", str(tmp_path))
