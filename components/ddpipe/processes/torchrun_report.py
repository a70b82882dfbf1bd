"""What torchrun reports of ranks that ended without a word of their own."""

from __future__ import annotations

import re
from typing import NamedTuple

from ddpipe.processes.signals import name_of

_KILLED = re.compile(r"rank\s*: (\d+).*\n\s*exitcode\s*: -(\d+) .*\n\s*error_file: <N/A>")


class Killed(NamedTuple):
    """A rank that a signal ended.

    Attributes:
        rank: Which.
        signal: Its name.
    """

    rank: int
    signal: str


def first_killed(report: str) -> Killed | None:
    """The first rank that a signal ended before it could write its error, if torchrun's report names one."""
    others, _, root = report.partition("Root Cause")  # torchrun names the first to fail last
    found = (
        Killed(int(rank), name_of(int(number)))
        for rank, number in [*_KILLED.findall(root), *_KILLED.findall(others)]
    )
    # SIGTERM, and SIGKILL 30 seconds later, are how torchrun itself ends the others.
    return next((killed for killed in found if killed.signal != "SIGTERM"), None)
