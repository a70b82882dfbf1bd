"""Ranks that print nothing any more: when that is said, and when it ends the job."""

from __future__ import annotations

import io
import math
import re

import pytest
from launch_samples import PODS, a_job, a_pod, a_server, an_object

from ddpipe.errors import DeadlineExceeded
from ddpipe.kube.resources import METRICS
from ddpipe.launching import progress
from ddpipe.launching.launcher import launch
from ddpipe.launching.progress import Silence


def printing(*ranks: str, every: float = 10, lines: int = 12, silence: Silence | None = None) -> Silence:
    """So many lines of each rank, the first one at 0."""
    silence = silence or Silence()
    for number in range(lines):
        for rank in ranks:
            silence.take(rank, number * every)
    return silence


def test_ten_times_the_longest_pause_is_reported_once() -> None:
    silence = printing("worker-0")
    assert not silence.warning(["worker-0"], 110 + 100)
    warning = silence.warning(["worker-0"], 110 + 101)
    assert warning.startswith("worker-0 printed nothing for 101 s, before never for more than 10 s")
    assert not silence.warning(["worker-0"], 1000)


def test_a_rank_that_prints_again_has_shown_how_long_it_may_pause() -> None:
    silence = printing("worker-0")
    assert silence.warning(["worker-0"], 300)
    silence.take("worker-0", 310)
    assert not silence.warning(["worker-0"], 310 + 1999)
    assert silence.warning(["worker-0"], 310 + 2001)


def test_quick_lines_do_not_make_a_short_pause_a_hang() -> None:
    silence = printing("worker-0", every=0.1)
    assert not silence.warning(["worker-0"], 60)
    assert "printed nothing for 61 s, before never for more than 0 s" in silence.warning(["worker-0"], 62)


def test_nine_lines_show_nothing_and_ten_do() -> None:
    assert not printing("worker-0", lines=9).warning(["worker-0"], math.inf)
    assert printing("worker-0", lines=10).warning(["worker-0"], 1000)


def test_a_rank_that_has_ended_is_not_silent() -> None:
    assert not printing("worker-0").warning([], 1000)


def test_of_many_ranks_a_few_are_named() -> None:
    ranks = [f"worker-{number}" for number in range(64)]
    assert "worker-0, worker-1, worker-2 and 61 more printed" in printing(*ranks).warning(ranks, 1000)


@pytest.mark.parametrize(("count", "more"), [(3, ""), (4, " and 1 more")])
def test_three_ranks_are_named_with_what_they_use(count: int, more: str) -> None:
    ranks = [f"worker-{number}" for number in range(count)]
    warning = printing(*ranks).warning(ranks, 1000, lambda rank: f" ({rank[-1]})")
    named = "worker-0 (0), worker-1 (1), worker-2 (2)"
    assert warning.startswith(f"{named}{more} printed nothing for 890 s, before never for more than 10 s: ")


def test_the_time_counts_from_the_last_line_of_any_rank() -> None:
    silence = Silence()
    assert math.isinf(silence.since)
    silence.begin(5)
    assert silence.since == 5
    printing("worker-1", lines=3, silence=silence)
    assert silence.since == 20


def lines(*seconds: int) -> list[bytes]:
    return [b"2026-01-01T00:00:%02d.000000001Z step" % second for second in seconds]


def test_a_job_whose_ranks_print_nothing_ends_if_a_deadline_says_so() -> None:
    job = a_job(deadlines={"silence": 0.2})
    server = a_server(an_object(job, "Running"), a_pod(job), a_pod(job, "worker-1"))
    for rank in (0, 1):
        server.logs[f"{PODS}/{job.name}-worker-{rank}/log"] = [lines(1, 2)]
    with pytest.raises(DeadlineExceeded, match="no rank printed a line for") as caught:
        launch(job, server, exists=lambda _: True)
    assert "training seems to hang" in str(caught.value)
    assert "increase silence in `deadlines`" in str(caught.value)


def test_a_warning_says_what_silent_pods_compute_if_the_cluster_measures_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "_MINUTE", 0.1)
    job = a_job(deadlines={"silence": 0.5})
    server = a_server(an_object(job, "Running"), a_pod(job), a_pod(job, "worker-1"))
    used = {0: ("1950000000n", "25m"), 1: ("soon",)}
    for rank, amounts in used.items():
        name = f"{job.name}-worker-{rank}"
        server.logs[f"{PODS}/{name}/log"] = [lines(*range(12))]
        containers = [{"name": "any", "usage": {"cpu": amount, "memory": "1Mi"}} for amount in amounts]
        server.put(METRICS.path("team"), {"metadata": {"name": name}, "containers": containers})
    out = io.StringIO()
    with pytest.raises(DeadlineExceeded):
        launch(job, server, exists=lambda _: True, out=out)
    printed = out.getvalue()
    assert "worker-0 (uses 1.98 CPUs)" in printed
    assert re.search(r"worker-1(,| printed nothing)", printed), printed
