"""Surviving an API server that is away or overloaded: retries, back-off, reconnected streams, rate limit."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from threading import Lock
from typing import TypeVar

from ddpipe.errors import ClusterUnreachable, Forbidden, LaunchError, PodRefused
from ddpipe.kube.cluster import ApiError, Cluster, Refused, Unanswered

T = TypeVar("T")
# 401 is over when the token is rotated; the rest is load, a restart, or a proxy in between.
_TRANSIENT = {401, 408, 429, 500, 502, 503, 504}
_TOO_LARGE = re.compile(r"request is too large|entity too large|message larger than max", re.IGNORECASE)
# A stream that lasted so many seconds worked: its end is the first of a new series of failures.
_STEADY = 30.0
# Not the generator that a program may have seeded, or that its tests watch: streams draw in threads.
_JITTER = random.Random()


def is_transient(error: ApiError) -> bool:
    """Whether the same request may succeed in a moment."""
    return isinstance(error, Unanswered) or (
        isinstance(error, Refused) and error.status in _TRANSIENT and not is_too_large(error)
    )


def is_too_large(error: Refused) -> bool:
    """Whether the object exceeds what the API server, or etcd behind it (with a 500), accepts."""
    return error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or bool(_TOO_LARGE.search(error.message))


def backoff(longest: float = 2) -> Iterator[float]:
    """Seconds between attempts: each twice the one before, up to `longest`, and a random part of it off."""
    # Without the random part, 200 launchers that lost the server at the same moment would all return at once.
    pause = 0.1
    while True:
        yield pause * _JITTER.uniform(0.5, 1)
        pause = min(longest, pause * 2)


def with_retries(
    request: Callable[[], T],
    budget: float | Callable[[], float],
    gave_up: Callable[[ApiError, float], LaunchError] | None = None,
) -> T:
    """The result of `request`, which is retried while the server is away or busy, for `budget` seconds."""
    # A `Cluster` that is `patient` does so itself. This is for a request whose error has to be judged before
    # it is retried; of several requests in one function, each failure would repeat them all.
    began = time.monotonic()
    for pause in backoff():
        try:
            return request()
        except ApiError as error:
            if not is_transient(error):
                raise
            pause = max(pause, error.retry_after)  # noqa: PLW2901 - the server knows better
            longest = budget() if callable(budget) else budget
            if time.monotonic() - began + pause > longest:
                raise (gave_up or given_up)(error, longest) from error
        time.sleep(pause)
    raise AssertionError  # `backoff` never ends


def reconnected(
    connect: Callable[[], Iterable[T]],
    is_over: Callable[[ApiError | None], bool],
    wait: Callable[[float], object],
    longest: float = 5,
) -> Iterator[T]:
    """What a stream gives, opened again at growing pauses after each end, even a bug's, until it is over."""
    pauses = backoff(longest)
    while True:
        began, error = time.monotonic(), None
        try:
            yield from connect()
        except ApiError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - see above
            error = Unanswered(f"{type(raised).__name__}: {raised}")
        if is_over(error):
            return
        if time.monotonic() - began > _STEADY:
            pauses = backoff(longest)
        wait(max(next(pauses), error.retry_after if error else 0))


class RateLimiter:
    """Lets a few requests of many threads pass at once, and the others one after the other."""

    def __init__(
        self,
        at_once: int,
        per_second: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._pause, self._saved = 1 / per_second, at_once / per_second
        self._clock, self._wait = clock, wait
        self._lock, self._taken = Lock(), float("-inf")

    def wait(self) -> None:
        """Return at once, or when enough time has passed since the requests before."""
        with self._lock:
            now = self._clock()
            self._taken = max(self._taken, now - self._saved) + self._pause
            delay = self._taken - now
        if delay > 0:
            self._wait(delay)


def delete(cluster: Cluster, path: str, uid: str) -> None:
    """Delete just this object; no error if it is gone already, or if another one has its name."""
    try:
        cluster.delete(path, uid)
    except Refused as error:
        if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
            raise


def given_up(error: ApiError, budget: float) -> LaunchError:
    """The error that a user gets after `budget` seconds of `error`."""
    if isinstance(error, Refused) and error.status == HTTPStatus.UNAUTHORIZED:
        return Forbidden(
            what="the cluster rejects this account's credentials",
            which="the service account's token",
            seen=f"{error}, for {budget:.0f} s, also after the token was read again",
            do="Renew the credentials, then run the step again: it adopts the same job.",
        )
    return ClusterUnreachable(
        what=f"the cluster {'fails' if isinstance(error, Refused) else 'does not answer'}",
        which="the API server",
        seen=f"{error}, for {budget:.0f} s",
        do="A job that was created continues. When the API server is back, run the step again: it adopts it.",
    )


def answered(request: Callable[[], T], which: str) -> T:
    """The result of `request`, or the error that a user gets."""
    try:
        return request()
    except Refused as error:
        raise refused(error, which) from error


def refused(error: Refused, which: str) -> LaunchError:
    """The error that a user gets for a refusal that no part of the protocol expected."""
    if "is forbidden: User" in error.message:
        return Forbidden(
            what="this account lacks a right that launching needs",
            which=which,
            seen=str(error),
            do="Give it the Role of images/rbac.yaml.",
        )
    large = "Put large values into the image, a ConfigMap or the object store."
    return PodRefused(
        what="the cluster rejected the request",
        which=which,
        seen=str(error),
        do=large if is_too_large(error) else "Change what it objects to.",
    )
