"""The lines about a job's progress: few of them, and at once where a pod fails."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from threading import Event, Thread
from typing import Any

import pytest
from launch_samples import a_job, a_pod, an_object, ended

from ddpipe.jobs.pytorchjob import status
from ddpipe.jobs.replicas import Cache
from ddpipe.jobs.status import JobStatus, Phase, Stage
from ddpipe.launching.progress import MOST_LINES, Output, Progress, status_line
from ddpipe.processes.reports import Reports

PENDING: dict[str, Any] = {"phase": "Pending", "node": "", "state": {}}
PULLING: dict[str, Any] = {"phase": "Pending", "state": {"waiting": {"reason": "ContainerCreating"}}}
RUNNING: dict[str, Any] = {"phase": "Running"}
SUCCEEDED: dict[str, Any] = {"phase": "Succeeded", "state": ended(0)}
GOING = {"deletionTimestamp": "2026-01-01T00:00:42Z", "deletionGracePeriodSeconds": 30}


def failed(code: int, **changes: Any) -> dict[str, Any]:
    return {"phase": "Failed", "state": ended(code), **changes}


class Watched:
    """A job whose progress is printed, and a clock."""

    def __init__(self, nodes: int = 2) -> None:
        self.job, self.lines, self.now = a_job(nodes=nodes), list[str](), 0.0
        self.reports = Reports()
        self.progress, self._read = Progress(self.job, self.lines.append, self.reports), Cache()
        self._pods = [a_pod(self.job, f"worker-{rank}", **PENDING) for rank in range(nodes)]
        self._version = 0

    def change(self, rank: int, **pod: Any) -> None:
        self._version += 1
        metadata = {"resourceVersion": str(self._version), **pod.pop("metadata", {})}
        node = pod.pop("node", f"n{rank}")
        self._pods[rank] = a_pod(self.job, f"worker-{rank}", node=node, metadata=metadata, **pod)

    def shows(self, pods: Sequence[dict[str, Any]] = (), after: float = 0, **found: Any) -> list[str]:
        """The new lines when these are the states of the first pods, so many seconds later."""
        for rank, pod in enumerate(pods):
            self.change(rank, **pod)
        return self.look(
            status(self.job, an_object(self.job, "Running", **found), self._pods, self._read), after
        )

    def look(self, now: JobStatus, after: float = 0) -> list[str]:
        self.now += after
        before = len(self.lines)
        self.progress.report(now, self.now)
        return self.lines[before:]


def test_a_small_job_s_changes_are_printed_at_once() -> None:
    watched = Watched()
    assert watched.shows([PENDING, PENDING]) == ["waiting for nodes: 2 of 2 pods"]
    assert watched.shows([PULLING, PENDING]) == [
        "waiting for nodes: 2 of 2 pods (worker-0: ContainerCreating)"
    ]
    assert watched.shows([PULLING, PULLING]) == ["pulling images: 2 of 2 pods (worker-0: ContainerCreating)"]
    assert watched.shows([RUNNING, RUNNING]) == ["running: 2 of 2 pods"]
    assert watched.shows([RUNNING, RUNNING], after=60) == []
    assert watched.shows([RUNNING, SUCCEEDED]) == ["running: 2 of 2 pods, 1 ended"]


def test_small_changes_of_a_large_job_leave_lines_for_the_next_state() -> None:
    watched = Watched(nodes=20)
    small = [watched.shows([SUCCEEDED] * ended + [RUNNING] * (20 - ended)) for ended in range(20)]
    assert sum(map(len, small)) == 6  # of ten at once, four are kept
    assert watched.shows([PULLING] * 20) == ["pulling images: 20 of 20 pods (worker-0: ContainerCreating)"]


def test_a_long_training_is_one_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    monkeypatch.setattr(time, "time", lambda: watched.now)
    watched.shows([RUNNING, RUNNING])
    lines = []
    for second in range(5, 151, 5):
        watched.reports.take("worker-0", f"step={second} of=1000 loss=0.5", second)
        lines += watched.shows(after=5)
    assert [line.partition(" seconds_left=")[0] for line in lines] == [
        f"progress={share} step={step}" for share, step in ((0.06, 60), (0.12, 120))
    ]
    assert "loss=0.5" in lines[0]
    assert watched.shows(after=30) == ["progress=0.15 step=150 seconds_left=820 loss=0.5"]
    assert watched.shows(after=61) == ["progress=0.15 step=150 loss=0.5"], "silent"
    assert watched.shows(after=61) == []


def test_512_pods_need_at_most_40_lines() -> None:
    """In 20 seconds each of them is scheduled, started and ends."""
    watched = Watched(512)
    for state in (PENDING, PULLING, RUNNING, SUCCEEDED):
        for rank in range(512):
            watched.change(rank, **state)
            if rank % 8 == 0:
                watched.shows(after=0.08)
    watched.shows(after=60)
    assert len(watched.lines) <= 40
    assert watched.lines[-1] == "running: 512 of 512 pods, 512 ended"
    for beginning in ("waiting for nodes", "pulling images", "running"):
        assert any(line.startswith(beginning) for line in watched.lines)


def test_a_line_that_was_put_off_is_printed_when_it_is_due() -> None:
    watched = Watched(100)
    watched.shows([RUNNING] * 100)
    for rank in range(100):
        watched.change(rank, **SUCCEEDED)
        watched.shows()
    due = min(watched.progress.next)
    assert watched.shows(after=due + 0.001 - watched.now) == ["running: 100 of 100 pods, 100 ended"]


def test_small_changes_are_a_line_in_ten_seconds_once_six_were_printed() -> None:
    """After a quiet time, six at once again."""
    watched, printed = Watched(100), list[float]()
    watched.shows([RUNNING] * 100)
    for rank, second in enumerate([0] * 10 + list(range(5, 41, 5)) + [1000] * 10):
        watched.change(rank, **SUCCEEDED)
        if watched.shows(after=second - watched.now):
            printed.append(second)
    assert printed == [0] * 5 + [10, 20, 30, 40] + [1000] * 6
    assert min(watched.progress.next) == 1010


def test_a_status_counts_what_is_not_as_it_should_be() -> None:
    job = a_job(nodes=2)
    going = a_pod(job, "worker-1", metadata=GOING, container={"restartCount": 3})
    ends = [a_pod(job, f"worker-{rank}", **SUCCEEDED) for rank in (2, 3)]
    waits = a_pod(job, "worker-0", **PULLING)
    found = status(job, an_object(job, "Running"), [waits, going])
    assert status_line(job, found) == (
        "pulling images: 2 of 2 pods, 1 terminating, 3 restarts (worker-0: ContainerCreating)"
    )
    of_search = JobStatus(
        phase=Phase.ACTIVE,
        stage=Stage.FINISHED,
        message="",
        replicas=status(a_job(nodes=4), an_object(job, "Running"), ends).replicas * 2,
    )
    assert status_line(job, of_search) == "running: 4 of 4 pods, 4 ended"


def test_failures_that_keep_coming_are_collected_for_twice_as_long_each_time() -> None:
    """For at most a minute; after two quiet minutes the next two are lines of their own again."""
    watched, printed = Watched(), list[float]()
    watched.shows([RUNNING, RUNNING])
    for run, second in enumerate([*range(250), 363, 364], 1):
        container = {"restartCount": run, "lastState": ended(1)}
        if any("failed" in line for line in watched.shows([{"container": container}], second - watched.now)):
            printed.append(second)
            assert "failed: exit code 1" in watched.lines[-1] + watched.lines[-2]
    assert printed == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 363, 364]


def test_the_next_line_about_failures_is_due_when_they_were_collected_for_long_enough() -> None:
    watched = Watched()
    watched.shows([{"container": {"restartCount": 1, "lastState": ended(1)}}])
    assert watched.progress.next == ()
    watched.shows([{"container": {"restartCount": 2, "lastState": ended(1)}}], 0.5)
    assert watched.progress.next == (1,)
    assert "worker-0 on n0 failed: exit code 1" in watched.shows(after=0.5)
    assert watched.progress.next == ()


def test_the_cost_of_a_change_is_one_pod() -> None:
    watched = Watched(512)
    watched.shows([RUNNING] * 512)
    read = watched._read
    before = {uid: replica for uid, (_, _, replica) in read._read.items()}
    watched.change(7, **SUCCEEDED)
    watched.shows()
    changed = [uid for uid, (_, _, replica) in read._read.items() if replica is not before[uid]]
    assert changed == ["worker-7-uid"]


def test_a_failed_pod_is_named_at_once_with_node_and_code() -> None:
    watched = Watched(512)
    watched.shows([RUNNING] * 512)
    watched.change(317, **failed(3))
    assert "worker-317 on n317 failed: exit code 3" in watched.shows()


def test_many_failures_with_one_cause_are_one_line() -> None:
    watched = Watched(512)
    watched.shows([RUNNING] * 512)
    watched.change(17, **failed(137))
    watched.shows()
    for rank in range(100, 400):
        watched.change(rank, **failed(1))
        watched.shows(after=0.005)
    watched.shows(after=5)
    about = [line for line in watched.lines if "failed" in line]
    assert about[0] == "worker-17 on n17 failed: killed by SIGKILL (exit code 137)"
    assert len(about) <= 3
    assert sum(int(line.split()[0]) for line in about[1:]) == 300
    assert "pods failed (worker-" in about[-1]


def test_failures_of_each_restart_are_reported_less_and_less_often() -> None:
    """A job that crashes again and again for a day."""
    watched = Watched()
    for run in range(1000):
        container = {"restartCount": run, "lastState": ended(1)} if run else {}
        watched.shows([{"container": container}, RUNNING], after=5)
    about = [line for line in watched.lines if "failed" in line]
    assert about[:2] == ["worker-0 on n0 failed: exit code 1"] * 2
    assert len(about) < 120


def test_a_pod_removed_after_the_end_is_not_reported() -> None:
    watched = Watched()
    watched.shows([RUNNING, failed(3)])
    over = [{**RUNNING, "metadata": GOING}, failed(3)]
    for rank, pod in enumerate(over):
        watched.change(rank, **dict(pod))
    found = status(watched.job, an_object(watched.job, "Failed"), watched._pods)
    assert [line for line in watched.look(found, after=5) if "failed" in line] == []


def test_a_removed_pod_is_reported_while_the_job_runs() -> None:
    watched = Watched()
    watched.shows([RUNNING, RUNNING])
    assert "worker-1 on n1 failed: its pod was deleted" in watched.shows(
        [RUNNING, {**RUNNING, "metadata": GOING}]
    )


def test_pods_removed_by_a_suspension_are_not_reported() -> None:
    watched = Watched()
    gone = [{**failed(143), "metadata": GOING}] * 2
    lines = watched.shows(gone, runPolicy={"suspend": True})
    assert lines == ["suspended: waiting for its queue, or for somebody to resume it"]


def test_phase_and_stage_have_words() -> None:
    watched = Watched()
    for stage in Stage:
        (line,) = watched.look(JobStatus(phase=Phase.ACTIVE, stage=stage, message="", replicas=()))
        assert line.endswith(": 0 of 2 pods")


class Stuck(io.StringIO):
    """A stream that blocks until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.free = Event()

    def write(self, text: str) -> int:
        self.free.wait(60)
        return super().write(text)


def test_lines_are_in_order_and_the_launcher_s_are_marked() -> None:
    out = io.StringIO()
    output = Output(out)
    output.log("[worker-0] a")
    output.say("b")
    output.log("[worker-0] c")
    output.finish()
    assert out.getvalue() == "[worker-0] a\n[launch] b\n[worker-0] c\n"


def test_the_last_line_is_shown_at_once() -> None:
    shown = Event()

    class Terminal(io.StringIO):
        def flush(self) -> None:
            shown.set()

    Output(Terminal()).say("a")
    assert shown.wait(60)


def test_a_closed_stream_is_no_error() -> None:
    out = io.StringIO()
    out.close()
    output = Output(out)
    output.say("a")
    output.finish()


def test_a_stuck_reader_costs_the_launcher_s_own_lines() -> None:
    out = Stuck()
    output = Output(out)
    for number in range(2500):
        output.say(str(number))
    output.finish(silence=0.05)
    out.free.set()
    output.finish()
    lines = out.getvalue().splitlines()
    assert len(lines) in {2000, 2001}, "what the queue holds, and one that was about to be written"
    assert lines[1999] == "[launch] 1999"


def test_a_log_waits_for_a_slow_reader() -> None:
    out = Stuck()
    output = Output(out)
    writer = Thread(
        target=lambda: [output.log(str(number)) for number in range(MOST_LINES + 500)], daemon=True
    )
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()
    out.free.set()
    writer.join(60)
    output.finish()
    assert out.getvalue().splitlines() == [str(number) for number in range(MOST_LINES + 500)]
