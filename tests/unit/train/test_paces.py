"""How many processes train: what has been timed decides, and a training ends for another number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from recipes import plain
from samples import published, some_images
from stored import latest

from ddpipe.distributed import World
from ddpipe.storage import open_store
from ddpipe.train import paces
from ddpipe.train.loop import Trainer
from ddpipe.train.paces import PACES, PaceTimer, next_number, paces_of
from ddpipe.train.saver import Uploads
from ddpipe.train.timetable import Timetable
from ddpipe.train.train import train

RECIPE = plain(epochs=4, batch_size=4)
STEADY = 5  # steps after which a process knows its pace, in these tests


@pytest.mark.parametrize(
    ("known", "most", "number"),
    [
        ({}, 8, 1),
        ({}, 1, 1),
        ({1: 100.0}, 8, 2),
        ({1: 100.0}, 2, 2),
        ({1: 100.0}, 1, 1),
        ({1: 100.0, 2: 150.0}, 8, 4),
        ({1: 100.0, 2: 150.0}, 4, 4),
        ({1: 100.0, 2: 150.0}, 3, 2),
        ({1: 100.0, 2: 105.0}, 8, 1),
        ({1: 100.0, 2: 105.1}, 8, 4),
        ({1: 100.0, 2: 150.0, 4: 150.0}, 8, 2),
        ({2: 150.0, 1: 100.0, 4: 200.0}, 8, 8),
        ({1: 100.0, 2: 150.0, 4: 200.0, 8: 150.0}, 64, 4),
        ({1: 100.0, 2: 150.0, 4: 200.0, 8: 300.0}, 2, 2),
        ({2: 0.5}, 8, 4),
        ({0: 1e9, -1: 1e9, 1_000_000: 1e9}, 4, 1),
    ],
)
def test_twice_as_many_are_tried_while_that_is_faster(
    known: dict[int, float], most: int, number: int
) -> None:
    assert next_number(known, most) == number


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"a": 1}', b'{"1": null}', b'{"1": 1%s}' % (b"0" * 400), b"[" * 100_000]
)
def test_a_damaged_file_means_that_nothing_was_timed(tmp_path: Path, content: bytes) -> None:
    store = open_store(str(tmp_path))
    assert paces_of(store) == {}
    store.write(PACES, content)
    assert paces_of(store) == {}


@pytest.mark.parametrize(
    ("device", "left", "written", "is_restarted"),
    [
        ("cpu", 120.0, {"1": 50.0, "2": 333.3}, True),
        ("cpu", 119.9, None, False),
        ("cpu", None, None, False),
        ("cuda", 120.0, None, False),
    ],
)
def test_what_remains_is_to_be_worth_twenty_launches(
    device: str,
    left: float | None,
    written: dict[str, float] | None,
    is_restarted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With two processes, whose launch takes six seconds, on a machine of four processors."""
    monkeypatch.setattr(paces, "cpus", lambda: 4)
    store, kinds, asked = open_store(str(tmp_path)), list[str](), list[bool]()
    store.write(PACES, b'{"1": 50.0}')

    def put(kind: str, write: Callable[[], object]) -> None:
        kinds.append(kind)
        write()

    world, uploads = World(0, 2, torch.device(device)), cast("Uploads", SimpleNamespace(put=put))
    timer = PaceTimer(store, world, uploads, 6.0, lambda: asked.append(True))
    for pace, seconds in ((None, 1e6), (0.003, left), (0.003, left)):
        table = SimpleNamespace(pace=pace, seconds_left={40: seconds}.get)
        timer(cast("Trainer", SimpleNamespace(step=40, timetable=table)))
    assert json.loads(store.read(PACES)) == (written or {"1": 50.0})
    assert kinds == ([PACES] if written else [])
    assert asked == [True] * is_restarted


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    counts = {"train": 12, "validation": 12, "test": 2}
    splits = {name: [some_images(count, (8, 8, 1))] for name, count in counts.items()}
    return published(open_store(str(tmp_path / "data")), splits)


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a training that, in each process, knows its pace after some steps: 100 images a second."""
    has_begun = dict[Timetable, int]()

    def seconds_left(table: Timetable, step: int) -> float | None:
        begun = has_begun.setdefault(table, step)
        return 1000.0 if step - begun >= STEADY else None

    monkeypatch.setattr(Timetable, "seconds_left", seconds_left)
    monkeypatch.setattr(Timetable, "pace", 0.01)
    monkeypatch.setattr(paces, "cpus", lambda: 2)
    monkeypatch.setattr(paces, "LAUNCHES_WORTH", 0.001)
    return tmp_path / "training"


def test_a_training_saves_and_ends_for_another_number(
    dataset: str, output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    train(dataset, str(output), RECIPE, finds_processes=True)
    assert json.loads((output / PACES).read_text()) == {"1": 100.0}
    assert "images per second by processes: 100.0 with 1; training continues with 2" in caplog.text
    assert not (output / "training.json").exists()
    assert "trained: " not in caplog.text
    checkpoint = latest(open_store(str(output)))
    assert checkpoint
    assert checkpoint.step == STEADY + 1


def test_it_continues_if_its_number_is_known(
    dataset: str, output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(2):
        train(dataset, str(output), RECIPE, finds_processes=True)
    record = json.loads((output / "training.json").read_text())
    assert record["resumed_from"] == STEADY + 1
    assert "trained: " in caplog.text
    assert caplog.text.count("images per second by processes") == 1


def test_it_continues_without_a_processor_for_more(
    dataset: str, output: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(paces, "cpus", lambda: 1)
    caplog.set_level("INFO")
    train(dataset, str(output), RECIPE, finds_processes=True)
    assert json.loads((output / "training.json").read_text())["resumed_from"] is None
    assert json.loads((output / PACES).read_text()) == {"1": 100.0}
    assert "training continues with 1" in caplog.text


def test_it_continues_if_too_little_is_left(
    dataset: str, output: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(paces, "LAUNCHES_WORTH", 1e9)
    caplog.set_level("INFO")
    train(dataset, str(output), RECIPE, finds_processes=True)
    assert json.loads((output / "training.json").read_text())["resumed_from"] is None
    assert not (output / PACES).exists()
    assert caplog.text.count("processes: 1; too little is left to compare others") == 1


def test_it_is_not_timed_unless_that_is_asked_for(dataset: str, output: Path) -> None:
    train(dataset, str(output), RECIPE)
    assert (output / "training.json").exists()
    assert not (output / PACES).exists()
