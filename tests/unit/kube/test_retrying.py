"""An API server that is away for a while, busy, or refuses."""

from __future__ import annotations

from itertools import islice
from time import monotonic
from typing import Any

import pytest

from ddpipe.errors import ClusterUnreachable, Forbidden, PodRefused
from ddpipe.kube import retrying
from ddpipe.kube.api import ApiError, Refused, Unanswered
from ddpipe.kube.retrying import RateLimiter, answered, backoff, is_transient, reconnected, with_retries


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


def test_pauses_grow_to_a_limit_and_differ_between_processes() -> None:
    for pause, limit in zip(backoff(), [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2], strict=False):
        assert limit / 2 <= pause <= limit
    assert 15 <= max(islice(backoff(longest=30), 20)) <= 30
    assert len({next(backoff()) for _ in range(10)}) > 1


def test_a_refusal_is_not_retried() -> None:
    with pytest.raises(Refused, match="404"):
        with_retries(giving(Refused(404, "NotFound", ""), "here"), budget=5)


@pytest.mark.parametrize("status", [401, 408, 429, 500, 502, 503, 504])
def test_refusals_that_pass_are_transient(status: int) -> None:
    assert is_transient(Refused(status, "", ""))


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422])
def test_refusals_that_stay_are_not_transient(status: int) -> None:
    assert not is_transient(Refused(status, "", ""))


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (Unanswered("connection refused"), ClusterUnreachable, "does not answer: the API server: connection"),
        (Refused(401, "Unauthorized", "expired"), Forbidden, "also after the token was read again"),
        (Refused(503, "", "overloaded"), ClusterUnreachable, "HTTP 503 overloaded, for 0 s"),
    ],
)
def test_an_outage_beyond_the_budget_is_an_error(
    error: ApiError, expected: type[Exception], words: str
) -> None:
    with pytest.raises(expected, match=words):
        with_retries(giving(error), budget=0.2)


def test_a_missing_right_is_its_own_error() -> None:
    with pytest.raises(Forbidden, match=r"Give it the Role of images/rbac\.yaml"):
        answered(giving(Refused(403, "Forbidden", 'x is forbidden: User "me" cannot list')), "the jobs")
    with pytest.raises(PodRefused, match="exceeded quota"):
        answered(giving(Refused(403, "Forbidden", "exceeded quota")), "the jobs")


def test_a_server_that_asks_for_patience_gets_it() -> None:
    """Retry-After counts more than our own pauses."""
    began = monotonic()
    assert with_retries(giving(Refused(429, "", "", retry_after=0.5), "here"), budget=5) == "here"
    assert monotonic() - began >= 0.5
    with pytest.raises(ClusterUnreachable):
        with_retries(giving(Refused(429, "", "", retry_after=60)), budget=5)


def over_after(number: int) -> Any:
    """The end of a stream that is over after so many connections; the errors it saw."""
    seen: list[ApiError | None] = []

    def is_over(error: ApiError | None) -> bool:
        seen.append(error)
        return len(seen) == number

    return is_over, seen


def test_a_stream_is_opened_again_after_every_kind_of_end() -> None:
    answers = giving(Unanswered("cut"), KeyError("items"), "ab", RecursionError("deep"), "c")
    is_over, seen = over_after(5)
    assert "".join(reconnected(answers, is_over, lambda _: None)) == "abc"
    assert [str(error) for error in seen] == [
        "cut",
        "KeyError: 'items'",
        "None",
        "RecursionError: deep",
        "None",
    ]


def test_a_stream_that_gives_something_and_fails_is_paused_for() -> None:
    """A list that works before each watch that fails must not start the pauses again."""
    pauses: list[float] = []
    is_over, _ = over_after(10)
    list(reconnected(lambda: ["listed"], is_over, pauses.append, longest=5))
    assert len(pauses) == 9
    assert pauses[-1] >= 2.5


def test_a_stream_that_lasted_begins_with_short_pauses_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "_STEADY", -1)
    pauses: list[float] = []
    is_over, _ = over_after(10)
    list(reconnected(lambda: ["listed"], is_over, pauses.append))
    assert max(pauses) <= 0.1


def test_a_stream_waits_as_long_as_the_server_asks() -> None:
    pauses: list[float] = []
    is_over, _ = over_after(2)
    list(reconnected(giving(Refused(429, "", "", retry_after=7)), is_over, pauses.append))
    assert pauses == [7]


def test_a_few_requests_pass_at_once_and_the_others_in_turn() -> None:
    now, waited = [1000.0], list[float]()
    limiter = RateLimiter(at_once=3, per_second=2, clock=lambda: now[0], wait=waited.append)
    for _ in range(6):
        limiter.wait()
    assert waited == [0.5, 1.0, 1.5], "three did not wait"
    now[0] += 2
    limiter.wait()
    assert len(waited) == 3, "all turns so far are over"
    now[0] += 1000
    for _ in range(4):
        limiter.wait()
    assert waited[3:] == [0.5], "a quiet time saves no more than three"
