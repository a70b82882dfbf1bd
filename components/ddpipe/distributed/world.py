"""The ranks as one of them sees them: each rank's share of the work, and how they exchange values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch import distributed as dist

from ddpipe.errors import DdpipeError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """The processes that work together, seen from one of them.

    Attributes:
        rank: This process among all, from 0.
        size: How many there are.
        device: Where this process computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes the results of all."""
        return self.rank == 0

    def share(self, samples: int) -> npt.NDArray[np.int64]:
        """This rank's indices below `samples`, shape (n,).

        Each index belongs to one rank; n differs by at most one between ranks.
        """
        return np.arange(self.rank, samples, self.size)

    def sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over all ranks, in place and returned; shape and device are the same on all."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def max(self, value: int) -> int:
        """The largest `value` of any rank; goes by gloo, so a GPU is not waited for."""
        if self.size == 1:
            return value
        largest = torch.tensor(value)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def gather(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Collect the rows of all ranks on rank 0, in the order of the samples.

        Args:
            rows: Shape (len(share(samples)), ...): one row for each index of this rank's share.

        Returns:
            Shape (samples, ...) on rank 0, (0, ...) on the other ranks.
        """
        if self.size == 1:
            return rows
        shares: list[npt.NDArray[np.float32]] | None = [rows] * self.size if self.is_main else None
        dist.gather_object(rows, shares)
        if shares is None:
            return rows[:0]
        merged = np.empty((sum(map(len, shares)), *rows.shape[1:]), rows.dtype)
        for rank, part in enumerate(shares):
            merged[rank :: self.size] = part
        return merged

    def collected(self, value: T) -> list[T]:
        """The values of all ranks, in their order, on rank 0; none on the other ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.is_main else None
        dist.gather_object(value, values)
        return values or []

    def decided(self, decide: Callable[[], T]) -> T:
        """What `decide` returns on rank 0, or raises there: on all ranks, and only rank 0 calls it."""
        if self.size == 1:
            return decide()
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = decide()
            except DdpipeError as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, device=torch.device("cpu"))
        if outcome[1]:
            raise outcome[1]
        decision: T = outcome[0]
        return decision

    def barrier(self) -> None:
        """Wait until every rank has reached this point."""
        self.max(0)
