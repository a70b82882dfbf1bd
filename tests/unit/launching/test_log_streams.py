"""Logs over real HTTP: progress bars, connections that break, servers that are busy."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from time import monotonic, process_time

import pytest
from launch_samples import PODS, a_job, a_pod, ended
from log_server import serving
from processes import in_proportion

from ddpipe.jobs.replicas import replica_of
from ddpipe.jobs.status import Replica
from ddpipe.kube.api import ApiServer
from ddpipe.launching import loglines
from ddpipe.launching.logs import Logs

JOB = a_job()
STAMP = b"2026-01-01T00:00:%02d.000000001Z "
BAR = b"\r 10%%|#  | %07d/9999999 [00:10<01:30, 10.0it/s, epoch=1, loss=0.5]"


def replica(*, over: bool) -> Replica:
    states = {"phase": "Succeeded", "state": ended(0)} if over else {}
    return replica_of(a_pod(JOB, **states), "worker-0", "pytorch")


def read(client: ApiServer) -> tuple[Logs, list[str]]:
    """The log of a pod that has ended."""
    written: list[str] = []
    logs = Logs(client, PODS, written.append)
    logs.see([replica(over=True)])
    assert logs.finish() == ()
    return logs, written


def a_bar(megabytes: int) -> list[bytes]:
    """One line of an epoch, in pieces of 1 KiB."""
    states = b"".join(BAR % number for number in range(megabytes * 2**20 // len(BAR % 0)))
    line = STAMP % 1 + states + b"\n" + STAMP % 2 + b"done\n"
    return [line[start : start + 1024] for start in range(0, len(line), 1024)]


def test_an_epoch_of_a_progress_bar_is_one_short_line() -> None:
    with serving(lambda: a_bar(8)) as server:
        logs, written = read(server.client())
    assert 2 <= len(written) <= 7, "its end, and a few states before if that takes seconds"
    assert all(len(line) < 100 for line in written)
    assert written[-1] == "[worker-0] done"
    assert sum(map(len, logs.tail("worker-0-uid"))) < 200
    assert logs.reports.metrics == {"epoch": 1, "loss": 0.5}


def test_a_longer_epoch_takes_time_in_proportion() -> None:
    """Once 3.4 MB took 94 s, and held the interpreter against the thread that deletes the job."""

    def seconds(megabytes: int) -> float:
        pieces = a_bar(megabytes)
        with serving(lambda: pieces) as server:
            began = process_time()
            read(server.client())
            return process_time() - began

    assert in_proportion(seconds, 2)


def test_a_bar_is_shown_before_its_epoch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loglines, "STATE_SECONDS", 0.01)
    shown = Event()

    def epoch() -> Iterator[bytes]:
        yield STAMP % 1
        for number in range(1000):
            yield BAR % number
            if shown.wait(0.02):
                break
        yield b"\r100%|###|\n"

    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        shown.set()

    with serving(epoch) as server:
        logs = Logs(server.client(), PODS, write)
        logs.see([replica(over=False)])
        assert shown.wait(60)
        assert "10%|#" in written[0]
        logs.see([replica(over=True)])
        logs.finish()
    assert written[-1] == "[worker-0] 100%|###|"
    assert logs.tail("worker-0-uid") == ("100%|###|",), "states on the way are not last lines"


def test_a_broken_connection_loses_and_repeats_nothing() -> None:
    lines = [STAMP % second + b"line %d\n" % second for second in range(1, 5)]
    parts = [[lines[0], lines[1], lines[2][:34]], [*lines[1:3], lines[3][:10]], lines[2:]]
    with serving(*(lambda part=part: part for part in parts), cut={0, 1}) as server:
        _, written = read(server.client())
    assert written == [f"[worker-0] line {number}" for number in range(1, 5)]
    since = [query.get("sinceTime") for query in server.asked]
    assert since == [None, "2026-01-01T00:00:02Z", "2026-01-01T00:00:03Z"]


def test_a_busy_server_is_left_alone_as_long_as_it_asks() -> None:
    with serving(503, lambda: [STAMP % 1 + b"a\n"]) as server:
        began = monotonic()
        _, written = read(server.client())
        assert monotonic() - began >= 0.9
    assert written == ["[worker-0] a"]
    assert len(server.asked) == 2


def test_a_last_line_without_an_end_is_shown() -> None:
    """What a process writes last, before it is killed, has often no end."""
    with serving(lambda: [STAMP % 1 + b"a\n", STAMP % 2 + b"Killed"]) as server:
        _, written = read(server.client())
    assert written == ["[worker-0] a", "[worker-0] Killed"]
