"""What torchrun prints when ranks have failed, by its own code."""

from __future__ import annotations

from collections.abc import Mapping

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

NO_FILE = "/nowhere/error.json"


def report(
    deaths: Mapping[int, int], *, first: int, files: Mapping[int, str] | None = None, earlier: int = 1
) -> str:
    """The report of failed ranks.

    Args:
        deaths: Each one's exit code; a signal's number is negative.
        first: The one that failed before the others.
        files: The error files of those that wrote one.
        earlier: So many seconds did it fail before them.
    """
    failures = {
        rank: ProcessFailure(rank, 4711 + rank, code, (files or {}).get(rank, NO_FILE))
        for rank, code in deaths.items()
    }
    failures[first].timestamp -= earlier
    return str(ChildFailedError("training", failures))
