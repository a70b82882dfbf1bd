"""torchrun with a faster start and end: `python -m ddpipe.torchrun` accepts the options of `torchrun`.

Nodes can join a running training: `--nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT`. The ranks of
any script are watched for one that keeps the others waiting: `ddpipe.distributed.watch`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from ddpipe.processes.machine import act_without, clean_up_and_leave, search_rarely

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_LOOKS = 10  # seconds between two looks whether a rank that has not joined a group still can
_WATCH = "DDPIPE_WATCH"  # seconds that ranks wait for another, at least, before it is named; 0: it never is


def main() -> None:
    """Start the ranks, and wait for them."""
    search_rarely()
    os.environ.setdefault(_WATCH, "60")
    if "--standalone" not in sys.argv:
        # With the agents' store shared, a node that joins waits for an address that only the first round
        # gets (torch 2.15, dynamic_rendezvous.py): all nodes hang.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if report := os.environ.pop("DDPIPE_REPORT", ""):
        # torchrun's own lines; the file that the ranks inherit stays as it is.
        sys.stderr = Path(report).open("w", buffering=1)  # noqa: SIM115 - open until the end
    from torch.distributed.run import main as torchrun  # noqa: PLC0415 - torch, after `search_rarely`

    # A parent that is killed cannot forward a signal to the ranks.
    act_without("DDPIPE_PARENT", lambda: os.kill(os.getpid(), signal.SIGTERM))
    with _error_file_kept():
        torchrun()
    clean_up_and_leave(0)


def watch_rank() -> None:
    """Start to watch this process if `main` started it; torch calls this wherever a script imports it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # no rank, but it may start some, such as a notebook
        return
    given, ended = os.environ.pop(_WATCH, "0"), threading.Event()

    def run() -> None:
        with suppress(Exception):  # nothing of this may reach the script
            looks = count(1)
            while not getattr(sys.modules.get("torch.distributed"), "is_initialized", bool)():
                if ended.wait(1):
                    return
                if not next(looks) % _LOOKS:
                    from ddpipe.distributed.watch import end_if_left_behind  # noqa: PLC0415 - torch

                    end_if_left_behind()
            from ddpipe.distributed.watch import watch  # noqa: PLC0415 - torch

            watch(float(given), ended)

    if given != "0":
        thread = threading.Thread(target=run, name="ddpipe-watch", daemon=True)
        thread.start()
        # The process would abort if its interpreter ended while a thread is in torch.
        atexit.register(thread.join, 2)
        atexit.register(ended.set)  # the first of both: the last that was registered


@contextmanager
def _error_file_kept() -> Iterator[None]:
    """Write the error into the existing file: torch would remove it first."""
    # A pod's termination log can be written but not removed, and the error would be lost.
    given = os.environ.get(_ERROR_FILE)
    if not given:
        yield
        return
    with TemporaryDirectory(prefix="ddpipe-") as folder:
        own = Path(folder, "error.json")
        os.environ[_ERROR_FILE] = str(own)
        try:
            yield
        finally:
            if own.exists():
                Path(given).write_bytes(own.read_bytes())


if __name__ == "__main__":
    main()
