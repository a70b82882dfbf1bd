"""A training with `processes="auto"` takes its first steps with several numbers of real processes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from paced_rank import STEADY
from training_runs import RECIPE, STEPS_PER_EPOCH, digits, losses, record, trained

from ddpipe import workflow
from ddpipe.jobs import LOCAL
from ddpipe.jobs.job import Owner
from ddpipe.parameters import AUTO
from ddpipe.processes import local, machine
from ddpipe.runs import Run
from ddpipe.steps import TrainOptions

START = local.run_local
OPTIONS = TrainOptions(backend=LOCAL, processes=AUTO)  # type: ignore[arg-type]  # a number, or this


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    paths = [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, paths)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(machine, "cpus", lambda: 2)
    monkeypatch.setattr(local, "run_local", lambda _, *rest: START("paced_rank", *rest))
    return Run(str(tmp_path / "runs" / "a"))


@pytest.mark.slow
@pytest.mark.parametrize(("paces", "numbers"), [((100.0, 150.0), [1, 2]), ((100.0, 90.0), [1, 2, 1])])
def test_it_continues_with_the_fastest_number(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paces: tuple[float, float], numbers: list[int]
) -> None:
    monkeypatch.setenv("PACES", json.dumps(dict(zip(("1", "2"), paces, strict=True))))
    dataset, recipe = digits(tmp_path / "store"), replace(RECIPE, epochs=1)
    workflow.train(run, dataset, recipe, OPTIONS, Owner())
    found = record(run.training)
    assert found["world_size"] == numbers[-1]
    first, *later = (attempt["step"] for attempt in found["attempts"])
    assert (first, len(later) + 1) == (0, len(numbers))
    assert later[0] == STEADY + 1
    assert all(STEADY < step - later[0] < STEPS_PER_EPOCH for step in later[1:]), "ranks poll now and then"
    assert run.facts("train")["processes"] == numbers[-1]
    assert len(losses(run.training)) == STEPS_PER_EPOCH
    alone = str(tmp_path / "alone")
    trained(dataset, alone, recipe, ranks=1)
    assert losses(run.training) == pytest.approx(losses(alone), rel=1e-3), "the same steps"
