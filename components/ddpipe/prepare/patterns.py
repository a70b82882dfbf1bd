"""Regular expressions of users, in the syntax of RE2: the time is linear in the text, for every pattern.

Python's own expressions can take exponential time: `(a+)+$` on a path of 40 letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Search = Callable[[str], Any]
"""Searches a text; gives a match in the form of Python's `re`, or None."""


def compiled(pattern: str) -> Search:
    """What searches for a pattern."""
    import re2  # noqa: PLC0415 - parameters are checked without it, too: see `problem`

    options = re2.Options()
    options.log_errors = False
    try:
        search: Search = re2.compile(pattern, options).search
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(reason.decode() if isinstance(reason, bytes) else str(reason)) from error
    return search


def problem(pattern: str) -> str:
    """Why this is no regular expression; empty if it is one.

    Where only pipelines are compiled, RE2 is not installed; there Python finds the common mistakes.
    """
    try:
        compiled(pattern)
    except ValueError as error:
        return str(error)
    except ImportError:
        try:
            re.compile(pattern)
        except re.error as error:
            return str(error)
    return ""
