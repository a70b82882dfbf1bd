"""A script that knows nothing of ddpipe: `plain_script.py HOW`, rank 1 does it before step 20."""

import os
import signal
import sys
import time

import torch
from torch import distributed as dist

FOREVER = 3600


def asleep() -> None:
    time.sleep(FOREVER)


def main() -> None:
    how = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(24):
        time.sleep(0.15)
        if step == 20 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.stdout.write(f"began={time.time()}\n")
            sys.stdout.flush()
            if how == "sleep":
                asleep()
            elif how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif how == "skip":
                dist.broadcast(torch.ones(3), 0)
            elif how == "slow":
                time.sleep(8)
            elif how == "work":
                until = time.time() + 45
                while time.time() < until:
                    torch.ones(100) @ torch.ones(100)
        dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} with {sys.argv[1:]} as {__name__} in {__file__}\n")
    if how == "raise" and rank == 1:
        raise ValueError(how)


if __name__ == "__main__":
    main()
