"""A training that runs out of memory continues once, in smaller parts of the same batches."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from scarce_rank import HELD
from training_runs import RECIPE, digits, final, losses, record, trained

from ddpipe import workflow
from ddpipe.errors import ReplicaFailed
from ddpipe.jobs import LOCAL
from ddpipe.jobs.job import Owner
from ddpipe.model.training_record import METRICS
from ddpipe.processes import local
from ddpipe.reuse import peak_memory
from ddpipe.runs import Run
from ddpipe.steps import TrainOptions

SMALL = replace(RECIPE, epochs=1, checkpoint_minutes=1e-9)
START = local.run_local


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    return digits(tmp_path / "store")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    paths = [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, paths)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(local, "run_local", lambda _, *rest: START("scarce_rank", *rest))
    return Run(str(tmp_path / "runs" / "a"))


def train(run: Run, dataset: str, processes: int = 2) -> None:
    workflow.train(run, dataset, SMALL, TrainOptions(backend=LOCAL, processes=processes), Owner())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_it_ends_with_the_result_of_whole_batches(
    run: Run,
    dataset: str,
    tmp_path: Path,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("HOW", how)
    monkeypatch.setenv("LEAST", "2")
    numbers = count()
    if how == "kill":
        monkeypatch.setattr(local, "oom_kills", lambda: next(numbers))
    caplog.set_level("INFO")
    train(run, dataset)
    assert "out of memory with 39 images for each process; training starts once more" in caplog.text
    assert record(run.training)["resumed_from"] > 0
    measured = record(run.training)["summary"]["memory"]
    assert measured > HELD  # on any rank
    assert peak_memory(run.training, METRICS) == measured
    whole = trained(dataset, str(tmp_path / "whole"), replace(SMALL, checkpoint_minutes=5), ranks=2)
    assert losses(run.training) == pytest.approx(losses(str(tmp_path / "whole")), rel=1e-3)
    for name, weight in final(run.training).states["model"].items():
        torch.testing.assert_close(weight, whole.states["model"][name], rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_the_second_time_it_fails_and_names_a_size(
    run: Run, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW", "raise")
    monkeypatch.setenv("LEAST", "4")
    with pytest.raises(ReplicaFailed) as raised:
        train(run, dataset, processes=1)
    assert "In parts of 39 images for each process it is still too much" in raised.value.seen
    assert "`batch_size` 19" in raised.value.do
    assert json.loads(Path(run.training, "memory.json").read_text()) == {"parts": 2}


@pytest.mark.slow
def test_a_rank_that_a_person_kills_is_not_started_again(
    run: Run, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW", "kill")
    monkeypatch.setenv("LEAST", "2")
    monkeypatch.setattr(local, "oom_kills", lambda: 5)
    with pytest.raises(ReplicaFailed, match="SIGKILL ended it"):
        train(run, dataset, processes=1)
    assert not Path(run.training, "memory.json").exists()
