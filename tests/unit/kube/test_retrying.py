"""An API server that is away for a while, or says no."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from ddpipe.errors import ClusterUnreachable, Forbidden, PodRefused
from ddpipe.kube.api import ApiError, Refused, Unanswered
from ddpipe.kube.retrying import answered, backoff, is_transient, with_retries


def giving(*answers: Any) -> Any:
    left = list(answers)

    def ask() -> str:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    return ask


def test_an_outage_is_ridden_out() -> None:
    answers = giving(Unanswered("refused"), Refused(429, "", ""), Refused(500, "", ""), "here")
    assert with_retries(answers, budget=5) == "here"


def test_tries_come_soon_at_first_and_then_every_two_seconds() -> None:
    assert list(islice(backoff(), 7)) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2, 2])
    assert max(islice(backoff(longest=30), 20)) == 30


def test_a_refusal_is_not() -> None:
    with pytest.raises(Refused, match="404"):
        with_retries(giving(Refused(404, "NotFound", ""), "here"), budget=5)


@pytest.mark.parametrize("status", [401, 408, 429, 500, 502, 503, 504])
def test_some_refusals_are_over_in_a_moment(status: int) -> None:
    assert is_transient(Refused(status, "", ""))


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422])
def test_others_are_not(status: int) -> None:
    assert not is_transient(Refused(status, "", ""))


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (Unanswered("connection refused"), ClusterUnreachable, "does not answer: the API server: connection"),
        (Refused(401, "Unauthorized", "expired"), Forbidden, "also after the token was read again"),
        (Refused(503, "", "overloaded"), ClusterUnreachable, "HTTP 503 overloaded, for 0 s"),
    ],
)
def test_what_lasts_too_long_is_told(error: ApiError, expected: type[Exception], words: str) -> None:
    with pytest.raises(expected, match=words):
        with_retries(giving(error), budget=0.2)


def test_a_missing_right_is_told_from_another_refusal() -> None:
    with pytest.raises(Forbidden, match=r"Give it the Role of images/rbac\.yaml"):
        answered(giving(Refused(403, "Forbidden", 'x is forbidden: User "me" cannot list')), "the jobs")
    with pytest.raises(PodRefused, match="exceeded quota"):
        answered(giving(Refused(403, "Forbidden", "exceeded quota")), "the jobs")
