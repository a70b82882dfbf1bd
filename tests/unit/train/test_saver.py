"""Saving while training continues: what is written is the state when saving was requested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from ddpipe.model.checkpoint import Checkpoint, claim, latest
from ddpipe.storage import Store, open_store
from ddpipe.train import saver as module
from ddpipe.train.saver import Saver, Uploads


class Later:
    """Uploads that wait until a test has them written."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[], object]] = {}

    def put(self, kind: str, write: Callable[[], object]) -> None:
        self.waiting[kind] = write

    def finish(self) -> None:
        for kind in list(self.waiting):
            self.waiting.pop(kind)()


def a_checkpoint(step: int, weight: Tensor) -> Checkpoint:
    return Checkpoint(
        step=step,
        epoch=0,
        recipe={},
        dataset_id="d" * 64,
        network={},
        world_size=2,
        states={"model": {"w": weight}, "optimizer": {"groups": [{"lr": 0.1}, weight], "betas": (weight, 3)}},
        history=[{"epoch": 1}],
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


@pytest.fixture
def later() -> Later:
    return Later()


def a_saver(
    store: Store, later: Later, start: Checkpoint | None = None, lineage: dict[str, str] | None = None
) -> Saver:
    uploads = cast("Uploads", later)
    return Saver(claim(store, None), uploads, start=start, world_size=2, nodes=1, lineage=lineage or {})


def written(store: Store) -> Checkpoint:
    found = latest(store)
    assert found
    return found


def test_what_changes_after_saving_was_asked_for_is_not_in_it(store: Store, later: Later) -> None:
    weight = torch.ones(3)
    checkpoint, saver = a_checkpoint(1, weight), a_saver(store, later)
    saver.save(checkpoint)
    weight.add_(1)
    checkpoint.history.append({"epoch": 2})
    later.finish()
    found = written(store)
    kept = [found.states["model"]["w"], found.states["optimizer"]["groups"][1]]
    assert all(torch.equal(one, torch.ones(3)) for one in [*kept, found.states["optimizer"]["betas"][0]])
    assert found.states["optimizer"]["groups"][0] == {"lr": 0.1}
    assert found.states["optimizer"]["betas"][1] == 3
    assert isinstance(found.states["optimizer"]["betas"], tuple)
    assert found.history == [{"epoch": 1}]


def test_waiting_checkpoint_is_replaced_by_a_newer_or_better_one(store: Store, later: Later) -> None:
    saver = a_saver(store, later)
    for step in range(1, 5):
        saver.save(a_checkpoint(step, torch.ones(1)), best=step < 3)
    later.finish()
    assert sorted(path.name for path in Path(store.uri).rglob("*.pt")) == [
        "step-00000002.pt",
        "step-00000004.pt",
    ]
    assert saver.result(best=True).step == 2
    assert saver.result(best=False).step == 4


def test_without_a_best_one_the_last_is_the_result(store: Store, later: Later) -> None:
    saver = a_saver(store, later)
    saver.save(a_checkpoint(1, torch.ones(1)))
    later.finish()
    assert saver.result(best=True).step == 1


def test_every_attempt_records_its_start_and_cost(
    store: Store, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    saver = a_saver(store, later)
    now[0] = 107.5
    saver.save(a_checkpoint(4, torch.ones(1)))
    first = {"step": 0, "world_size": 2, "nodes": 1, "before": 0.0, "seconds": 7.5}
    assert saver.attempts() == [first]
    later.finish()
    following = a_saver(store, later, start=written(store))
    now[0] = 109.5
    assert following.attempts() == [first, {**first, "step": 4, "seconds": 2.0}]


def test_record_of_a_training_is_kept_and_extended(store: Store, later: Later) -> None:
    start = replace(a_checkpoint(1, torch.ones(1)), lineage={"warm_start": "abc", "job": "old"})
    saver = a_saver(store, later, start=start, lineage={"job": "new"})
    assert saver.lineage == {"warm_start": "abc", "job": "new"}
    saver.save(a_checkpoint(2, torch.ones(1)))
    later.finish()
    assert written(store).lineage == saver.lineage
