"""Results computed by threads shortly before they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def prefetched(
    function: Callable[[T], R], items: Iterable[T], *, threads: int, ahead: int = 0
) -> Iterator[R]:
    """The function's results in the order of the items, at most so many ahead of their use."""
    pool = ThreadPoolExecutor(threads)
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > (ahead or 2 * threads):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
