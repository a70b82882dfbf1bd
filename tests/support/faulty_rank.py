"""A rank that fails: `python -m faulty_rank diverge|die|crash|leave`. Rank 1 does it, rank 0 waits for it."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys

from ddpipe.distributed import process_group, run_rank
from ddpipe.errors import Diverged

DIVERGED = Diverged(what="training diverged", which="rank 1", seen="the loss is nan", do="Lower the rate.")


def fail() -> None:
    if sys.argv[1] == "crash":
        atexit.register(os.abort)  # as gloo's threads do, at times, when their peer is gone
        raise DIVERGED
    if sys.argv[1] == "leave":
        sys.exit("done")
    with process_group() as world:
        if world.is_main:
            logging.getLogger("ddpipe.test").info("rank 0 waits")
            world.barrier()
        elif sys.argv[1] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise DIVERGED


if __name__ == "__main__":
    run_rank(fail)
