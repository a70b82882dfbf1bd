"""The process group: ranks, devices, and how they share and gather; for train and evaluate.

One process is one rank. `python -m ddpipe.train …` alone is the only rank; started by torchrun or by the
Training Operator, a process finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT
in its environment. Tensors on a GPU travel by nccl, tensors on the CPU by gloo. On a machine with several
networks, name the one between the ranks in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME: torch reads both.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch import distributed as dist

from ddpipe.errors import DdpipeError, ParameterError, TrainingError

_MOST = 2000
"""Characters of a traceback in an error file: Kubernetes keeps 4096 bytes of a termination message."""

_PAUSE = 2.0
"""Seconds before a rank tells that it lost another: torchrun takes the first failure that it sees for the
cause, and sees a killed rank within a tenth of a second."""


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
        """Whether this process writes what all of them made."""
        return self.rank == 0

    def share(self, samples: int) -> npt.NDArray[np.int64]:
        """The indices below `samples` that fall to this rank: each to one rank, shares differ by one."""
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
        """On rank 0 all ranks' rows of `share`, back in the order of the samples; elsewhere no rows.

        Args:
            rows: Shape (len(share(samples)), ...): one row for each index of this rank's share.
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

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.max(0)


def rank() -> int:
    """This process's rank as its environment has it; 0 when it was started alone."""
    return int(os.environ.get("RANK", "0"))


@contextmanager
def process_group() -> Iterator[World]:
    """Join the other ranks, and part from them at the end.

    Raises:
        ParameterError: More processes than GPUs on this machine.
        TrainingError: Another rank went away; its own error says why.
    """
    size, device = int(os.environ.get("WORLD_SIZE", "1")), _device()
    world = World(rank(), size, device)
    if size == 1:
        yield world
        return
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        yield world
    except RuntimeError as error:
        if not _is_lost_contact(error):
            raise
        time.sleep(_PAUSE)
        reason, *_ = str(error).split(". ")
        raise TrainingError(
            what="the process group broke",
            which=f"rank {world.rank} of {size}",
            seen=f"lost contact with another rank: {reason}",
            do="Look at the other ranks: the first that failed says why.",
        ) from error
    else:
        dist.destroy_process_group()


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local, processes = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if processes > torch.cuda.device_count():
        raise ParameterError(
            what="the processes can not share the GPUs",
            which=f"{processes} processes on this machine",
            seen=f"{torch.cuda.device_count()} GPU(s)",
            do='Start one process per GPU, or hide the GPUs (CUDA_VISIBLE_DEVICES="") to work on the CPU.',
        )
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device


def _is_lost_contact(error: RuntimeError) -> bool:
    # gloo has no class of its own for a closed connection, only its source path in the text
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def run_rank(body: Callable[[], object]) -> NoReturn:
    """Run `body` as this process's whole work and end the process with its exit code.

    Progress goes to standard output. An error goes to standard error, and as JSON to the file that
    TORCHELASTIC_ERROR_FILE names: torchrun sets it; in a pod it is the termination message. Its layout is
    torch's, with the four parts of a DdpipeError in `message.extraInfo`.

    A rank that failed still has its place in the process group. The interpreter is not wound up then: gloo's
    threads, of which one may be waiting for a peer that is gone, would abort it and take the exit code along.
    """
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
    logging.getLogger("ddpipe").setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    try:
        body()
    except DdpipeError as error:
        _record(str(error), error.exit_code, dict(error.as_dict()))
        sys.stderr.write(f"{error}\n")
        _leave(error.exit_code)
    except Exception as error:  # noqa: BLE001 - a bug: the whole traceback is wanted, here and in the error file
        _record(f"{type(error).__name__}: {error}", 1, {"py_callstack": traceback.format_exc()[-_MOST:]})
        traceback.print_exc()
        _leave(1)
    sys.exit(0)


def _leave(exit_code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _record(message: str, exit_code: int, details: dict[str, str | int]) -> None:
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = details | {"timestamp": str(int(time.time()))}
        content = {"message": {"message": message, "errorCode": exit_code, "extraInfo": extra}}
        Path(path).write_text(json.dumps(content))
