"""How far a training is: what a script prints with one call, and what is read from anybody's lines."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

import ddpipe
from ddpipe.processes import reports as module
from ddpipe.processes.reports import Reports, duration, metrics_of


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(module, "_last_report", {})
    return iter([clock]).__next__()  # type: ignore[return-value]


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_script_prints_one_line_a_second_and_the_last_step(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in range(1, 1001):
        ddpipe.report(step=step, of=1000, loss=1 / step)
        clock.now += 0.0101
    lines = printed(capsys)
    assert lines[0] == "step=1 of=1000 loss=1"
    assert lines[-1] == "step=1000 of=1000 loss=0.001"
    assert len(lines) <= 12
    assert all(metrics_of(line)["of"] == 1000 for line in lines)


def test_other_ranks_print_nothing(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    ddpipe.report(step=1, of=2)
    assert printed(capsys) == []


def test_a_report_never_raises(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    ddpipe.report(step=object(), of=[], loss="none")  # type: ignore[arg-type]
    ddpipe.report(progress=0.42)
    assert printed(capsys) == ["progress=0.42"]


def test_speed_is_that_of_the_last_reports() -> None:
    reports = Reports()
    for second in range(0, 1000, 10):  # ten steps a second, then one
        step = 10 * second if second < 500 else 5000 + (second - 500)
        reports.take("worker-0", f"step={step} of=10000 loss=.5", second)
    found = reports.now(990)
    assert (found.step, found.metrics["loss"], found.rank) == (5490, 0.5, "worker-0")
    assert found.percent == pytest.approx(54.9)
    assert found.seconds_left == pytest.approx(4510, rel=0.01)
    assert str(found) == "54 %, 1 h 15 min left"
    assert reports.now(1020).seconds_left == pytest.approx(4480, rel=0.01)


def test_a_resumed_training_is_as_fast_as_it_is_now() -> None:
    reports = Reports()
    reports.take("worker-0", "progress=.600", 0)
    assert reports.now(0).seconds_left is None
    reports.take("worker-0", "progress=.610", 10)
    assert reports.now(10).seconds_left == pytest.approx(390)
    reports.take("worker-0", "progress=.500", 500)  # from an older checkpoint, after minutes of waiting
    assert reports.now(500).seconds_left is None
    reports.take("worker-0", "progress=.600", 600)
    assert reports.now(600).seconds_left == pytest.approx(400)


def test_what_is_silent_has_no_time_left() -> None:
    reports = Reports()
    for second in (0, 10, 20):
        reports.take("worker-0", f"progress=0.{10 + second}", second)
    assert reports.now(70).silent == 0
    assert str(reports.now(320)) == "30 %, silent for 5 min 00 s"
    reports.take("worker-1", "a line of another rank", 300)
    assert reports.now(320).silent == 0


def test_of_several_ranks_the_first_counts() -> None:
    reports = Reports()
    reports.take("worker-1", "step=7 of=10", 1)
    reports.take("worker-0", "step=3 of=10", 2)
    reports.take("worker-1", "step=8 of=10", 3)
    assert (reports.now(3).percent, reports.now(3).rank) == (pytest.approx(30), "worker-0")


def test_own_epochs_count_where_nothing_finer_is_reported() -> None:
    reports = Reports()
    reports.take("", "[worker-0] epoch=1/4 val_accuracy=.750 val_loss=2.250 train_loss=.500 0.3 s", 0)
    assert reports.now(0).percent == 25
    reports.take("", "[launch] progress=0.31 step=310 seconds_left=600 loss=0.5", 0)
    assert str(reports.now(60)) == "31 %, 9 min 00 s left"
    reports.take("", "[worker-0] epoch=2/4 val_accuracy=.750 val_loss=2.250 train_loss=.500 0.3 s", 0)
    assert reports.now(0).percent == pytest.approx(31)


@pytest.mark.parametrize(
    "line",
    [
        "progress=7",
        "progress=nan",
        "progress=-1",
        "step=5 of=0",
        "step=11 of=10",
        "step=1" + "0" * 4000 + " of=2" + "0" * 4000,
        "progress=" + "9" * 5000,
        "step=... of=...",
        "3 downloads in progress 1",
        "\x1b[2Jprogress=\x00",
        "epoch=1/0 train_loss=.5",
        "x" * 100_000 + " step= of=",
    ],
)
def test_lines_of_others_are_taken_as_they_come(line: str) -> None:
    reports = Reports()
    assert not reports.take("worker-0", line, 1)
    assert reports.now(1).percent is None


def test_names_of_others_are_bounded() -> None:
    reports = Reports()
    for number in itertools.count():
        reports.take("worker-0", f"step=1 of=2 m{number}=1", 1)
        if number == 1000:
            break
    assert len(reports.now(1).metrics) == 100


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (
            "epoch=3 step=69 train_loss=0.27 lr=2e-05",
            {"epoch": 3, "step": 69, "train_loss": 0.27, "lr": 2e-05},
        ),
        ("Epoch 3/10: loss 0.5, 812 images", {"epoch": 3, "loss": 0.5}),
        ("epoch=3/15 val_loss=.250 0.3 s", {"epoch": 3, "val_loss": 0.25}),
        ("Epoch 1:  50%|##  | 5/10 [00:01<00:01, 5.0it/s, loss=0.5]", {"epoch": 1, "loss": 0.5}),
        ("step=3 of=4 accuracy=0.5", {"step": 3, "of": 4, "accuracy": 0.5}),
        ("loss of a connection to 10.0.0.1", {}),
        ("listening at port: 8080", {}),
        ("epoch 1 loss 2 " + "x" * 1000, {}),
        ("x" * 10_000 + " epoch 1 loss 2", {"epoch": 1, "loss": 2}),
        ("epoch 1 loss " + "9" * 400, {"epoch": 1}),
    ],
)
def test_numbers_are_read_from_the_end_of_a_line(text: str, numbers: dict[str, float]) -> None:
    assert metrics_of(text) == numbers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (59, "59 s"), (60, "1 min 00 s"), (130.2, "2 min 11 s"), (11_100, "3 h 05 min")],
)
def test_a_duration_is_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text
