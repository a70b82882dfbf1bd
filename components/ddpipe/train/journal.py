"""What a training reports while it runs: rank 0 writes, the other ranks do not.

metrics.jsonl     one JSON object per finished epoch
tensorboard/      event files: loss and learning rate of every step, all metrics of every epoch
progress.txt      how far it is, now and then: a line of processes/reports.py
terminal          a progress bar with the time left and the score; elsewhere one line per epoch of
                  `name=value`, as Katib reads them, that fits the log panel of a pipeline's UI
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ddpipe.model.training_record import METRICS
from ddpipe.processes.local import REPORTS
from ddpipe.processes.machine import cpus
from ddpipe.processes.progress import TRAINING_BAR, TimeLeft
from ddpipe.processes.reports import report_line
from ddpipe.processes.trainjob_status import trainjob_status
from ddpipe.storage import Store
from ddpipe.tracker import Tracker, tracked
from ddpipe.train.constants import LINE_SECONDS, REPORT_SECONDS
from ddpipe.train.saver import Uploads

T = TypeVar("T")

Record = dict[str, Any]

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024

_LARGE = 1000  # numbers from here on are shown by their powers of ten

_log = logging.getLogger(__name__)


class _Bar(TimeLeft, tqdm):  # type: ignore[type-arg]  # generic in its stubs only
    """On a terminal."""


class Journal:
    """The record of one training, from the step where this process takes it up."""

    def __init__(
        self,
        store: Store,
        uploads: Uploads,
        folder: Path,
        *,
        step: int,
        done: tuple[int, int],
        tracker: Tracker,
    ) -> None:
        """Keep event files in `folder` until they are uploaded; resume at `step`, with so much work done."""
        self._store, self._uploads, self._tracker = store, uploads, tracker
        self._folder = folder
        self._every = float(os.environ.get(REPORTS, REPORT_SECONDS))
        self._score: dict[str, float] = {}
        self._status = trainjob_status()
        self._next_report = time.monotonic() + self._every
        self._next_line = time.monotonic() + LINE_SECONDS
        # What an earlier process wrote about later steps is void: it died before they were saved.
        self._events = SummaryWriter(str(folder), purge_step=step + 1)
        self._bar = _Bar(
            total=done[1],
            initial=done[0],
            bar_format=TRAINING_BAR,
            dynamic_ncols=True,
            file=sys.stdout,
            disable=not sys.stdout.isatty(),
        )

    def step(self, step: int, done: int, total: int, seconds_left: float | None) -> None:
        """After a step, so much work of so much is done, counted in images trained at full size."""
        self._bar.total, self._bar.seconds_left = total, seconds_left
        self._bar.update(done - self._bar.n)
        now, share = time.monotonic(), done / max(1, total)
        if self._status:
            self._status.put(100 * share, seconds_left, {"step": step, **self._score})
        if now >= self._next_report:
            self._next_report = now + self._every
            line = report_line({"progress": share, "step": step, **self._score, "seconds_left": seconds_left})
            self._upload("progress.txt", line.encode())
            if self._bar.disable and now >= self._next_line:
                self._next_line = now + LINE_SECONDS
                _log.info("%s", line)

    def epoch(
        self, history: Sequence[Record], losses: Sequence[float], rates: Sequence[float], epochs: int
    ) -> None:
        """An epoch has ended."""
        record = history[-1]
        first = record["step"] - len(losses)
        for step, (loss, rate) in enumerate(zip(losses, rates, strict=True), start=first + 1):
            self._events.add_scalar("step/loss", loss, step)
            self._events.add_scalar("step/learning_rate", rate, step)
        for name, value in record.items():
            self._events.add_scalar(f"epoch/{name}", value, record["step"])
        self._events.flush()
        # The history is the truth and the file a copy of it: a resumed training leaves no line twice.
        lines = "".join(json.dumps(line) + "\n" for line in history).encode()
        for path in self._folder.iterdir():
            self._upload(f"tensorboard/{path.name}", path.read_bytes())
        self._upload(METRICS, lines)
        self._tracker.epochs(history)
        if self._bar.disable:
            self._next_line = time.monotonic() + LINE_SECONDS
            _log.info("%s", progress(record, epochs))
        scores = [name for name in record if name.startswith("validation_") and name != "validation_loss"]
        self._score = {name.removeprefix("validation_"): record[name] for name in scores[:1]}
        self._bar.set_postfix_str(", ".join(f"{name} {_short(value)}" for name, value in self._score.items()))

    def _upload(self, key: str, content: bytes) -> None:
        self._uploads.put(key, partial(self._store.write, key, content))

    def close(self) -> None:
        """Close the terminal's progress bar and the files, and bring the TrainJob's status up to date."""
        if self._status:
            self._status.post()
        self._events.close()
        self._bar.close()


def progress(record: Record, epochs: int) -> str:
    """An epoch in one line: how far it is, what validation found, the loss, the time."""
    validation = {name: value for name, value in record.items() if name.startswith("validation_")}
    # The metric is more informative than the loss, and comes first.
    ordered = sorted(validation, key=lambda name: name == "validation_loss")
    shown = {name.replace("validation", "val"): validation[name] for name in ordered}
    shown["train_loss"] = record["train_loss"]
    values = " ".join(f"{name}={_short(value)}" for name, value in shown.items())
    return f"epoch={record['epoch']}/{epochs} {values} {record['seconds']:.1f} s"


def _short(value: float) -> str:
    return (f"{value:.3f}" if abs(value) < _LARGE else f"{value:.3g}").removeprefix("0")


@contextmanager
def keep_journal(
    store: Store,
    uploads: Uploads | None,
    *,
    step: int,
    done: tuple[int, int],
    about: Callable[[Tracker], None] = lambda _: None,
) -> Iterator[Journal | None]:
    """The journal on the rank that has uploads, None on the others; `about` describes the training."""
    if not uploads:
        yield None
        return
    run = store.uri.rpartition("/")[0]
    with tempfile.TemporaryDirectory(prefix="ddpipe-") as folder, tracked(run) as tracker:
        about(tracker)
        journal = Journal(store, uploads, Path(folder), step=step, done=done, tracker=tracker)
        # A line of the log is written above the bar, not behind it.
        with logging_redirect_tqdm() if sys.stdout.isatty() else nullcontext():
            try:
                yield journal
            finally:
                journal.close()


def summarized(
    history: Sequence[Mapping[str, Any]], attempts: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """A training in a few numbers."""
    node_hours = sum(attempt["nodes"] * attempt["seconds"] for attempt in attempts) / 3600
    shares = {name: [epoch[name] for epoch in history if name in epoch] for name in ("data_wait", "cpu")}
    amounts = {name: [epoch[name] for epoch in history if name in epoch] for name in ("memory", "gpu_memory")}
    return {
        "node_hours": round(node_hours, 6),
        **{name: round(sum(values) / len(values), 4) for name, values in shares.items() if values},
        **{name: max(values) for name, values in amounts.items() if values},
    }


def timed(batches: Iterator[T], note: Callable[[float], None]) -> Iterator[T]:
    """The same batches; `note` gets the seconds until each was there."""
    while True:
        began = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            return
        note(time.perf_counter() - began)
        yield batch


class ResourceUsage:
    """Of this process, from one epoch to the next."""

    def __init__(self, device: torch.device) -> None:
        """Begin to measure."""
        self._device = device
        self._begin()

    def waited(self, seconds: float) -> None:
        """Note the time until a batch was there."""
        self._waited += seconds

    def epoch(self) -> dict[str, float]:
        """What was used since the last call."""
        seconds = time.perf_counter() - self._began
        used = {
            "data_wait": round(self._waited / seconds, 4),
            "cpu": round((time.process_time() - self._cpu_began) / seconds / cpus(), 4),
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT,
        }
        if self._device.type == "cuda":
            used["gpu_memory"] = torch.cuda.max_memory_allocated(self._device)
        self._begin()
        return used

    def _begin(self) -> None:
        self._began, self._cpu_began, self._waited = time.perf_counter(), time.process_time(), 0.0
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
