"""The ranks as one of them sees them, and the group, joined when all are present and equal."""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import DistError, PrefixStore, Store, TCPStore

from ddpipe.distributed.ranks import rank
from ddpipe.distributed.roll_call import calls_of, collective, meet
from ddpipe.distributed.watch import OWN_PATIENCE
from ddpipe.errors import DdpipeError, ParameterError, TrainingError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """The processes that work together, seen from one of them."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes the results of all."""
        return self.rank == 0

    def share(self, samples: int) -> npt.NDArray[np.int64]:
        """This rank's indices below `samples`, shape (n,); n differs by at most one between ranks."""
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
        """The rows of all ranks on rank 0, shape (samples, ...), in their order; none on the other ranks."""
        if self.size == 1:
            return rows
        shares = self.collected(rows)
        if not shares:
            return rows[:0]
        merged = np.empty((sum(map(len, shares)), *rows.shape[1:]), rows.dtype)
        for number, part in enumerate(shares):
            merged[number :: self.size] = part
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

    def wait_at_most(self, seconds: float) -> None:
        """How long others may keep this rank waiting in all that it begins from now on; `STALL` at first."""
        OWN_PATIENCE.set()
        if self.size > 1:
            dist.set_timeout(timedelta(seconds=seconds))

    def barrier(self) -> None:
        """Wait until every rank has reached this point."""
        self.max(0)  # a reduction of any value waits for all


JOIN = 900.0  # seconds that ranks wait for each other before they begin: a pod's image may have to be pulled
STALL = 900.0  # seconds that ranks wait for each other during the work: rank 0 may wait 600 for the store


@contextmanager
def process_group(facts: Mapping[str, str] | None = None, *, join: float = JOIN) -> Iterator[World]:
    """Join the other ranks, and leave the group at the end.

    Tensors on a GPU travel by nccl, tensors on the CPU by gloo.

    Args:
        facts: What has to be the same on all ranks, by name, besides their number.
        join: Seconds to wait for all ranks to join.

    Raises:
        ParameterError: More processes than GPUs on this machine.
        TrainingError: A rank did not join, differs from the others, ended, or is stuck; the error names it.
    """
    size, device = int(os.environ.get("WORLD_SIZE", "1")), _device()
    world = World(rank(), size, device)
    if size == 1:
        yield world
        return
    own = {"number of processes": str(size), "code": code_version(), **(facts or {})}
    roll_call = meet(_store(join, world), world.rank, size, own, join)
    with roll_call.answering():
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=PrefixStore("group", roll_call.store),
                rank=world.rank,
                world_size=size,
                timeout=timedelta(seconds=STALL),
            )
            yield world
        except RuntimeError as error:
            # gloo has no class of its own for a closed connection, only its source path in the text
            if not isinstance(error, DistError) and "gloo" not in str(error):
                raise
            reason, *_ = str(error).split(". ")
            waited = calls_of(traceback.extract_tb(error.__traceback__)) + collective()
            raise _broke(world, f"{roll_call.call()}; this rank waited in {waited} ({reason})") from error
        dist.destroy_process_group()


def _store(patience: float, world: World) -> Store:
    """Where the ranks meet: torchrun's agent keeps it, or else rank 0."""
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        return TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=world.is_main and not is_agents,
            timeout=timedelta(seconds=patience),
            wait_for_workers=False,
        )
    except DistError as error:
        raise _broke(world, f"rank 0 did not join: {error}") from error


def _broke(world: World, seen: str) -> TrainingError:
    return TrainingError(
        what="the process group failed",
        which=f"rank {world.rank} of {world.size}",
        seen=seen,
        do="Look at the other ranks: the error of the first that failed is the cause.",
    )


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local, processes = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if processes > torch.cuda.device_count():
        raise ParameterError(
            what="the processes cannot share the GPUs",
            which=f"{processes} processes on this machine",
            seen=f"{torch.cuda.device_count()} GPU(s)",
            do='Start one process per GPU, or hide the GPUs (CUDA_VISIBLE_DEVICES="") to work on the CPU.',
        )
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device


@cache
def code_version() -> str:
    """Of the code that this process runs: the release, and a hash of ddpipe's source files; and torch's."""
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return f"ddpipe {version('ddpipe')} ({digest.hexdigest()[:12]}), torch {torch.__version__}"
