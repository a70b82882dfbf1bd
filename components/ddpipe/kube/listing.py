"""Lists of any length, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ddpipe.kube.cluster import Query
from ddpipe.kube.resources import Object

PAGE = 250
"""Objects in a page: of pods about 7 MB."""


def pages(
    read: Callable[[str, Query], dict[str, Any]], path: str, query: Query | None = None
) -> Iterator[list[Object]]:
    """The objects of a list in pages, of which the caller keeps what it needs."""
    token = ""
    while True:
        step = {"limit": str(PAGE)} | ({"continue": token} if token else {})
        page = read(path, {**(query or {}), **step})
        # An empty list of metadata is null.
        yield page["items"] or []
        token = page["metadata"].get("continue") or ""
        if not token:
            return
