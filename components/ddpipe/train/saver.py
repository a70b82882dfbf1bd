"""Saving during training: states are copied at once; one thread writes them, one at a time.

The store may be unavailable for a while: a write is retried, or replaced by the newer one of its kind.
Checkpoints of steps 100 to 400, of which step 300 is the best, and a store that is away for three minutes:

    10:00:00  step 100   waits; the thread takes it and writes it
    10:02:00  step 200   the thread's write fails: it waits again, retried every 5 s for up to 600 s
    10:03:00  step 300   the best: waits as well, because it is of another kind
    10:04:00  step 400   replaces step 200, which is never written
    10:05:00  the store answers: step 300 and step 400 are written, in the order of their steps
    10:05:01  training ends: `finish` returns, as nothing waits

If the store had still been away at 10:12:00, the next call of the training would have raised the error. A
training that fails by itself at 10:04:30 gives what waits another 20 s, and then reports its own error.

Ranks that share a model save it together: each writes its pieces before rank 0 refers to them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ddpipe.distributed import World
from ddpipe.errors import StoreError
from ddpipe.model.checkpoint import Checkpoint, Saved, TrainingAttempt
from ddpipe.model.tensors import Piece, Share, write_pieces
from ddpipe.storage import Store
from ddpipe.train.constants import LAST_WRITES, RETRY_PAUSE, STORE_PATIENCE

_log = logging.getLogger(__name__)


def patience_for(store: Store) -> float:
    """Seconds to retry writes to this store: waiting does not empty a full disk of this machine."""
    return STORE_PATIENCE if store.local_path("") is None else 0.0


class Saver:
    """Saves checkpoints, with facts about the start of the training; only rank 0 has one."""

    def __init__(
        self,
        attempt: TrainingAttempt,
        uploads: Uploads,
        *,
        start: Checkpoint | None,
        world_size: int,
        nodes: int,
        lineage: Mapping[str, str],
        before: float = 0.0,
    ) -> None:
        """Start measuring the time of this attempt."""
        self.attempt, self.uploads = attempt, uploads
        self.lineage = {**(start.lineage if start else {}), **lineage}
        self._earlier = start.attempts if start else []
        self._beginning = {
            "step": start.step if start else 0,
            "world_size": world_size,
            "nodes": nodes,
            "before": round(before, 3),
        }
        self._began = time.monotonic()

    def save(self, checkpoint: Checkpoint, *, best: bool = False) -> None:
        """Write a checkpoint in the background, in place of one that is still waiting to be written."""
        whole = replace(
            checkpoint,
            states=_copied(checkpoint.states),
            history=list(checkpoint.history),
            attempts=self.attempts(),
            lineage=self.lineage,
        )
        kind = "the best checkpoint" if best else "a checkpoint"
        self.uploads.put(kind, partial(self.attempt.save, whole, best=best))

    def attempts(self) -> list[dict[str, Any]]:
        """One record for each process group that trained so far, this one last."""
        return [*self._earlier, {**self._beginning, "seconds": round(time.monotonic() - self._began, 3)}]

    def result(self, *, best: bool) -> Saved:
        """The checkpoint of the trained model, after `finish`: the last, or the best if it is there."""
        kept = self.attempt.saved
        return next((one for one in kept if one.best and best), kept[0])


def _copied(value: Any) -> Any:  # noqa: ANN401 - state dicts hold anything
    """The same values in memory of their own, tensors on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value] if isinstance(value, list) else tuple(map(_copied, value))
    return value


class Uploads:
    """Writes that wait, the newest of each kind; a failed one is repeated for `patience` seconds."""

    def __init__(self, patience: float = STORE_PATIENCE, pause: float = RETRY_PAUSE) -> None:
        """Start the thread."""
        self._patience, self._pause = patience, pause
        self._waiting: dict[str, Callable[[], object]] = {}
        self._busy = self._closed = False
        self._away_since: float | None = None
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
        self._thread.start()

    def put(self, kind: str, write: Callable[[], object]) -> None:
        """Have something written, in place of what is still waiting of its kind."""
        with self._changed:
            self.check()
            self._waiting.pop(kind, None)  # the newer one takes its turn: a checkpoint after earlier steps
            self._waiting[kind] = write
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the error of a write that failed permanently, if there is one."""
        if self._error:
            raise self._error

    def finish(self, seconds: float | None = None) -> None:
        """Wait until everything is written, or for so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or not (self._waiting or self._busy), seconds)
            self.check()

    def close(self) -> None:
        """Accept no more writes; the current one may end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while job := self._next():
            kind, write = job
            failure: BaseException | None = None
            try:
                write()
            except BaseException as error:  # noqa: BLE001 - raised where the owner asks
                failure = error
            self._done(kind, write, failure)

    def _next(self) -> tuple[str, Callable[[], object]] | None:
        with self._changed:
            if self._away_since is not None:
                self._changed.wait_for(lambda: self._closed, self._pause)
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            kind = next(iter(self._waiting))  # the one that waits longest
            self._busy = True
            return kind, self._waiting.pop(kind)

    def _done(self, kind: str, write: Callable[[], object], failure: BaseException | None) -> None:
        with self._changed:
            self._busy = False
            if failure is None:
                if self._away_since is not None:
                    _log.warning("the store is available again: %s written", kind)
                self._away_since = None
            elif isinstance(failure, StoreError) and self._may_wait(failure):
                # Unless a newer one of its kind has come meanwhile: that one replaces it.
                if kind not in self._waiting:
                    self._waiting = {kind: write, **self._waiting}
            else:
                self._error, self._closed = failure, True
            self._changed.notify_all()

    def _may_wait(self, failure: StoreError) -> bool:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            _log.warning("not written, retrying for up to %.0f s: %s", self._patience, failure)
        return now - self._away_since < self._patience


@contextmanager
def uploading(patience: float = STORE_PATIENCE, pause: float = RETRY_PAUSE) -> Iterator[Uploads]:
    """Uploads that are all written in the end; if the body fails, those that `LAST_WRITES` suffices for."""
    uploads = Uploads(patience, pause)
    try:
        yield uploads
        uploads.finish()
    except BaseException:
        # The first error is the cause.
        with suppress(Exception):
            uploads.finish(LAST_WRITES)
        raise
    finally:
        uploads.close()


class SharedSaver:
    """Writes the shares of all ranks; every rank has one."""

    def __init__(self, store: Store, world: World, saver: Saver | None) -> None:
        """For the training in this store, whose checkpoints `saver` writes on rank 0."""
        self._store, self._world, self._saver = store, world, saver
        self._step, self._pieces = -1, list[Piece]()

    def write(self, step: int, shares: Mapping[str, Share]) -> list[Piece]:
        """Write this rank's shares of the weights, once for each step; every rank calls this."""
        if shares and step != self._step:
            folder = self._world.decided(lambda: self._saver.attempt.folder if self._saver else "")
            stem = f"{folder}step-{step:08d}.rank-{self._world.rank:05d}"
            own: list[Piece] = []
            with uploading(patience_for(self._store)) as uploads:
                uploads.put(
                    "a share of a checkpoint", lambda: own.extend(write_pieces(self._store, stem, shares))
                )
            ranks = self._world.collected(own)
            self._step, self._pieces = step, [piece for pieces in ranks for piece in pieces]
        return self._pieces
