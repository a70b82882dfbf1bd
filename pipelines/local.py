"""Run the training pipeline on this machine: the compiled steps, each in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from kfp import local

from ddpipe import errors
from ddpipe.errors import DdpipeError
from ddpipe.pipelines.training import training
from ddpipe.prepare import PrepareSpec
from ddpipe.runs import Run
from ddpipe.storage import open_store
from ddpipe.summary import Summary, summary
from ddpipe.train.recipe import Recipe


def run_training(run: Run, spec: PrepareSpec, recipe: Recipe, processes: int) -> Summary:
    """Run all four steps with the engine's own local runner; its chatter goes to standard error.

    Raises:
        DdpipeError: The error of the step that failed.
    """
    for folder in (spec.store, run.uri):
        open_store(folder).check_writable()
    try:
        with _engine():
            training(
                run_name=run.name,
                runs=run.uri.rpartition("/")[0],
                store=spec.store,
                source=spec.source,
                source_path=spec.path or "",
                dataset_name=spec.name,
                image_size=spec.image_size or 0,
                validation_fraction=spec.fractions[1],
                test_fraction=spec.fractions[2],
                split_seed=spec.seed,
                skip_bad=spec.skip_bad,
                processes=processes,
                **asdict(recipe),
            )
    except RuntimeError:
        # The engine only says which step failed; the step itself recorded why.
        failed = [record["error"] for record in run.steps() if record["status"] == "failed"]
        if not failed:
            raise
        raise _rebuilt(failed[-1]) from None
    return summary(run)


@contextlib.contextmanager
def _engine() -> Iterator[None]:
    with (
        tempfile.TemporaryDirectory(prefix="ddpipe-") as scratch,
        contextlib.redirect_stdout(sys.stderr),
        _handing_on_sigterm(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", module=r"kfp\.")
        local.init(local.SubprocessRunner(use_venv=False), pipeline_root=scratch, raise_on_error=True)
        yield


@contextlib.contextmanager
def _handing_on_sigterm() -> Iterator[None]:
    """Hand SIGTERM on to the running step, which saves its state and ends; the engine does not."""

    def hand_on(_signal: int, _frame: FrameType | None) -> None:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, hand_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _children() -> list[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return [int(pid) for children in lists for pid in children.read_text().split()]


def _rebuilt(record: dict[str, str]) -> DdpipeError:
    kind: type[DdpipeError] = getattr(errors, record["error"])
    return kind(**{part: record[part] for part in ("what", "which", "seen", "do")})
