"""Progress of long work: a bar on a terminal, lines in a log."""

from __future__ import annotations

import logging
import sys
from typing import NoReturn

from tqdm import tqdm

log = logging.getLogger(__name__)

LOG_EVERY = 15.0  # seconds between two log lines
# Formats of log lines: with a total, without one.
LINES = ("{desc} {n} of {total}: {rate_fmt}, {remaining} left", "{desc} {n}: {rate_fmt}")


def progress_bar(verb: str, total: int | None) -> tqdm[NoReturn]:
    """A bar with rate and remaining time on a terminal; elsewhere a log line every `LOG_EVERY` seconds."""
    is_terminal = sys.stderr.isatty()
    return tqdm(
        desc=verb,
        total=total,
        unit="img",
        leave=False,
        disable=total == 0,
        file=sys.stderr if is_terminal else _Lines(),
        mininterval=0.1 if is_terminal else LOG_EVERY,
        delay=0 if is_terminal else LOG_EVERY,
        bar_format=None if is_terminal else LINES[total is None],
    )


class _Lines:
    """Turns what tqdm writes into log lines."""

    def write(self, text: str) -> None:
        if line := text.strip():
            log.info("%s", line)

    def flush(self) -> None:
        """Nothing is buffered."""
