"""What a person at a terminal, and a program that reads the log, see of a training."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ddpipe.storage import open_store
from ddpipe.train.batches import images_seen
from ddpipe.train.journal import keep_journal
from ddpipe.train.saver import uploading

LOG_PANEL = 75
"""Columns that the UI of Kubeflow Pipelines shows."""

SAMPLES, BATCH, STEPS = 10, 4, 6
"""Two epochs of three steps, the last of each with two images."""


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
            journal.step(seen(step), seen(STEPS))
            if step % 3 == 0:
                history = [an_epoch(epoch) for epoch in range(1, step // 3 + 1)]
                first = step - 3
                losses = [float(loss) for loss in range(first, step)]
                journal.epoch(history, losses, [loss / 100 for loss in losses], 2)


def test_a_terminal_shows_images_and_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    journal_of_a_training(tmp_path)
    shown = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert "20/20" in shown
    assert "images/s" in shown
    assert "validation_accuracy=0.7500" in shown


def test_a_resumed_training_s_bar_begins_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    journal_of_a_training(tmp_path, start=4)
    assert "14/20" in sys.stdout.getvalue()  # type: ignore[attr-defined]


def test_elsewhere_katib_finds_a_line_of_names_and_values_per_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        journal_of_a_training(tmp_path)
    assert caplog.messages == [
        f"epoch={epoch}/2 val_accuracy=.750 val_loss=2.250 train_loss=.500 0.3 s" for epoch in (1, 2)
    ]
    assert all(len(f"[worker-0] {line}") <= LOG_PANEL for line in caplog.messages)


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


@pytest.mark.parametrize(("step", "images"), [(0, 0), (1, 4), (2, 8), (3, 10), (4, 14), (6, 20)])
def test_the_last_batch_of_an_epoch_counts_what_it_holds(step: int, images: int) -> None:
    assert images_seen(step, SAMPLES, BATCH) == images
