"""Riding out an API server that is away for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TypeVar

from ddpipe.errors import ClusterUnreachable, Forbidden, LaunchError, PodRefused
from ddpipe.kube.api import ApiError, Cluster, Refused, Unanswered

T = TypeVar("T")
# 401 is over when the token is rotated; the rest is load, a restart, or a proxy in between.
_TRANSIENT = {401, 408, 429, 500, 502, 503, 504}


def is_transient(error: ApiError) -> bool:
    """Whether this may be over in a moment."""
    return isinstance(error, Unanswered) or (isinstance(error, Refused) and error.status in _TRANSIENT)


def backoff(longest: float = 2) -> Iterator[float]:
    """Seconds between tries: soon at first, then often enough to notice the end of an outage."""
    pause = 0.1
    while True:
        yield pause
        pause = min(longest, pause * 2)


def with_retries(ask: Callable[[], T], budget: float) -> T:
    """The answer to `ask`, asked again while the server is away, for `budget` seconds.

    Raises:
        Refused: The server said no.
        ClusterUnreachable: It was away for too long.
    """
    began = time.monotonic()
    for pause in backoff():
        try:
            return ask()
        except ApiError as error:
            if not is_transient(error):
                raise
            if time.monotonic() - began + pause > budget:
                raise given_up(error, budget) from error
        time.sleep(pause)
    raise AssertionError  # `backoff` never ends


def delete(cluster: Cluster, path: str, uid: str, budget: float) -> None:
    """Delete just this object; no error if it is gone already, or if another one has its name.

    Raises:
        Refused: The server said no.
        LaunchError: It was away for longer than `budget` seconds.
    """
    try:
        with_retries(lambda: cluster.delete(path, uid), budget)
    except Refused as error:
        if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
            raise


def given_up(error: ApiError, budget: float) -> LaunchError:
    """The error that a person gets after `budget` seconds of this one."""
    if isinstance(error, Refused) and error.status == HTTPStatus.UNAUTHORIZED:
        return Forbidden(
            what="the cluster does not know this account any more",
            which="the service account's token",
            seen=f"{error}, for {budget:.0f} s, also after the token was read again",
            do="Renew the credentials, then run the step again: it adopts the same job.",
        )
    return ClusterUnreachable(
        what="the cluster does not answer",
        which="the API server",
        seen=f"{error}, for {budget:.0f} s",
        do="A job that was created goes on. When the API server is back, run the step again: it adopts it.",
    )


def answered(ask: Callable[[], T], which: str, budget: float = 30) -> T:
    """The answer to `ask`, or the error that a person gets.

    Raises:
        LaunchError: The server is away for `budget` seconds, or said no.
    """
    try:
        return with_retries(ask, budget)
    except Refused as error:
        raise refused(error, which) from error


def refused(error: Refused, which: str) -> LaunchError:
    """The error that a person gets for a refusal that no part of the protocol expected."""
    if "is forbidden: User" in error.message:
        return Forbidden(
            what="this account may not do what launching needs",
            which=which,
            seen=str(error),
            do="Give it the Role of images/rbac.yaml, then run the step again.",
        )
    return PodRefused(
        what="the cluster refuses this",
        which=which,
        seen=str(error),
        do="Change what it objects to, then run the step again.",
    )
