"""Nodes that join a training and leave it: torchrun restarts the ranks, and training resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from elastic_rank import ALONE, TOGETHER
from processes import free_port, until
from training_runs import RECIPE, digits, losses, record, trained

EVERY_STEP = replace(RECIPE, checkpoint_minutes=1e-9)
SUPPORT = Path(__file__).parents[1] / "support"


@contextmanager
def node(name: str, port: int, folder: Path, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """torchrun with one rank, for a training on one or two nodes; the first one is where they meet."""
    elastic = ("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3")
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=last_call_timeout=1")
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "ELASTIC_NODE": name,
        "ELASTIC_MARKERS": str(folder),
    }
    command = [sys.executable, "-m", "ddpipe.torchrun", *elastic, *meeting, "-m", "elastic_rank", *arguments]
    with (
        (folder / f"{name}.log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as torchrun,
    ):
        try:
            yield torchrun
        finally:
            torchrun.terminate()


def pid_in(marker: Path) -> int:
    """What a rank that has stopped wrote."""
    until(lambda: marker.exists() and marker.read_text() != "")
    return int(marker.read_text())


@pytest.mark.slow
def test_a_node_joins_and_is_lost_and_training_continues(tmp_path: Path) -> None:
    dataset, output, port = digits(tmp_path / "store"), str(tmp_path / "training"), free_port()
    arguments = ["--dataset", dataset, "--output", output, "--recipe", EVERY_STEP.to_json()]
    with node("kept", port, tmp_path, arguments) as kept:
        pid_in(tmp_path / "alone")
        with node("lost", port, tmp_path, arguments) as lost:
            rank = pid_in(tmp_path / "together")
            lost.kill()
            os.kill(rank, signal.SIGKILL)
        assert kept.wait(timeout=300) == 0, (tmp_path / "kept.log").read_text()
    attempts = record(output)["attempts"]
    assert [attempt["world_size"] for attempt in attempts] == [1, 2, 1]
    assert attempts[1]["step"] == ALONE + 1  # the step that it was about to take
    assert ALONE < attempts[2]["step"] <= TOGETHER
    whole = str(tmp_path / "whole")
    trained(dataset, whole, ranks=1)
    assert losses(output) == pytest.approx(losses(whole), rel=1e-3)
