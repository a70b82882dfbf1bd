"""Names that people and file systems can take: of datasets, classes and samples."""

from __future__ import annotations

import re
from unicodedata import category

DATASET = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""A dataset's name; it is a part of paths."""

BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the order in which others are shown: with them one name can look like another."""


def printable(name: str) -> str | None:
    """What can be shown of an unsuitable name; None if the name is suitable.

    Unsuitable is what is no UTF-8, or holds characters that control a terminal or the order of a text.
    """
    if name.isprintable():  # none of the characters in question is
        return None
    shown = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    shown = "".join(
        char.encode("unicode_escape").decode() if category(char) == "Cc" or char in BIDIRECTIONAL else char
        for char in shown
    )
    return None if shown == name else shown
