"""The benchmark for GPUs, as far as it runs without one, and the recipes that benchmarks name."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ddpipe.train.recipe import Recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECORD = """
---------------------------------------------------------------------------------
|  run     |  epoch  |  train_acc  |  val_acc  |  tta_val_acc  |  time_seconds  |
---------------------------------------------------------------------------------
|  warmup  |   eval  |     0.9000  |   0.9100  |       0.9200  |        2.0000  |
|       0  |      0  |     0.6895  |   0.6360  |               |        0.5603  |
|          |      7  |     0.9512  |   0.9321  |               |        2.6500  |
|          |   eval  |     0.9512  |   0.9321  |       0.9401  |        2.6500  |
---------------------------------------------------------------------------------
"""


def test_recipes_of_the_benchmarks_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name, values in importlib.import_module("named_recipes").RECIPES.items():
        assert Recipe.from_dict(values).validated(), name


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("on_gpu")


def test_the_table_of_the_record_is_read(bench: ModuleType) -> None:
    assert bench.epochs_of(RECORD) == [(0.6360, 0.5603), (0.9321, 2.65)]
    assert bench.epochs_of("no table") == []


def test_throughput_is_measured_on_any_device(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "STEPS", 2)
    case = bench.Case("lenet", 32, 4)
    loop, bare, _ = bench.throughput(bench.jpegs(tmp_path, case), case, torch.device("cpu"), rounds=1)
    assert loop > 0 < bare


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("target", "what"), [("test-gpu", "these tests need"), ("bench-gpu", "this benchmark needs")]
)
def test_without_a_gpu_one_sentence_says_so(target: str, what: str) -> None:
    # The environment of these tests counts as installed.
    command = [
        "make",
        "--no-print-directory",
        "-o",
        "none/.installed",
        "VENV=none",
        # Relative, as in the Makefile: a blank in the checkout's own path must not matter.
        f"BIN={os.path.relpath(Path(sys.executable).parent, BENCHMARKS.parent)}",
        target,
    ]
    done = subprocess.run(command, cwd=BENCHMARKS.parent, check=True, capture_output=True, text=True)
    assert done.stdout == f"skipped: {what} a GPU, and torch finds none on this machine\n"
