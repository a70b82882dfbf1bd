"""Loss and hits, counted without making the processor wait for the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ddpipe.distributed import World


def loss_and_hits(logits: Tensor, labels: Tensor) -> Tensor:
    """Over a batch, float64, shape (2,): the cross-entropy in nats added up, and how many are right.

    Args:
        logits: Float32, shape (n, classes); n may be 0.
        labels: int64, shape (n,).
    """
    hits = (logits.argmax(1) == labels).sum()
    return torch.stack([cross_entropy(logits, labels, reduction="sum").double(), hits.double()])


class Tally:
    """Loss and hits of every step of an epoch; each rank counts its own, and now and then all add up.

    Attributes:
        rows: float64, shape (steps, 2), of `loss_and_hits`. Rows before `settled` are those of all ranks
            together and the same on each; the others are this rank's.
        settled: How many rows are added up.
    """

    def __init__(self, steps: int, world: World) -> None:
        self.rows = torch.zeros(steps, 2, dtype=torch.float64, device=world.device)
        self.settled = 0
        self._world = world

    def settle(self, end: int) -> int | None:
        """Add up the rows before `end`, on all ranks at once; returns the first that is not finite."""
        pending = self._world.sum(self.rows[self.settled : end])
        broken = (~pending.isfinite()).any(1).nonzero().flatten().tolist()
        first, self.settled = self.settled, end
        return first + int(broken[0]) if broken else None

    def restore(self, rows: Tensor) -> None:
        """Take up the settled rows of a checkpoint."""
        self.settled = len(rows)
        self.rows[: self.settled] = rows
