"""Checkpoints in pieces: any number of ranks joins them, and what is not right is rejected."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from stored import latest

from ddpipe.errors import CheckpointError
from ddpipe.model.checkpoint import Checkpoint, TrainingAttempt, claim, newest
from ddpipe.model.tensors import Piece, Share, parted, rows_of, write_pieces
from ddpipe.storage import Store, open_store

WEIGHT = torch.arange(40.0).view(10, 4)
MOMENTUM = torch.arange(7.0)


def states_of(rank: int, ranks: int, scale: float = 1.0) -> dict[str, Any]:
    """As a rank has them: shares of two tensors, and small values."""
    shares = {}
    for name, whole in (("weight", WEIGHT * scale), ("momentum", MOMENTUM)):
        rows = rows_of(rank, ranks, len(whole))
        shares[name] = Share(tuple(whole.shape), rows.start, whole[rows.start : rows.stop])
    model = {"weight": shares["weight"], "mean": torch.ones(3)}
    return {"model": model, "optimizer": {"state": {0: {"buffer": shares["momentum"], "step": 5}}}}


def saved(
    store: Store, attempt: TrainingAttempt, step: int, ranks: int = 3, scale: float = 1.0
) -> Checkpoint:
    """Save as so many ranks do."""
    pieces: list[Piece] = []
    for rank in range(ranks):
        states, shares = parted(states_of(rank, ranks, scale))
        pieces += write_pieces(store, f"{attempt.folder}step-{step:08d}.rank-{rank:05d}", shares, size=20)
    checkpoint = Checkpoint(
        *(),
        step=step,
        epoch=0,
        recipe={},
        dataset_id="",
        network={},
        world_size=ranks,
        states=states,
        history=[],
        shapes={name: list(share.shape) for name, share in shares.items()},
        pieces=pieces,
    )
    attempt.save(checkpoint)
    return checkpoint


def keys(store: Store, kind: str) -> list[str]:
    return [item.key for item in store.list("checkpoints/") if kind in item.key]


@pytest.fixture
def store(store_uri: str) -> Store:
    return open_store(store_uri)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 12])
def test_pieces_of_any_number_of_ranks_are_the_whole(store: Store, ranks: int) -> None:
    saved(store, claim(store, None), 1, ranks)
    found = latest(store)
    assert found
    assert torch.equal(found.states["model"]["weight"], WEIGHT)
    assert torch.equal(found.states["model"]["mean"], torch.ones(3))
    assert torch.equal(found.states["optimizer"]["state"][0]["buffer"], MOMENTUM)
    assert found.states["optimizer"]["state"][0]["step"] == 5
    assert not found.pieces


@pytest.mark.parametrize("ranks", [1, 2, 4, 12])
def test_another_number_of_ranks_reads_its_own_rows(store: Store, ranks: int) -> None:
    saved(store, claim(store, None), 1)
    _, outline = newest(store, whole=False) or pytest.fail("nothing saved")
    assert outline.states["model"]["weight"] is None
    rows = []
    for rank in range(ranks):
        own = outline.with_shares(store, partial(rows_of, rank, ranks)).states["model"]["weight"]
        assert own.first == rows_of(rank, ranks, 10).start
        assert own.shape == (10, 4)
        rows.append(own.values)
    assert torch.equal(torch.cat(rows), WEIGHT)


def test_a_rank_reads_only_pieces_that_it_needs(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    saved(store, claim(store, None), 1)
    _, outline = newest(store, whole=False) or pytest.fail("nothing saved")
    for key in keys(store, ".rank-00002"):
        store.delete(key)
    first = outline.with_shares(store, partial(rows_of, 0, 3))
    assert torch.equal(first.states["model"]["weight"].values, WEIGHT[:4])
    with pytest.raises(CheckpointError, match=r"rank-00002-\d\.pt: it is missing"):
        outline.with_shares(store, partial(rows_of, 2, 3))


def test_the_largest_piece_is_bounded(tmp_path: Path) -> None:
    """A share is never cut; small ones are put together."""
    store, tensors = open_store(str(tmp_path)), {"a": 3, "b": 3, "c": 100, "d": 3}
    shares = {name: Share((rows,), 0, torch.ones(rows)) for name, rows in tensors.items()}
    pieces = write_pieces(store, "piece", shares, size=4 * 6)
    assert [list(piece.rows) for piece in pieces] == [["a", "b"], ["c"], ["d"]]


def test_a_piece_holds_its_rows_and_not_what_they_are_cut_from(tmp_path: Path) -> None:
    store, whole = open_store(str(tmp_path)), torch.zeros(100_000)
    (piece,) = write_pieces(store, "piece", {"a": Share((100_000,), 0, whole[:10])})
    assert len(store.read(piece.file)) < 5_000


def test_pieces_go_with_their_checkpoint(store: Store) -> None:
    attempt = claim(store, None, keep=1)
    saved(store, attempt, 1)
    early = f"{attempt.folder}step-00000003.rank-00001-0.pt"
    store.write(early, b"written while rank 0 still saves step 2")
    saved(store, attempt, 2)
    assert keys(store, "step-00000001") == []
    assert len(keys(store, "step-00000002.rank")) > 3
    assert keys(store, "step-00000003") == [early]
    saved(store, claim(store, attempt.saved[0], keep=1), 3)
    assert early not in keys(store, "")


def test_a_damaged_piece_gives_way_to_the_checkpoint_before(store: Store) -> None:
    attempt = claim(store, None)
    saved(store, attempt, 1)
    saved(store, attempt, 2, scale=2)
    store.write(keys(store, "step-00000002.rank")[1], b"else")
    for whole in (True, False):
        start, found = newest(store, whole=whole) or pytest.fail("nothing saved")
        assert (start.step, found.step) == (1, 1)


def test_a_piece_that_rank_0_does_not_see_is_an_error(store: Store) -> None:
    attempt = claim(store, None)
    checkpoint = saved(store, attempt, 1)
    elsewhere = replace(checkpoint.pieces[0], file=f"{attempt.folder}step-00000002.rank-00001-0.pt")
    with pytest.raises(CheckpointError, match=r"another rank has written it.*all machines see"):
        attempt.save(replace(checkpoint, step=2, pieces=[elsewhere]))


def _first(checkpoint: Checkpoint, **changes: Any) -> list[Piece]:
    return [replace(checkpoint.pieces[0], **changes), *checkpoint.pieces[1:]]


def _rewritten(store: Store, piece: Piece, content: object) -> Piece:
    """The piece with other content, and the hash of that."""
    file = io.BytesIO()
    torch.save(content, file)
    store.write(piece.file, file.getvalue())
    return replace(piece, sha256=hashlib.sha256(file.getvalue()).hexdigest())


class Command:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        import os  # noqa: PLC0415 - as a pickle does

        return os.system, ("touch /tmp/ddpipe-was-here",)


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda one: {"pieces": one.pieces[1:]}, "missing or duplicated"),
        (lambda one: {"pieces": [*one.pieces, one.pieces[0]]}, "missing or duplicated"),
        (lambda one: {"pieces": _first(one, file="checkpoints/../../secret")}, "not the name of a piece"),
        (lambda one: {"pieces": _first(one, file="training.json")}, "not the name of a piece"),
        (lambda one: {"pieces": _first(one, rows={"x": [0, 1]})}, "which the tensor does not have"),
        (lambda one: {"pieces": _first(one, rows={key: [-1, 1] for key in one.shapes})}, "does not have"),
        (lambda one: {"pieces": _first(one, rows={key: [0] for key in one.shapes})}, "does not have"),
        (lambda one: {"shapes": {name: [10**12, 4] for name in one.shapes}}, "missing or duplicated"),
        (lambda one: {"shapes": {name: [] for name in one.shapes}}, "has shape"),
        (lambda one: {"shapes": {name: [10, -4] for name in one.shapes}}, "has shape"),
        (lambda one: {"shapes": {name: [len_(one, name), 10**9] for name in one.shapes}}, "not have rows"),
    ],
)
def test_pieces_that_cannot_be_are_rejected(
    store: Store, change: Callable[[Checkpoint], dict[str, Any]], seen: str
) -> None:
    """A file of the store names them: it is not trusted."""
    attempt = claim(store, None)
    checkpoint = saved(store, attempt, 1)
    hostile = replace(checkpoint, step=2, **change(checkpoint))
    attempt._check_visible = lambda *_: None  # type: ignore[method-assign]
    attempt.save(hostile)
    store.delete(f"{attempt.folder}step-00000001.pt")
    with pytest.raises(CheckpointError, match=seen):
        latest(store)


def len_(checkpoint: Checkpoint, name: str) -> int:
    return checkpoint.shapes[name][0]


@pytest.mark.parametrize("content", [Command(), [], {}, {"x": 1}, {"['model']['weight']": torch.ones(2, 4)}])
def test_a_piece_with_other_content_is_rejected(store: Store, content: object) -> None:
    attempt = claim(store, None)
    checkpoint = saved(store, attempt, 1)
    pieces = [_rewritten(store, checkpoint.pieces[0], content), *checkpoint.pieces[1:]]
    attempt.save(replace(checkpoint, step=2, pieces=pieces))
    store.delete(f"{attempt.folder}step-00000001.pt")
    with pytest.raises(CheckpointError, match=r"rank-00000-0\.pt"):
        latest(store)
    assert not Path("/tmp/ddpipe-was-here").exists()  # noqa: S108 - where the command would write
