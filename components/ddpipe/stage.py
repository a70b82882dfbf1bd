"""What a step's process does around its work: where it talks to, and how it ends.

A pipeline engine runs each step in a process of its own and shows, at best, that it failed. Whoever started
the engine may name two files in the environment to hear more: a pipe for their words, a file for their error;
and tell there that the run was stopped between two steps.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddpipe.errors import DdpipeError, Interrupted

VOICE, ERROR, TOLD = "DDPIPE_VOICE", "DDPIPE_ERROR", "DDPIPE_TOLD_TO_STOP"
_STDERR = 2


@contextmanager
def on_stage() -> Iterator[None]:
    """Speak on standard error; if there is an error, end with its message and its exit code."""
    if TOLD in os.environ:
        raise SystemExit(Interrupted.exit_code)
    if path := os.environ.get(VOICE):
        os.dup2(os.open(path, os.O_WRONLY), _STDERR)
    speaker, log = logging.StreamHandler(sys.stderr), logging.getLogger("ddpipe")
    log.addHandler(speaker)
    log.setLevel(logging.INFO)
    log.propagate = False  # or the engine would say it again
    try:
        yield
    except DdpipeError as error:
        if path := os.environ.get(ERROR):
            Path(path).write_text(json.dumps(error.as_dict()))
        else:
            log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400 - a traceback would drown it
        raise SystemExit(error.exit_code) from None
