"""Records of trainings of any content: read as written, or rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpipe.errors import CorruptObject
from ddpipe.model.training_record import how_far, training_record

RECORD: dict[str, Any] = {
    "recipe": {},
    "dataset_id": "d",
    "checkpoint": {"file": "f", "sha256": "s"},
    "world_size": 1,
    "device": "cpu",
    "torch": "2",
    "epochs": 1,
    "steps": 2,
    "seconds": 1.5,
    "images_per_second": 3.0,
    "resumed_from": None,
    "history": [{"epoch": 1, "train_loss": 0.5, "validation_accuracy": 1}],
    "final": {"train_loss": 0.5},
    "of a later ddpipe": {},
}


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text(json.dumps(RECORD))
    assert training_record(str(tmp_path)) == RECORD


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"history": []}, "lists no epoch"),
        ({"history": [{"epoch": "1"}]}, r"history\[0\]\.epoch is '1'"),
        ({"history": [{"epoch": 1, "train_loss": "low"}]}, "train_loss is 'low'"),
        ({"history": {}}, "history is"),
        ({"final": {"train_loss": None}}, "train_loss is None"),
        ({"checkpoint": []}, "checkpoint is"),
        ({"seconds": float("inf")}, "seconds is inf"),
        ({"world_size": True}, "world_size is True"),
    ],
)
def test_malformed_record_is_rejected(tmp_path: Path, changes: dict[str, Any], seen: str) -> None:
    (tmp_path / "training.json").write_text(json.dumps(RECORD | changes))
    with pytest.raises(CorruptObject, match=seen):
        training_record(str(tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"3", b"[" * 100_000, b"\xff"], ids=lambda one: repr(one[:9])
)
def test_record_that_is_no_object_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "training.json").write_bytes(content)
    with pytest.raises(CorruptObject, match="malformed"):
        training_record(str(tmp_path))


def test_a_training_says_how_far_it_got_and_why_it_ended() -> None:
    cut = {"images_seen": 128, "training_images": 1843, "ended": "the 2 minutes were up"}
    assert how_far(RECORD | cut) == "128 images seen: 0.0695 epochs of 1,843; the 2 minutes were up"
    assert how_far(RECORD) == ""
