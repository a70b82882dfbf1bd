"""torchrun, started and ended faster: `python -m ddpipe.torchrun` takes what `torchrun` takes.

And nodes can join a training that runs: `--nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT`.
"""

from __future__ import annotations

import os
import sys

from ddpipe.process import clean_up_and_leave, search_rarely


def main() -> None:
    """Start the ranks, and wait for them."""
    search_rarely()
    if "--standalone" not in sys.argv:
        # With the agents' store shared, a node that joins waits for an address that only the first round is
        # told (torch 2.15, dynamic_rendezvous.py): everybody hangs.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    from torch.distributed.run import main as torchrun  # noqa: PLC0415 - torch, after `search_rarely`

    torchrun()
    clean_up_and_leave(0)


if __name__ == "__main__":
    main()
