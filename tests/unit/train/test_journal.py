"""What a person at a terminal, and a program that reads the log, see of a training.

What an epoch used of the machine.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import re
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ddpipe.storage import open_store
from ddpipe.tracker import Tracker
from ddpipe.train import journal
from ddpipe.train.batches import images_seen
from ddpipe.train.journal import ResourceUsage, keep_journal, progress, summarized, timed
from ddpipe.train.saver import Uploads, uploading

LOG_PANEL = 75
"""Columns that the UI of Kubeflow Pipelines shows."""

SAMPLES, BATCH, STEPS = 10, 4, 6
"""Two epochs of three steps with three, three and four images."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def an_epoch(number: int) -> dict[str, Any]:
    scores = {"train_loss": 0.5, "validation_loss": 2.25, "validation_accuracy": 0.75}
    return {"epoch": number, "step": 3 * number, **scores, "seconds": 0.31}


def journal_of_a_training(folder: Path, *, start: int = 0) -> None:
    store = open_store(str(folder))

    def seen(step: int) -> int:
        return images_seen(step, SAMPLES, BATCH)

    done = seen(start), seen(STEPS)
    with uploading() as uploads, keep_journal(store, uploads, step=start, done=done) as journal:
        assert journal
        for step in range(start + 1, STEPS + 1):
            journal.step(step, seen(step), seen(STEPS), None if step < STEPS else 83.0)
            if step % 3 == 0:
                history = [an_epoch(epoch) for epoch in range(1, step // 3 + 1)]
                first = step - 3
                losses = [float(loss) for loss in range(first, step)]
                journal.epoch(history, losses, [loss / 100 for loss in losses], 2)


class Status:
    """What would be posted as a TrainJob's status."""

    def __init__(self) -> None:
        self.put_in: list[tuple[float, float | None, dict[str, float]]] = []
        self.posted = 0

    def put(self, percent: float, seconds_left: float | None, metrics: dict[str, float]) -> None:
        self.put_in.append((percent, seconds_left, metrics))

    def post(self) -> None:
        self.posted = len(self.put_in)


def test_the_status_of_a_job_gets_each_step_and_the_score_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = Status()
    monkeypatch.setattr(journal, "trainjob_status", lambda: status)
    journal_of_a_training(tmp_path)
    score = {"accuracy": 0.75}
    assert status.put_in == [
        (15, None, {"step": 1}),
        (30, None, {"step": 2}),
        (50, None, {"step": 3}),
        (pytest.approx(65), None, {"step": 4, **score}),
        (80, None, {"step": 5, **score}),
        (100, 83.0, {"step": 6, **score}),
    ]
    assert status.posted == STEPS, "the last one, too, before the process ends"


@pytest.mark.parametrize("columns", [80, 110])
def test_a_terminal_shows_a_bar_the_time_left_and_the_score(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, (24, columns))
    with os.fdopen(reader, "rb") as shown, os.fdopen(writer, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        journal_of_a_training(tmp_path)
        terminal.flush()
        bars = shown.read1().decode().strip().split("\r")
    assert "<?" in bars[0], "the time left is not known at first"
    assert re.fullmatch(r"100%\|█{20,}\| 00:0\d<01:23, accuracy \.750 *", bars[-1])
    assert max(map(len, bars)) <= columns


def test_a_line_of_the_log_does_not_stick_to_the_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    handler = logging.StreamHandler(sys.stdout)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    store = open_store(str(tmp_path))
    with uploading() as uploads, keep_journal(store, uploads, step=0, done=(1, 20)):
        logging.getLogger("ddpipe").error("about 1 min")
    lines = sys.stdout.getvalue().replace("\r", "\n").splitlines()  # type: ignore[attr-defined]
    assert "about 1 min" in lines


def test_a_resumed_training_s_bar_begins_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    journal_of_a_training(tmp_path, start=4)
    assert "65%" in sys.stdout.getvalue()  # type: ignore[attr-defined]


def test_elsewhere_katib_finds_a_line_of_names_and_values_per_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        journal_of_a_training(tmp_path)
    assert caplog.messages == [
        f"epoch={epoch}/2 val_accuracy=.750 val_loss=2.250 train_loss=.500 0.3 s" for epoch in (1, 2)
    ]
    assert all(len(f"[worker-0] {line}") <= LOG_PANEL for line in caplog.messages)


def test_long_epochs_have_lines_in_between(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REPORT_SECONDS", "LINE_SECONDS"):
        monkeypatch.setattr(journal, name, 0.0)
    with caplog.at_level(logging.INFO):
        journal_of_a_training(tmp_path)
    assert "progress=0.3 step=2" in caplog.messages
    assert (tmp_path / "progress.txt").read_text() == "progress=1 step=6 accuracy=0.75 seconds_left=83"


class AtOnce:
    """Uploads that are written when they are put; their kinds and the time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.seen = clock, list[tuple[float, str]]()

    def put(self, kind: str, write: Callable[[], object]) -> None:
        write()
        self.seen.append((self.clock(), kind))


def test_reports_are_as_far_apart_as_asked_for_and_lines_of_the_log_farther(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A step takes five seconds; the epoch that ends after 45 s has a line, so the next one can wait."""
    now = [1000.0]
    monkeypatch.setattr(journal.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(journal, "LINE_SECONDS", 20.0)
    monkeypatch.setenv("DDPIPE_REPORT_SECONDS", "10")
    uploads = AtOnce(lambda: now[0] - 1000)
    given = keep_journal(open_store(str(tmp_path)), cast("Uploads", uploads), step=0, done=(0, 20))
    with caplog.at_level(logging.INFO), given as kept:
        assert kept
        for step in range(1, 15):
            now[0] += 5
            kept.step(step, step, 20, None)
            if step == 9:
                kept.epoch([{**an_epoch(1), "validation_top5": 0.9}], [0.5] * 3, [0.1] * 3, 2)
    assert [at for at, kind in uploads.seen if kind == "progress.txt"] == [10, 20, 30, 40, 50, 60, 70]
    assert (tmp_path / "progress.txt").read_text() == "progress=0.7 step=14 accuracy=0.75"
    assert caplog.messages == [
        "progress=0.2 step=4",
        "progress=0.4 step=8",
        "epoch=1/2 val_accuracy=.750 val_top5=.900 val_loss=2.250 train_loss=.500 0.3 s",
        "progress=0.7 step=14 accuracy=0.75",
    ]


def test_a_terminal_has_no_lines_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("REPORT_SECONDS", "LINE_SECONDS"):
        monkeypatch.setattr(journal, name, 0.0)
    monkeypatch.setattr(sys, "stdout", Terminal())
    with caplog.at_level(logging.INFO):
        journal_of_a_training(tmp_path)
    assert not caplog.messages
    assert (tmp_path / "progress.txt").exists()


def test_every_epoch_is_one_line_of_json(tmp_path: Path) -> None:
    journal_of_a_training(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [an_epoch(1), an_epoch(2)]


def events(folder: Path, name: str) -> list[tuple[int, float]]:
    """Step and value of each point of a curve."""
    found = EventAccumulator(str(folder / "tensorboard")).Reload().Scalars(name)
    return [(event.step, pytest.approx(event.value)) for event in found]


def test_tensorboard_shows_each_step_once_after_a_kill(tmp_path: Path) -> None:
    """The first process wrote records of both epochs and died; the next one resumes in the second."""
    journal_of_a_training(tmp_path)
    journal_of_a_training(tmp_path, start=3)
    assert events(tmp_path, "step/loss") == [(step, step - 1) for step in range(1, 7)]
    assert events(tmp_path, "step/learning_rate") == [(step, (step - 1) / 100) for step in range(1, 7)]
    assert events(tmp_path, "epoch/validation_accuracy") == [(3, 0.75), (6, 0.75)]
    assert events(tmp_path, "epoch/epoch") == [(3, 1), (6, 2)]


def test_a_rank_that_writes_nothing_has_no_journal(tmp_path: Path) -> None:
    with keep_journal(open_store(str(tmp_path)), None, step=0, done=(0, 1)) as journal:
        assert journal is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("step", "images"), [(0, 0), (1, 3), (2, 6), (3, 10), (4, 13), (6, 20)])
def test_each_batch_of_an_epoch_counts_what_it_holds(step: int, images: int) -> None:
    assert images_seen(step, SAMPLES, BATCH) == images


CPU = torch.device("cpu")


class Clock:
    """Two clocks that somebody else moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = 0.0
        monkeypatch.setattr(journal.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(journal.time, "process_time", lambda: self.cpu)
        monkeypatch.setattr(journal, "cpus", lambda: 4)


def test_share_of_time_waiting_for_data_is_reported_per_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    measured = ResourceUsage(CPU)

    def batches(wait: float) -> itertools.count[int]:
        for number in range(3):
            clock.now += wait
            yield number

    for wait, share in ((1.0, 0.25), (3.0, 0.5)):
        assert [number for number in timed(batches(wait), measured.waited) if clock_moves(clock)] == [0, 1, 2]
        assert measured.epoch()["data_wait"] == share


def clock_moves(clock: Clock) -> bool:
    """A step of training: three seconds, on two of the four CPUs."""
    clock.now, clock.cpu = clock.now + 3, clock.cpu + 6
    return True


def test_the_share_of_the_cpus_is_of_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    measured = ResourceUsage(CPU)
    clock_moves(clock)
    assert measured.epoch()["cpu"] == 0.5


def test_what_a_process_used_of_a_gpu_is_the_peak_of_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gpu, reset = Clock(monkeypatch), torch.device("cuda", 0), list[torch.device]()
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {gpu: 700}.__getitem__)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    monkeypatch.setattr(journal.resource, "getrusage", lambda _who: SimpleNamespace(ru_maxrss=3))
    measured = ResourceUsage(gpu)
    measured.waited(1.0)
    clock.now, clock.cpu = 3.0, 1.0
    kilobytes = 1 if sys.platform == "darwin" else 1024
    expected = {"data_wait": 0.3333, "cpu": 0.0833, "memory": 3 * kilobytes, "gpu_memory": 700}
    assert measured.epoch() == expected
    assert reset == [gpu, gpu]


def test_memory_is_in_bytes_and_without_gpus_where_there_are_none() -> None:
    used = ResourceUsage(CPU).epoch()
    assert 50e6 < used["memory"] < 1e12
    assert "gpu_memory" not in used


def test_a_summary_adds_up_all_attempts() -> None:
    history = [{"data_wait": 0.1, "cpu": 0.5, "memory": 10}, {"data_wait": 0.3, "cpu": 0.7, "memory": 30}]
    attempts = [{"nodes": 2, "seconds": 1800}, {"nodes": 1, "seconds": 3600}]
    assert summarized(history, attempts) == {
        "node_hours": 2,
        "data_wait": 0.2,
        "cpu": 0.6,
        "memory": 30,
    }


def test_a_summary_has_no_more_digits_than_a_person_reads() -> None:
    history = [{"cpu": 0.1, "gpu_memory": 7}, {"cpu": 0.2, "gpu_memory": 9}, {"cpu": 0.2}]
    assert summarized(history, [{"nodes": 1, "seconds": 1.0}]) == {
        "node_hours": 0.000278,
        "cpu": 0.1667,
        "gpu_memory": 9,
    }


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        (0.0, ".000"),
        (0.99949, ".999"),
        (1.0, "1.000"),
        (999.4, "999.400"),
        (1000.0, "1e+03"),
        (-0.5, "-0.500"),
    ],
)
def test_a_line_of_an_epoch_shows_few_digits_of_any_number(loss: float, shown: str) -> None:
    record = {"epoch": 1, "seconds": 0.25, "train_loss": loss, "validation_loss": 0.5}
    assert progress(record, 2) == f"epoch=1/2 val_loss=.500 train_loss={shown} 0.2 s"


def test_a_training_is_described_to_the_tracker_of_its_run(tmp_path: Path) -> None:
    described: list[Tracker] = []
    with uploading() as uploads:
        for given in (uploads, None):  # the ranks without uploads say nothing
            with keep_journal(open_store(str(tmp_path)), given, step=0, done=(0, 20), about=described.append):
                pass
    assert len(described) == 1


def test_the_tracker_of_the_run_gets_every_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, got = list[str](), list[list[int]]()

    @contextmanager
    def tracked(run: str) -> Iterator[SimpleNamespace]:
        runs.append(run)
        yield SimpleNamespace(epochs=lambda history: got.append([line["epoch"] for line in history]))

    monkeypatch.setattr(journal, "tracked", tracked)
    journal_of_a_training(tmp_path / "run" / "training")
    assert runs == [str(tmp_path / "run")]
    assert got == [[1], [1, 2]]
