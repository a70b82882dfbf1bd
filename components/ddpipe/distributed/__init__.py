"""The processes that work together: how they start, join, compare facts, exchange values and fail.

One process is one rank. `python -m ddpipe.train …` alone is the only rank; started by torchrun, by the
Training Operator or by `spawn`, a process finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR
and MASTER_PORT in its environment. On a machine with several networks, name the one between the ranks in
GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME: torch reads both.
"""

from __future__ import annotations

from ddpipe.distributed.group import STALL, World, process_group
from ddpipe.distributed.ranks import rank, run_rank, spawn

__all__ = ["STALL", "World", "process_group", "rank", "run_rank", "spawn"]
