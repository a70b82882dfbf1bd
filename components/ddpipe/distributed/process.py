"""A process that is a rank: its number, its log, and how it ends."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ddpipe.errors import DdpipeError
from ddpipe.processes.process import leave

_MOST = 2000
"""Characters of a traceback in an error file: Kubernetes keeps 4096 bytes of a termination message."""


def rank() -> int:
    """This process's rank as its environment has it; 0 when it was started alone."""
    return int(os.environ.get("RANK", "0"))


def run_rank(body: Callable[[], object]) -> NoReturn:
    """Run `body` as this process's whole work and end the process with its exit code.

    Progress goes to standard output. An error goes to standard error, and as JSON to the file that
    TORCHELASTIC_ERROR_FILE names: torchrun sets it; in a pod it is the termination message. Its layout is
    torch's, with the four parts of a DdpipeError in `message.extraInfo`.

    The interpreter is not finalized. That takes a second with torch; and a failed rank is still a member of
    the process group: one of gloo's threads may be waiting for a peer that is gone, and would abort the
    process with another exit code.
    """
    log_as_rank()
    try:
        body()
    except DdpipeError as error:
        _record(str(error), error.exit_code, dict(error.as_dict()))
        sys.stderr.write(f"{error}\n")
        leave(error.exit_code)
    except Exception as error:  # noqa: BLE001 - a bug: print the whole traceback, here and in the error file
        _record(f"{type(error).__name__}: {error}", 1, {"py_callstack": traceback.format_exc()[-_MOST:]})
        traceback.print_exc()
        leave(1)
    leave(0)


def log_as_rank() -> None:
    """Log to standard output; ranks other than 0 prefix their number and do not repeat library warnings."""
    form = f"[rank {rank()}] %(message)s" if rank() else "%(message)s"
    logging.basicConfig(stream=sys.stdout, level=logging.ERROR if rank() else logging.WARNING, format=form)
    logging.getLogger("ddpipe").setLevel(logging.INFO)
    logging.captureWarnings(capture=True)


def _record(message: str, exit_code: int, details: dict[str, str | int]) -> None:
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = details | {"timestamp": str(int(time.time()))}
        content = {"message": {"message": message, "errorCode": exit_code, "extraInfo": extra}}
        Path(path).write_text(json.dumps(content))
