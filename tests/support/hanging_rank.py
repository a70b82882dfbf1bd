"""A rank of ddpipe's training that hangs in a chosen way, at the first start only.

    HANG=sleep HANG_FOLDER=/tmp/x python -m ddpipe.torchrun ... -m hanging_rank --dataset ...

When it begins to hang, it writes the time into `began` of that folder.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

from processes import until
from training_ranks import train_from_command_line

from ddpipe.data.reader import SplitReader
from ddpipe.data.shards import Images
from ddpipe.distributed import roll_call
from ddpipe.model.checkpoint import newest
from ddpipe.storage import open_store
from ddpipe.train import constants
from ddpipe.train.batches import Indices
from ddpipe.train.loop import Trainer
from ddpipe.train.replicated import DistributedDataParallelStrategy

STEP = 25
FOREVER = 3600
FOLDER = Path(os.environ["HANG_FOLDER"])
FILLED = "disk/filled"


def main() -> None:
    constants.LEAST_PATIENCE = float(os.environ.get("HANG_PATIENCE", constants.LEAST_PATIENCE))
    roll_call.LEAVE = min(roll_call.LEAVE, 2 * constants.LEAST_PATIENCE)
    (FOLDER / FILLED).unlink(missing_ok=True)
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    train_from_command_line([Hang()] if first else [])


class Hang:
    """A rank hangs when it is about to take a step."""

    def __call__(self) -> None:
        """Nothing needs to be patched before."""

    def before_step(self, trainer: Trainer) -> None:
        how, rank = os.environ["HANG"], os.environ["RANK"]
        if trainer.step == STEP and rank == ("0" if how == "fill_the_disk" else "1"):
            until(lambda: newest(open_store(str(FOLDER / "disk/training"))) is not None)
            (FOLDER / "began").write_text(str(time.time()))
            globals()[how]()


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def skip_a_reduction() -> None:
    exchange = DistributedDataParallelStrategy.exchange

    def skipped(strategy: DistributedDataParallelStrategy, *, is_last: bool) -> None:
        del is_last
        exchange(strategy, is_last=False)
        DistributedDataParallelStrategy.exchange = exchange  # type: ignore[method-assign]

    DistributedDataParallelStrategy.exchange = skipped  # type: ignore[method-assign]


def sleep_in_the_loader() -> None:
    def asleep(_reader: SplitReader, _indices: Indices) -> Images:
        time.sleep(FOREVER)
        raise AssertionError

    SplitReader.images = asleep  # type: ignore[method-assign]


def fill_the_disk() -> None:
    with (FOLDER / FILLED).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def read_from_a_dead_mount() -> None:
    """As read() of a server that is gone: a pipe into which nobody writes."""
    os.mkfifo(FOLDER / "dead")
    (FOLDER / "dead").read_bytes()


def touch_a_dead_mount() -> None:
    """As a page of a mapped file that does not come: no thread of Python gets a turn."""
    end = time.time() + FOREVER
    while time.time() < end:
        ctypes.PyDLL(None).sleep(FOREVER)  # other than CDLL, it keeps the interpreter's lock


if __name__ == "__main__":
    main()
