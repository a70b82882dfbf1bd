"""Training state: complete after a crash at any moment, found again, and loaded without running code.

<output>/checkpoints/0002-5f0c9a1e/                     one folder for each attempt at the training
<output>/checkpoints/0002-5f0c9a1e/step-00000120.pt     content, written first
<output>/checkpoints/0002-5f0c9a1e/latest.json          pointer, written last: the newest, by SHA-256
<output>/training.json                                  written by train when it has finished

A process that trains claims the next attempt and writes to its folder only, and the newest attempt's pointer
counts. A process that was presumed dead and still saves cannot overwrite the state of its successor, in a
folder as in a bucket, and it notices its successor before its next save. For example:

    rank 0 of pod A claims 0001 and loses the network; pod B replaces it, claims 0002 and saves step 120
    pod A returns and wants to save step 110: it lists checkpoints/, sees 0002, and raises CheckpointError
    had it listed just before B's claim, it would have written into 0001, which no reader uses any more
"""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from typing import Any, Self
from uuid import uuid4

import torch

from ddpipe.data.typed import typed
from ddpipe.errors import CheckpointError, NoSuchObject, check_schema
from ddpipe.model.tensors import (
    Piece,
    Rows,
    UnreadableError,
    check_files,
    check_rows,
    joined,
    proven,
    read_shares,
    read_tensors,
)
from ddpipe.model.training_record import RECORD, RECORD_SCHEMA
from ddpipe.storage import Store
from ddpipe.storage.sealed import sha256

SCHEMA = 2
_FOLDER = "checkpoints/"
_POINTER = "latest.json"
_ATTEMPT = re.compile(r"checkpoints/(\d{4,}-[0-9a-f]{8})/")
_CONTENT = re.compile(_ATTEMPT.pattern + r"step-(\d{8,})\.pt")
_PIECE = re.compile(_ATTEMPT.pattern + r"step-(\d{8,})\.rank-\d{5,}-\d+\.pt")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All that rebuilds the model and resumes bit for bit: draws are keyed by seed, epoch, step and rank."""

    step: int  # optimizer steps taken
    epoch: int  # epochs finished
    recipe: dict[str, Any]  # the hyperparameters, with the seed
    dataset_id: str  # of the dataset version trained on
    network: dict[str, Any]  # `name`, `shape` (H, W, C) and `classes`, as `classifier.build` takes them
    # Processes that trained. Another number may resume; bits are equal at the same number only.
    world_size: int
    # State dicts of "model" and "optimizer", and what else the training loop keeps, on the CPU
    states: dict[str, Any]
    history: list[dict[str, Any]]  # one record for each finished epoch
    seconds: float = 0.0  # spent in the unfinished epoch
    # One record for each process group that trained so far: `step`, `world_size` and `nodes` it began with,
    # its `seconds`, and those of the run `before` it trained
    attempts: list[dict[str, Any]] = field(default_factory=list)
    # How many steps the training takes, as decided from which step on: [[step, steps], …]
    schedule: list[list[int]] = field(default_factory=list)
    # `run`, `job` and `image` from the environment; and `warm_start`, the id of the model whose weights it
    # started from
    lineage: dict[str, str] = field(default_factory=dict)
    # Of tensors whose ranks wrote their own shares (`tensors.py`), by their places in the states, which are
    # None there
    shapes: dict[str, list[int]] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)  # the files with these shares
    schema: int = SCHEMA

    def with_shares(self, store: Store, wanted: Callable[[int], Rows]) -> Checkpoint:
        """The checkpoint with a `Share` of each tensor that is in pieces: the rows `wanted` of so many."""
        try:
            shares = read_shares(store, self.pieces, self.shapes, wanted)
        except UnreadableError as problem:
            raise _error_for_unreadable(store, str(problem)) from problem
        return replace(self, states=joined(self.states, shares))


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint in its store, as pointers and training.json name it."""

    file: str
    sha256: str
    step: int
    best: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `asdict`; raises ValueError for what no pointer says."""
        saved = typed(cls, values)
        if not _CONTENT.fullmatch(saved.file):
            raise ValueError(f"{saved.file!r} is not the name of a checkpoint")
        return saved


class TrainingAttempt:
    """The right to write a training's checkpoints, until another process claims it."""

    def __init__(self, store: Store, name: str, saved: Sequence[Saved], keep: int) -> None:
        """For `claim`: an attempt that keeps the last `keep` checkpoints, and the best."""
        self._store, self._name, self._keep = store, name, keep
        self.folder = f"{_FOLDER}{name}/"
        self.saved = tuple(saved)

    def save(self, checkpoint: Checkpoint, *, best: bool = False) -> Saved:
        """Write a checkpoint unless it is there, then the pointer to it, then delete those no longer kept."""
        stored = [item.key for item in self._store.list(_FOLDER)]
        self.check_newest(stored)
        for one in self.saved:
            if one.step == checkpoint.step and (one.best or not best):
                return one
        self._check_visible(checkpoint, stored)
        content = io.BytesIO()
        torch.save(_as_saved(checkpoint), content)
        data = content.getvalue()
        new = Saved(f"{self.folder}step-{checkpoint.step:08d}.pt", sha256(data), checkpoint.step, best)
        # Content, pointer, then what no pointer names any more: whenever this ends, the pointer is right.
        self._store.write(new.file, data)
        self.saved = self._kept(new)
        self.point()
        for key in stored:
            if not self._is_kept(key, checkpoint.step):
                self._store.delete(key)
        return new

    def _is_kept(self, key: str, step: int) -> bool:
        """Whether it is the pointer, of a checkpoint that the pointer names, or a piece of a later one."""
        stems = tuple(one.file.removesuffix("pt") for one in self.saved)
        piece = _PIECE.fullmatch(key)
        is_later = piece is not None and piece[1] == self._name and int(piece[2]) > step
        return key == f"{self.folder}{_POINTER}" or key.startswith(stems) or is_later

    def point(self) -> None:
        """Write the pointer."""
        pointer = {"schema": SCHEMA, "checkpoints": [asdict(one) for one in self.saved]}
        self._store.write(f"{self.folder}{_POINTER}", json.dumps(pointer).encode())

    def _kept(self, new: Saved) -> tuple[Saved, ...]:
        # A checkpoint that is no longer the best is still one of the last.
        others = [replace(one, best=one.best and not new.best) for one in self.saved if one.step != new.step]
        newest_first = sorted([new, *others], key=lambda one: -one.step)
        return tuple(one for place, one in enumerate(newest_first) if place < self._keep or one.best)

    def _check_visible(self, checkpoint: Checkpoint, stored: Sequence[str]) -> None:
        if missing := {piece.file for piece in checkpoint.pieces} - set(stored):
            raise CheckpointError(
                what="the training cannot be saved",
                which=f"{self._store.uri}/{min(missing)}",
                seen="another rank has written it, and rank 0 does not see it",
                do="Name an output that all machines see: a bucket, or a folder on a shared volume.",
            )

    def check_newest(self, stored: Sequence[str] = ()) -> None:
        """Raise CheckpointError if another process has taken over this training; `stored` saves a request."""
        stored = stored or [item.key for item in self._store.list(_FOLDER)]
        newest = max(_attempts(stored), default=(0, self._name))[1]
        if _order(newest) > _order(self._name):
            raise CheckpointError(
                what="another process has taken over this training",
                which=f"{self._store.uri}/{_FOLDER}{self._name}",
                seen=f"attempt {newest} began after this one",
                do="Let that process finish, or start another training in another folder.",
            )


def claim(store: Store, start: Saved | None, keep: int = 2) -> TrainingAttempt:
    """Take over a training, from the checkpoint `start` or from the beginning."""
    stored = [item.key for item in store.list(_FOLDER)]
    number = max((number for number, _ in _attempts(stored)), default=0) + 1
    kept = _up_to(start, store, stored) if start else ()
    attempt = TrainingAttempt(store, f"{number:04d}-{uuid4().hex[:8]}", kept, keep)
    # The pointer is what others see of a claim: an earlier attempt gives up before its next save.
    attempt.point()
    return attempt


def _up_to(start: Saved, store: Store, stored: Sequence[str]) -> list[Saved]:
    """`start` and what was pointed at together with it and is not newer; no best one that is damaged."""
    together = next(entries for entries in _pointers(store, stored) if start in entries)
    kept = [one for one in together if one.step <= start.step]
    for best in [one for one in kept if one.best and one != start]:
        try:
            _load(store, best, whole=False)
        except UnreadableError as problem:
            _log.warning("the best checkpoint is lost: %s/%s: %s", store.uri, best.file, problem)
            kept.remove(best)
    return kept


def newest(store: Store, *, whole: bool = True) -> tuple[Saved, Checkpoint] | None:
    """The newest checkpoint below `store` that is undamaged, or None if nothing was ever saved."""
    problems: dict[str, str] = {}
    for saved in chain.from_iterable(_pointers(store, [item.key for item in store.list(_FOLDER)])):
        if saved.file in problems:
            continue
        try:
            return saved, _load(store, saved, whole=whole)
        except UnreadableError as problem:
            problems[saved.file] = f"{saved.file}: {problem}"
            _log.warning("skipping a checkpoint: %s/%s", store.uri, problems[saved.file])
    if problems:
        raise _error_for_unreadable(store, "; ".join(problems.values()))
    return None


def load(store: Store, saved: Saved, *, whole: bool = True) -> Checkpoint:
    """The content of one checkpoint, proven to be what was saved."""
    try:
        return _load(store, saved, whole=whole)
    except UnreadableError as problem:
        raise CheckpointError(
            what="a checkpoint cannot be read",
            which=f"{store.uri}/{saved.file}",
            seen=str(problem),
            do="Run the training again: it resumes from the previous checkpoint.",
        ) from problem


def finished(store: Store) -> Saved | None:
    """The checkpoint that a finished training names; None if it has not finished."""
    try:
        record = json.loads(store.read(RECORD))
        check_schema(record, RECORD_SCHEMA, f"{store.uri}/{RECORD}")
        return Saved.from_dict(record["checkpoint"])
    except NoSuchObject:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            what="the record of a training is malformed",
            which=f"{store.uri}/{RECORD}",
            seen=f"it names no checkpoint ({error!r})",
            do="Delete it and run the training again: it resumes from its last checkpoint.",
        ) from error


def _order(attempt: str) -> tuple[int, str]:
    """Of two attempts the larger counts; of two that began at once, whichever has the larger token."""
    return int(attempt.partition("-")[0]), attempt


def _attempts(stored: Sequence[str]) -> set[tuple[int, str]]:
    """The attempts among the keys of a listing."""
    return {_order(match[1]) for key in stored if (match := _ATTEMPT.match(key))}


def _pointers(store: Store, stored: Sequence[str]) -> Iterator[list[Saved]]:
    """What the attempts of a listing point at, the newest attempt's first."""
    for _, name in sorted(_attempts(stored), reverse=True):
        yield _entries(store, f"{_FOLDER}{name}/{_POINTER}")


def _entries(store: Store, key: str) -> list[Saved]:
    try:
        pointer = json.loads(store.read(key))
        check_schema(pointer, SCHEMA, f"{store.uri}/{key}", oldest=SCHEMA)
        return [Saved.from_dict(entry) for entry in pointer["checkpoints"]]
    except NoSuchObject:
        return []
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _error_for_unreadable(store, f"{key} is malformed ({error!r})") from error


def _as_saved(checkpoint: Checkpoint) -> dict[str, Any]:
    """What `typed` reads; without the fields of pieces if there are none, as earlier releases wrote it."""
    values = {item.name: getattr(checkpoint, item.name) for item in fields(checkpoint)}
    pieces = {"pieces": [asdict(piece) for piece in values.pop("pieces")], "shapes": values.pop("shapes")}
    return values | (pieces if pieces["pieces"] else {})


def _load(store: Store, saved: Saved, *, whole: bool = True) -> Checkpoint:
    data = proven(store, saved.file, saved.sha256)
    try:
        content = read_tensors(data)
        check_schema(content, SCHEMA, f"{store.uri}/{saved.file}", oldest=SCHEMA)
        checkpoint = typed(Checkpoint, content)
    except ValueError as error:
        raise UnreadableError(f"it is not a checkpoint ({error})") from error
    if min(checkpoint.step, checkpoint.epoch, checkpoint.world_size - 1, checkpoint.seconds) < 0:
        raise UnreadableError("it has negative counts")
    if foreign := [piece.file for piece in checkpoint.pieces if not _PIECE.fullmatch(piece.file)]:
        raise UnreadableError(f"{foreign[0]!r} is not the name of a piece")
    check_rows(checkpoint.pieces, checkpoint.shapes)
    if not whole or not checkpoint.pieces:
        check_files(store, checkpoint.pieces)
        return checkpoint
    shares = read_shares(store, checkpoint.pieces, checkpoint.shapes, range)
    states = joined(checkpoint.states, {name: share.values for name, share in shares.items()})
    return replace(checkpoint, states=states, shapes={}, pieces=[])


def _error_for_unreadable(store: Store, seen: str) -> CheckpointError:
    return CheckpointError(
        what="no checkpoint can be read",
        which=f"{store.uri}/checkpoints",
        seen=seen,
        do="Restore the files, or delete the folder to train from the start.",
    )
