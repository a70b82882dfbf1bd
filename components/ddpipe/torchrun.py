"""torchrun with a faster start and end: `python -m ddpipe.torchrun` accepts the options of `torchrun`.

Nodes can join a running training: `--nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ddpipe.processes.machine import act_without, clean_up_and_leave, search_rarely

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def main() -> None:
    """Start the ranks, and wait for them."""
    search_rarely()
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
