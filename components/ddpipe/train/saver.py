"""Saving while training goes on: states are copied at once and written by another thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ddpipe.model.checkpoint import Attempt, Checkpoint, Saved
from ddpipe.train.uploads import Uploads


class Saver:
    """What rank 0 saves by; the other ranks have none.

    Attributes:
        lineage: What only the one who started the training knows.
    """

    def __init__(
        self,
        attempt: Attempt,
        uploads: Uploads,
        *,
        start: Checkpoint | None,
        world_size: int,
        nodes: int,
        lineage: Mapping[str, str],
    ) -> None:
        """Save for `attempt`, which goes on from `start`, on `nodes` machines; its time begins now."""
        self._attempt, self._uploads = attempt, uploads
        self.lineage = {**(start.lineage if start else {}), **lineage}
        self._earlier = start.attempts if start else []
        self._beginning = {"step": start.step if start else 0, "world_size": world_size, "nodes": nodes}
        self._began = time.monotonic()

    def save(self, checkpoint: Checkpoint, *, best: bool = False) -> None:
        """Have a checkpoint written; one that is still waiting to be written makes way for it.

        Args:
            checkpoint: Its tensors may change as soon as this returns.
            best: Whether it is the best so far; the best is kept as well as the last ones.

        Raises:
            CheckpointError: Another process has taken this training over.
            StoreError: The store was away for too long.
        """
        whole = replace(
            checkpoint,
            states=_copied(checkpoint.states),
            history=list(checkpoint.history),
            attempts=self.attempts(),
            lineage=self.lineage,
        )
        kind = "the best checkpoint" if best else "a checkpoint"
        self._uploads.put(kind, partial(self._attempt.save, whole, best=best))

    def check(self) -> None:
        """Raise what saving failed with for good, if it did."""
        self._uploads.check()

    def finish(self) -> None:
        """Wait until everything is written."""
        self._uploads.finish()

    def attempts(self) -> list[dict[str, Any]]:
        """One record for each process group that trained so far, this one last."""
        return [*self._earlier, {**self._beginning, "seconds": round(time.monotonic() - self._began, 3)}]

    def result(self, *, best: bool) -> Saved:
        """The checkpoint of the trained model, after `finish`: the last, or the best if it is there."""
        kept = self._attempt.saved
        return next((one for one in kept if one.best and best), kept[0])

    def check_newest(self) -> None:
        """Raise CheckpointError if another process has taken this training over."""
        self._attempt.check_newest()


def _copied(value: Any) -> Any:  # noqa: ANN401 - state dicts hold anything
    """The same values in memory of their own, tensors on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value] if isinstance(value, list) else tuple(map(_copied, value))
    return value
