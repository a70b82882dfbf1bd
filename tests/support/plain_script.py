"""A script that knows nothing of ddpipe: `plain_script.py HOW`, rank 1 does it before step 20.

What takes long ends when there is a file `enough` in the working directory.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import distributed as dist

FOREVER = 3600


def asleep() -> None:
    time.sleep(FOREVER)


ENOUGH = Path("enough")
WORK = """
import time
from pathlib import Path
while not Path("enough").exists():
    sum(range(1_000_000))
    time.sleep(0.03)
"""


def work(how: str) -> None:
    if how == "work":
        exec(WORK)  # noqa: S102
    elif how == "wait_for_a_child_that_works":
        subprocess.run([sys.executable, "-c", WORK], check=True)
    elif how == "save_slowly":
        while not ENOUGH.exists():
            Path(os.devnull).write_bytes(bytes(2**22))
            time.sleep(1)


def main() -> None:
    how = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(24):
        time.sleep(0.15)
        if step == 20 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.stdout.write(f"began={time.time()} pid={os.getpid()}\n")
            sys.stdout.flush()
            if how == "sleep":
                asleep()
            elif how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif how == "skip":
                dist.broadcast(torch.ones(3), 0)
            elif how == "slow, then raise":
                time.sleep(4)
            else:
                work(how)
        dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} with {sys.argv[1:]} as {__name__} in {__file__}\n")
    if how == "slow, then raise" and rank == 1:
        raise ValueError(how)


if __name__ == "__main__":
    main()
