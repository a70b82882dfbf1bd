"""torchrun starts the ranks again after one was lost, and nothing else is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from training_runs import RECIPE, STEPS_PER_EPOCH, digits, final, record, same_bits, trained

from ddpipe.errors import ReplicaFailed
from ddpipe.processes.local import run_local

pytestmark = pytest.mark.slow

EVERY_STEP = replace(RECIPE, checkpoint_minutes=1e-9)


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, paths)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def arguments(dataset: str, output: str) -> list[str]:
    return ["--dataset", dataset, "--output", output, "--recipe", EVERY_STEP.to_json()]


def test_a_killed_rank_costs_a_restart_and_no_bit_of_the_result(tmp_path: Path) -> None:
    dataset, output = digits(tmp_path / "store"), str(tmp_path / "training")
    run_local("restarted_rank", arguments(dataset, output), processes=2, max_restarts=1)
    assert [attempt["world_size"] for attempt in record(output)["attempts"]] == [2, 2]
    assert record(output)["resumed_from"] > STEPS_PER_EPOCH
    assert same_bits(final(output), trained(dataset, str(tmp_path / "whole"), ranks=2))


def test_without_restarts_the_killed_rank_is_named(tmp_path: Path) -> None:
    dataset, output = digits(tmp_path / "store"), str(tmp_path / "training")
    with pytest.raises(ReplicaFailed, match=r"rank 1 .* SIGKILL"):
        run_local("restarted_rank", arguments(dataset, output), processes=2)


def test_the_error_is_written_into_the_file_that_is_there(tmp_path: Path) -> None:
    """A pod's termination log can be written to, but not removed and created again."""
    path = tmp_path / "termination-log"
    path.touch()
    (tmp_path / "as-the-kubelet-sees-it").hardlink_to(path)
    done = subprocess.run(
        [sys.executable, "-m", "ddpipe.torchrun", "--standalone", "-m", "faulty_rank", "crash"],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    content = (tmp_path / "as-the-kubelet-sees-it").read_text()
    assert json.loads(content)["message"]["extraInfo"]["error"] == "Diverged"
