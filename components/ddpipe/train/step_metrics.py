"""Loss and metrics of every training step, kept on the device so that no step waits for it."""

from __future__ import annotations

import torch
from torch import Tensor

from ddpipe.distributed import World


class StepMetrics:
    """Sums over the batch of every step of an epoch: each rank has its own, now and then all are added up.

    Attributes:
        rows: float64, shape (steps, columns): for each step the `totals` of the objective. Rows before
            `reduced` are sums over all ranks, the same on each; the others are this rank's.
        reduced: How many rows are summed over the ranks.
    """

    def __init__(self, steps: int, columns: int, world: World) -> None:
        self.rows = torch.zeros(steps, columns, dtype=torch.float64, device=world.device)
        self.reduced = 0
        self._world = world

    def reduce(self, end: int) -> int | None:
        """Sum the rows before `end` over all ranks; returns the first that is not finite."""
        pending = self._world.sum(self.rows[self.reduced : end])
        broken = (~pending.isfinite()).any(1).nonzero().flatten().tolist()
        first, self.reduced = self.reduced, end
        return first + int(broken[0]) if broken else None

    def restore(self, rows: Tensor) -> None:
        """Continue from the reduced rows of a checkpoint."""
        self.reduced = len(rows)
        self.rows[: self.reduced] = rows
