"""How far a training is: a line of `name=value` that any program can print, and what such lines say.

    step=420 of=1000 loss=0.52                    ddpipe.report(step=420, of=1000, loss=0.52)
    progress=0.42                                 any program, in any language
    epoch=3/10 val_accuracy=.930 train_loss=.250  own training, after each epoch
    progress=0.42 step=420 seconds_left=580       a launcher, once a minute

Lines are other people's text: what is read and kept of them is bounded.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ddpipe.processes.trainjob_status import trainjob_status

# Numbers stand at the end of a line; looking at all of a long one would take time for nothing.
_SEARCHED = 500
# Possessive and bounded: linear in the length of any text.
_METRIC = re.compile(
    r"\b([a-z][a-z0-9_/]{0,60}+)\s{0,3}+[=: ]?+\s{0,3}+(?<=[=: ])"
    r"(-?(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?)(?![\w.-])"
)
_PROGRESS = re.compile(r"\b(?:epoch|step)\b")
_EPOCHS = re.compile(r"(?:\[[\w-]+\] )?epoch=(\d{1,9})/(\d{1,9}) ")
# What a report says besides its metrics.
_OWN = ("progress", "of", "seconds_left")
# Names come from the training's own lines.
_MOST_METRICS = 100
# The speed is that of the last reports: so many, in seconds at least so far apart.
_MARKS, _APART = 20, 5.0
_LARGEST = 1e15
_SHORTEST_SILENCE, _SILENT_REPORTS = 60.0, 3
SHOWN = 3
"""Metrics in a line."""

_last_report: dict[str, Any] = {}


def report(step: float | None = None, of: float | None = None, **metrics: float) -> None:
    """Print how far a training is, as one line of `name=value`: a launcher reads it from the log.

    At most one line a second, and the last step's. Only the process of rank 0 prints. Never raises.

    Args:
        step: Steps that are done.
        of: Steps of the whole training. Without steps, `progress=0.42` says the same.
        metrics: Numbers, such as the loss.
    """
    with suppress(Exception):  # a report that is not printed is no reason to end a training
        now, before = time.monotonic(), _last_report
        is_last = step is not None and step == of and step != before.get("step")
        if os.environ.get("RANK", "0") == "0" and (is_last or now >= before.get("next", now)):
            line = report_line({"step": step, "of": of, **metrics})
            before |= {"next": now + 1, "step": step}
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            if status := trainjob_status():
                _own_reports.take("", line, time.time())
                so_far = _own_reports.now(time.time())
                status.put(so_far.percent, so_far.seconds_left, so_far.metrics)
                if is_last:
                    status.post()


def report_line(numbers: Mapping[str, float | None]) -> str:
    """Numbers as `name=value`, without those that are unknown."""
    return " ".join(
        f"{name}={value if isinstance(value, int) else format(float(value), '.6g')}"
        for name, value in numbers.items()
        if value is not None
    )


def metrics_of(line: str) -> dict[str, float]:
    """The numbers of a report, or of another line whose end names an epoch or step, and a loss."""
    lowered = line[-_SEARCHED:].lower()
    progress = _PROGRESS.search(lowered)
    is_report = "progress=" in lowered or ("step=" in lowered and " of=" in lowered)
    if not is_report and not (progress and "loss" in lowered[progress.end() :]):
        return {}
    numbers = {name: float(value) for name, value in _METRIC.findall(lowered)}
    return {name: value for name, value in numbers.items() if abs(value) < _LARGEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """How far a training was at one moment, as far as its lines say."""

    percent: float | None = None
    seconds_left: float | None = None  # None if it is not known, or nothing comes any more
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  # the last value of each
    rank: str = ""  # whose lines they are
    seen: float = 0.0  # when the last line of any rank was written, in seconds since 1970; 0 for never
    silent: float = 0.0  # seconds since then, if that is unusually long

    @property
    def line(self) -> str:
        """The same as a report."""
        share = None if self.percent is None else round(self.percent / 100, 4)
        left = None if self.seconds_left is None else round(self.seconds_left)
        others = {name: value for name, value in self.metrics.items() if name not in {"step", "epoch"}}
        some = dict(list(others.items())[:SHOWN])
        return report_line({"progress": share, "step": self.step, "seconds_left": left, **some})

    def __str__(self) -> str:
        """In words, such as "42 %, 9 min 40 s left"; empty if nothing is known."""
        known = [] if self.percent is None else [f"{math.floor(self.percent)} %"]
        known += [] if self.seconds_left is None else [f"{duration(self.seconds_left)} left"]
        known += [f"silent for {duration(self.silent)}"] if self.silent else []
        return ", ".join(known)


class Reports:
    """What the lines of a training's log say about its progress. Threads may share one."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self._lock = Lock()
        self._marks: deque[tuple[float, float]] = deque(maxlen=_MARKS)
        self._seen = self._at = self._usual = 0.0
        self._share: float | None = None
        self._left: float | None = None
        self._step: int | None = None
        self._rank, self._is_fine = "", False

    def take(self, rank: str, text: str, at: float) -> bool:
        """Take in a line that was written at this time; whether it says how far the training is."""
        numbers = metrics_of(text)
        with self._lock:
            self._seen = max(self._seen, at)
            for name in numbers.keys() - set(_OWN):
                if name in self.metrics or len(self.metrics) < _MOST_METRICS:
                    self.metrics[name] = numbers[name]
            is_fine, share = _share(text, numbers)
            # Of several ranks the first counts; epochs count only where nothing finer is reported.
            if share is None or is_fine < self._is_fine or (self._rank and rank > self._rank):
                return share is not None
            if is_fine != self._is_fine or rank != self._rank or share < (self._share or 0.0):
                self._marks.clear()  # another measure, or it continues from a checkpoint
                self._left = None
            self._is_fine, self._rank, self._share, self._at = is_fine, rank, share, at
            if (step := numbers.get("step", -1.0)) >= 0:
                self._step = int(step)
            if not self._marks or at - self._marks[-1][0] >= _APART:
                self._marks.append((at, share))
            began, first = self._marks[0]
            self._usual = (at - began) / max(1, len(self._marks) - 1)
            if share > first and at > began:
                self._left = (1 - share) * (at - began) / (share - first)
            self._left = numbers.get("seconds_left", self._left)
            return True

    def now(self, now: float) -> Reported:
        """How far the training is."""
        with self._lock:
            silent = now - self._seen if self._seen else 0.0
            silent = silent if silent > max(_SHORTEST_SILENCE, _SILENT_REPORTS * self._usual) else 0.0
            passed = max(0.0, now - self._at)
            return Reported(
                percent=None if self._share is None else 100 * self._share,
                seconds_left=None if self._left is None or silent else max(0.0, self._left - passed),
                step=self._step,
                metrics=dict(self.metrics),
                rank=self._rank,
                seen=self._seen,
                silent=silent,
            )


_own_reports = Reports()  # of this process


def _share(text: str, numbers: Mapping[str, float]) -> tuple[bool, float | None]:
    """Whether it is measured more finely than by epochs, and the part of a training that is done."""
    epochs = _EPOCHS.match(text) if "train_loss" in numbers else None
    done, whole = (float(epochs[1]), float(epochs[2])) if epochs else (-1.0, 1.0)
    if "step" in numbers:
        done, whole = numbers["step"], numbers.get("of", 0.0)
    if "progress" in numbers:
        done, whole = numbers["progress"], 1.0
    return epochs is None, done / whole if 0 <= done <= whole and whole > 0 else None


def duration(seconds: float) -> str:
    """A time in words: 8 s, 2 min 10 s, 3 h 05 min."""
    whole = math.ceil(seconds)
    if whole < 60:  # noqa: PLR2004
        return f"{whole} s"
    if whole < 3600:  # noqa: PLR2004
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
