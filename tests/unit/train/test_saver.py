"""Saving while training continues: what is written is the state when saving was requested.

Writes behind training's back: one at a time, the newest of each kind, to a store that may be away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from s3_server import BUCKET, Server
from stored import latest
from torch import Tensor

from ddpipe.distributed import World
from ddpipe.errors import CheckpointError, NotWritable, StoreError, Unreachable
from ddpipe.model.checkpoint import Checkpoint, claim
from ddpipe.model.tensors import Share, read_shares
from ddpipe.storage import Store, open_store
from ddpipe.train import saver
from ddpipe.train import saver as module
from ddpipe.train.saver import Saver, SharedSaver, Uploads, patience_for, uploading


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
    store: Store,
    later: Later,
    start: Checkpoint | None = None,
    lineage: dict[str, str] | None = None,
    **more: float,
) -> Saver:
    attempt, uploads = claim(store, None), cast("Uploads", later)
    return Saver(attempt, uploads, start=start, world_size=2, nodes=1, lineage=lineage or {}, **more)


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
    following = a_saver(store, later, start=written(store), before=0.12345)
    now[0] = 109.50049
    assert following.attempts() == [first, {**first, "step": 4, "before": 0.123, "seconds": 2.0}]


def test_record_of_a_training_is_kept_and_extended(store: Store, later: Later) -> None:
    start = replace(a_checkpoint(1, torch.ones(1)), lineage={"warm_start": "abc", "job": "old"})
    saver = a_saver(store, later, start=start, lineage={"job": "new"})
    assert saver.lineage == {"warm_start": "abc", "job": "new"}
    saver.save(a_checkpoint(2, torch.ones(1)))
    later.finish()
    assert written(store).lineage == saver.lineage


AWAY = Unreachable(what="the store", which="s3://a", seen="503", do="Wait.")

FOREVER = 10**6


class Away:
    """A write that fails so many times."""

    def __init__(self, times: int) -> None:
        self.left, self.done = times, False

    def __call__(self) -> None:
        self.left -= 1
        if self.left >= 0:
            raise AWAY
        self.done = True


def test_all_that_was_put_is_written_in_the_end() -> None:
    written: list[int] = []
    with uploading() as uploads:
        for number in range(3):
            uploads.put(f"kind {number}", lambda number=number: written.append(number))
    assert written == [0, 1, 2]


def test_uploads_keep_the_newest_waiting_write_of_a_kind() -> None:
    began, finish = threading.Event(), threading.Event()
    written: list[str] = []

    def slow() -> None:
        began.set()
        assert finish.wait(60)
        written.append("first")

    with uploading() as uploads:
        uploads.put("checkpoint", slow)
        assert began.wait(60)
        for name in ("second", "third"):
            uploads.put("checkpoint", lambda name=name: written.append(name))
        uploads.put("metrics", lambda: written.append("metrics"))
        assert not written
        finish.set()
    assert written == ["first", "third", "metrics"]


def test_writes_are_in_the_order_in_which_they_were_put() -> None:
    """A checkpoint of step 400 that replaces one of step 200 is written after the best, of step 300.

    Else the pieces of step 300 would count as those of a step that is no longer kept.
    """
    failed, away = threading.Event(), threading.Event()
    written: list[int] = []

    def write(step: int) -> None:
        if not away.is_set():
            failed.set()
            assert away.wait(60)
            raise AWAY
        written.append(step)

    with uploading(pause=0) as uploads:
        uploads.put("a checkpoint", lambda: write(200))
        assert failed.wait(60)
        for step, kind in ((250, "a checkpoint"), (300, "the best"), (400, "a checkpoint")):
            uploads.put(kind, lambda step=step: write(step))
        away.set()
    assert written == [300, 400]


def test_a_store_that_was_away_is_ridden_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    write = Away(5)
    with caplog.at_level(logging.WARNING), uploading(pause=0) as uploads:
        uploads.put("checkpoint", write)
        uploads.check()
    assert write.done
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "not written, retrying for up to 600 s",
        "the store is available again",
    ]
    assert "503" in caplog.records[0].message


def test_a_write_that_fails_makes_way_for_the_newer_one() -> None:
    failed, old, new = threading.Event(), Away(FOREVER), Away(0)

    def failing() -> None:
        failed.set()
        old()

    with uploading(pause=0.05) as uploads:
        uploads.put("checkpoint", failing)
        assert failed.wait(60)
        uploads.put("checkpoint", new)
    assert new.done


def test_a_store_that_is_away_for_too_long_ends_the_training() -> None:
    with pytest.raises(StoreError, match="503"), uploading(patience=0.05, pause=0.01) as uploads:
        uploads.put("checkpoint", Away(FOREVER))


def test_a_write_without_patience_is_tried_once() -> None:
    write = Away(FOREVER)
    with pytest.raises(StoreError, match="503"), uploading(patience=0, pause=0) as uploads:
        uploads.put("checkpoint", write)
    assert write.left == FOREVER - 1


def test_the_thread_that_writes_ends_with_its_training_and_keeps_no_process() -> None:
    with uploading() as uploads:
        assert uploads._thread.daemon
    uploads._thread.join(60)
    assert not uploads._thread.is_alive()


@pytest.mark.timeout(300)
def test_a_training_that_failed_does_not_wait_long_for_a_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saver, "LAST_WRITES", 0.05)

    def training() -> None:
        with uploading(pause=0.01) as uploads:
            uploads.put("checkpoint", Away(FOREVER))
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        training()


@pytest.mark.timeout(300)  # half of the wait for a store that is away
def test_a_local_store_fails_at_once(tmp_path: Path) -> None:
    """Nobody frees a full disk while training waits, and what was trained would be lost after 600 s."""
    (tmp_path / "file").touch()
    store = open_store(str(tmp_path / "file" / "run"))
    with pytest.raises(NotWritable), uploading(patience_for(store)) as uploads:
        uploads.put("checkpoint", lambda: store.write("a", b""))


@pytest.mark.timeout(300)
def test_a_share_of_a_checkpoint_fails_at_once_in_a_local_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    alone = World(0, 1, torch.device("cpu"))
    shared = SharedSaver(open_store(str(tmp_path / "file" / "run")), alone, None)
    with pytest.raises(NotWritable):
        shared.write(1, {"weight": Share((2,), 0, torch.ones(2))})


def test_shares_are_written_once_for_each_step_into_the_folder_of_the_attempt(
    store: Store, later: Later
) -> None:
    """The best checkpoint and the last may be of one step."""
    saver = a_saver(store, later)
    shared = SharedSaver(store, World(0, 1, torch.device("cpu")), saver)
    rows, folder = torch.arange(6.0).view(3, 2), saver.attempt.folder
    shares = {"weight": Share((3, 2), 0, rows)}
    (piece,) = pieces = shared.write(7, shares)
    assert (piece.file, piece.rows) == (f"{folder}step-00000007.rank-00000-0.pt", {"weight": [0, 3]})
    found = read_shares(store, pieces, {"weight": (3, 2)}, range)
    assert torch.equal(found["weight"].values, rows)
    store.delete(piece.file)
    assert shared.write(7, shares) == pieces
    assert not list(store.list(piece.file))
    assert [one.file for one in shared.write(8, shares)] == [f"{folder}step-00000008.rank-00000-0.pt"]
    assert SharedSaver(store, World(0, 1, torch.device("cpu")), saver).write(1, {}) == []


def test_a_bucket_may_come_back(s3: Server) -> None:
    assert patience_for(open_store(f"s3://{BUCKET}/runs")) == 600


def test_an_error_that_waiting_cannot_fix_is_raised_at_the_next_call() -> None:
    def superseded() -> None:
        raise CheckpointError(what="taken over", which="a", seen="b", do="c")

    uploads = Uploads()
    uploads.put("checkpoint", superseded)
    with pytest.raises(CheckpointError, match="taken over"):
        uploads.finish()
    with pytest.raises(CheckpointError, match="taken over"):
        uploads.check()
    with pytest.raises(CheckpointError, match="taken over"):
        uploads.put("checkpoint", superseded)


def test_failed_training_writes_what_waits_and_raises_its_error() -> None:
    write = Away(1)

    def training() -> None:
        with uploading(pause=0) as uploads:
            uploads.put("checkpoint", write)
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        training()
    assert write.done


def test_outages_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two outages, each shorter than the patience, both together longer."""
    now = [0.0]
    monkeypatch.setattr(saver.time, "monotonic", lambda: now[0])

    def failing(seconds: float) -> None:
        now[0] += seconds
        if seconds:
            raise AWAY

    with uploading(patience=600, pause=0) as uploads:
        for _ in range(3):
            seconds = iter((0.1, 400.0, 0.0))
            uploads.put("checkpoint", lambda seconds=seconds: failing(next(seconds)))
            uploads.finish()
    assert now[0] > 2 * 600 / 2
