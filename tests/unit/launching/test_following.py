"""What the launcher makes of what happens to a job and its pods while it follows them."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from threading import Condition, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from fake_api import Request
from launch_samples import EVENTS, JOBS, PODS, UID, a_job, a_pod, a_server, an_object, ended
from processes import PATIENCE

from ddpipe.errors import ClusterUnreachable, DeadlineExceeded, LaunchError, PodRefused, ReplicaFailed
from ddpipe.jobs.backend import Backend, all_backends
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.pytorchjob import BACKEND
from ddpipe.jobs.status import JobStatus, Phase, Stage
from ddpipe.kube.api import ApiError, Refused, Unanswered
from ddpipe.kube.watching import Message, Picture, Trouble
from ddpipe.launching import deadlines, diagnosis, elastic, following
from ddpipe.launching.deadlines import Limits
from ddpipe.launching.elastic import Resize
from ddpipe.launching.following import Ended, Follower
from ddpipe.launching.launcher import Outcome, launch
from ddpipe.launching.logs import Logs
from ddpipe.launching.pod_history import PodHistory

JOB = a_job(deadlines={"hopeless": 0.2}, outage=5, keep="always")
GOING = {"deletionTimestamp": "2026-01-01T00:00:42Z", "deletionGracePeriodSeconds": 30}


class Observed(io.StringIO):
    """Passes on what is written."""

    def __init__(self, observe: Callable[[str], None]) -> None:
        super().__init__()
        self.write = observe  # type: ignore[method-assign, assignment]


class Followed:
    """A job of two running pods, followed in a thread while a test does things to it."""

    def __init__(self, job: TrainingJob = JOB) -> None:
        self.job = job
        self.server = a_server(an_object(job, "Running"), a_pod(job), a_pod(job, "worker-1"))
        self.text = ""
        self._written = Condition()
        self._end: Future[Outcome] = Future()
        # A daemon: one that never comes to its end must not keep the tests from theirs.
        Thread(target=self._launch, daemon=True).start()
        for path in (JOBS, PODS, EVENTS):
            self.server.awaited(watch_of(path))

    def _launch(self) -> None:
        try:
            out = Observed(self._heard)
            self._end.set_result(launch(self.job, self.server, exists=lambda _: True, out=out))
        except LaunchError as error:
            self._end.set_exception(error)

    def pod(self, rank: int, phase: str = "Running", **changes: Any) -> None:
        """Bring a pod into another state."""
        self.server.put(PODS, a_pod(self.job, f"worker-{rank}", phase, **changes))

    def lose(self, rank: int, **last: Any) -> None:
        """Somebody deletes a pod, which ends and is gone."""
        self.pod(rank, metadata=GOING, **last)
        self.server.drop(f"{PODS}/{self.job.name}-worker-{rank}")

    def job_is(self, *conditions: str) -> None:
        self.server.put(JOBS, an_object(self.job, *conditions))

    def event(self, uid: str, reason: str, message: str, name: str = "e1") -> None:
        body = {"metadata": {"name": name}, "type": "Warning", "reason": reason, "message": message}
        self.server.put(EVENTS, {**body, "involvedObject": {"uid": uid}})

    def saw(self, words: str) -> None:
        """Wait until these words were printed."""
        with self._written:
            came = self._written.wait_for(lambda: words in self.text, PATIENCE)
        assert came, f"{words!r} never came: {self.text}"

    def _heard(self, text: str) -> None:
        with self._written:
            self.text += text
            self._written.notify_all()

    def outcome(self) -> Outcome:
        return self._end.result(PATIENCE)

    def error(self, kind: type[LaunchError]) -> LaunchError:
        with pytest.raises(kind) as caught:
            self.outcome()
        return caught.value


def watch_of(path: str) -> Callable[[Request], bool]:
    return lambda request: request.path == path and "watch" in request.query


def test_a_pod_that_somebody_deleted_is_the_cause_though_it_is_gone() -> None:
    followed = Followed()
    followed.lose(1, state=ended(143, at="2026-01-01T00:00:20Z"))
    followed.saw("worker-1 is replaced: its pod was deleted; killed by SIGTERM")
    followed.pod(0, "Failed", state=ended(1, at="2026-01-01T00:00:30Z"))
    followed.saw("1 of 2 pods, 1 ended")
    followed.job_is("Failed")
    error = followed.error(ReplicaFailed)
    assert error.which.startswith("worker-1 of PyTorchJob")
    assert "its pod was deleted" in error.seen
    assert "then worker-0: exit code 1" in error.seen


class Clock:
    """Seconds that only a test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def looked_at(
    *messages: Message | float,
    job: TrainingJob = JOB,
    say: Callable[[str], None] = lambda _: None,
    adopted_at: float | None = None,
    is_there: bool = True,
) -> Ended | Resize | None:
    """What a follower makes of pictures that come one by one; between them seconds pass where it says so."""
    logs, clock = Logs(a_server(), PODS, lambda _: None), Clock()
    limits = Limits(job.limits)
    server, adopted = a_server(*([an_object(job, "Running")] if is_there else [])), adopted_at is not None
    server.time = adopted_at
    follower = Follower(server, job, job.nodes, BACKEND, UID, logs, say, limits, clock, adopted)
    found = None
    for message in messages:
        if isinstance(message, (Picture, Trouble)):
            follower._observer.take(message)
        else:
            clock.now += message
        found = follower._look()
    return found


def picture(source: str, *objects: dict[str, Any], gone: dict[str, Any] | None = None) -> Picture:
    return Picture(source, {item["metadata"]["uid"]: item for item in objects}, gone)


RUNS, FAILED = picture("job", an_object(JOB, "Running")), picture("job", an_object(JOB, "Failed"))
BOTH = picture("pods", a_pod(JOB), a_pod(JOB, "worker-1"))
LEAVING = a_pod(JOB, "worker-0", metadata=GOING)


def failure_of(found: Ended | Resize | None) -> LaunchError:
    assert isinstance(found, Ended)
    return diagnosis.failure(JOB, BACKEND, "", replicas=found.replicas, tail=lambda _: (), notes=found.notes)


@pytest.mark.parametrize("at", ["2026-01-01T00:00:09Z", "2026-01-01T00:00:59Z"])
def test_a_pod_that_is_tidied_up_after_the_end_is_not_the_cause(at: str) -> None:
    """Even if clocks differ: a node's may be ahead of the server's, which times the removal."""
    failed = a_pod(JOB, "worker-1", "Failed", state=ended(3, at=at))
    error = failure_of(
        looked_at(
            picture("pods", a_pod(JOB), failed),
            picture("job", an_object(JOB, "Failed")),
            picture("pods", LEAVING, failed),
            picture("pods", failed, gone=LEAVING),
        )
    )
    assert error.which.startswith("worker-1 of PyTorchJob")
    assert error.seen == "exit code 3"


def test_a_removal_that_is_seen_after_the_end_may_be_the_cause() -> None:
    error = failure_of(
        looked_at(
            picture("pods", a_pod(JOB), a_pod(JOB, "worker-1")),
            picture("job", an_object(JOB, "Failed")),
            picture("pods", LEAVING, a_pod(JOB, "worker-1")),
        )
    )
    assert error.which.startswith("worker-0 of PyTorchJob")
    assert error.seen == "its pod was deleted"


def test_nothing_is_judged_before_both_the_job_and_its_pods_are_known() -> None:
    assert looked_at(picture("job", an_object(JOB, "Failed"))) is None


def test_a_failed_job_is_judged_when_its_pods_states_are_in() -> None:
    """The job may be seen to fail before its pods are; without any failed pod after two seconds."""
    failed = picture("job", an_object(JOB, "Failed"))
    exits = picture("pods", a_pod(JOB), a_pod(JOB, "worker-1", "Failed", state=ended(3)))
    assert looked_at(RUNS, BOTH, failed) is None
    assert looked_at(RUNS, BOTH, failed, 1.5) is None
    assert failure_of(looked_at(RUNS, BOTH, failed, 1.5, exits)).seen == "exit code 3"
    assert failure_of(looked_at(RUNS, BOTH, failed, 1.5, 1)).seen == "the operator gives no reason"


@pytest.mark.parametrize("first", [0, 1])
def test_the_cause_of_two_removals_in_a_second_is_seen_first(first: int) -> None:
    """Timestamps have whole seconds."""
    pods = [a_pod(JOB, f"worker-{rank}", metadata=GOING) for rank in range(2)]
    one = [pods[rank] if rank == first else a_pod(JOB, f"worker-{rank}") for rank in range(2)]
    found = looked_at(RUNS, BOTH, picture("pods", *one), picture("pods", *pods), FAILED)
    assert failure_of(found).which.startswith(f"worker-{first} of")


def test_a_success_waits_for_the_ends_of_all_pods() -> None:
    found = picture("job", an_object(JOB, "Succeeded"))
    over = a_pod(JOB, "worker-0", "Succeeded", state=ended(0))
    assert looked_at(found, picture("pods", over, a_pod(JOB, "worker-1"))) is None
    both = picture("pods", over, a_pod(JOB, "worker-1", "Succeeded", state=ended(0)))
    assert isinstance(looked_at(found, both), Ended)


def test_a_rank_that_outlives_a_process_killed_for_memory_is_named() -> None:
    """The kernel killed a worker of its data loader, for one, and the rank did not notice."""
    followed = Followed()
    followed.pod(1, "Succeeded", state=ended(0, reason="OOMKilled"))
    followed.saw("worker-1 exited with 0, though a process in it was killed for memory")
    followed.pod(0, "Succeeded", state=ended(0))
    followed.job_is("Succeeded")
    assert followed.outcome().restarts == 0


def test_only_a_process_that_its_rank_outlived_is_named() -> None:
    said = list[str]()
    ends = (ended(0, reason="Completed"), ended(137, reason="OOMKilled"), ended(0, reason="OOMKilled"))
    pods = [a_pod(JOB, f"worker-{rank}", state=state) for rank, state in enumerate(ends)]
    again = replace(JOB, nodes=3, restart="OnFailure")
    assert looked_at(RUNS, picture("pods", *pods), RUNS, job=again, say=said.append) is None
    assert [text for text in said if "killed for memory" in text] == [
        "worker-2 exited with 0, though a process in it was killed for memory"
    ]


@pytest.mark.parametrize(
    ("torn_since", "passed", "seconds"),
    [(None, 0, 20), (1000.0, 35, 20), (1000.0, 75, 15)],
)
def test_the_next_look_is_due_when_something_may_have_lasted_too_long(
    torn_since: float | None, passed: float, seconds: float
) -> None:
    """A rank that began again is judged after 90 s; ranks that print nothing after the deadline."""
    job, waits, clock = replace(JOB, deadlines={"silence": 20}), list[float](), Clock()
    logs = Logs(a_server(), PODS, lambda _: None)
    follower = Follower(a_server(), job, 2, BACKEND, UID, logs, print, Limits(job.limits), clock)
    clock.now += passed
    logs.silence.begin(clock.now)
    follower._torn_since = torn_since

    def receive(wait: float) -> None:
        waits.append(wait)
        raise StopIteration

    follower._observer.watch = lambda *_: None  # type: ignore[method-assign, assignment]
    follower._observer.receive = receive  # type: ignore[method-assign]
    with pytest.raises(StopIteration):
        follower.follow()
    assert waits == [seconds]


def test_the_last_three_notes_explain_a_failure() -> None:
    silent = [a_pod(JOB, f"worker-{rank}", node=f"n{rank}", status=UNSEEN) for rank in range(4)]
    pictures = [picture("pods", *silent[: rank + 1]) for rank in range(4)]
    job, failed = replace(JOB, nodes=4), picture("job", an_object(JOB, "Failed"))
    found = looked_at(RUNS, *pictures, failed, 3, job=job)
    assert isinstance(found, Ended)
    assert found.notes == tuple(
        f"node n{rank} has not reported for 40 s or more, with worker-{rank} on it" for rank in (1, 2, 3)
    )
    assert (found.deleted, found.stuck, found.restarts) == (False, None, 0)


def test_a_replaced_pod_is_reported_and_the_job_may_succeed() -> None:
    followed = Followed(replace(JOB, restart="ExitCode"))
    followed.lose(1, state=ended(143, at="2026-01-01T00:00:20Z"))
    followed.saw("worker-1 is replaced")
    followed.pod(1, metadata={"uid": "another"})
    followed.pod(1, "Succeeded", metadata={"uid": "another"}, state=ended(0))
    followed.pod(0, "Succeeded", state=ended(0))
    followed.job_is("Succeeded")
    assert followed.outcome().restarts == 1


@pytest.mark.parametrize("uid", [UID, "worker-1-uid"])
def test_what_the_events_of_the_job_say_is_heard(uid: str) -> None:
    followed = Followed()
    followed.server.drop(f"{PODS}/{JOB.name}-worker-1")
    followed.pod(1, "Pending", state={"waiting": {}})
    if uid == UID:
        followed.server.drop(f"{PODS}/{JOB.name}-worker-1")
        followed.event(uid, "FailedCreatePod", "exceeded quota: small")
    else:
        followed.event(uid, "FailedMount", 'secret "nope" not found')
    assert followed.error(PodRefused).seen in {"exceeded quota: small", 'secret "nope" not found'}


def test_nothing_but_the_job_its_pods_and_warnings_is_asked_for() -> None:
    """Pictures of everything in a namespace would cost an API server dearly."""
    followed = Followed()
    asked = {
        request.path: dict(request.query) for request in followed.server.asked if "watch" in request.query
    }
    assert asked[JOBS]["fieldSelector"] == f"metadata.name={JOB.name}"
    assert asked[PODS]["labelSelector"] == f"ddpipe.dev/job={JOB.name}"
    assert asked[EVENTS]["fieldSelector"] == "type=Warning"
    followed.pod(0, "Succeeded", state=ended(0))
    followed.pod(1, "Succeeded", state=ended(0))
    followed.job_is("Succeeded")
    followed.outcome()


def test_restarts_are_reported_while_they_happen() -> None:
    followed = Followed()
    followed.pod(1, container={"restartCount": 2})
    followed.saw("running: 2 of 2 pods, 2 restarts")
    followed.pod(0, "Succeeded", state=ended(0))
    followed.pod(1, "Succeeded", state=ended(0), container={"restartCount": 2})
    followed.job_is("Succeeded")
    assert followed.outcome().restarts == 2


def received(*messages: Message) -> list[int]:
    """How many messages are taken in before each look."""
    logs = Logs(a_server(), PODS, lambda _: None)
    follower = Follower(a_server(), JOB, JOB.nodes, BACKEND, UID, logs, lambda _: None, Limits(JOB.limits))
    for message in messages:
        follower._observer._inbox.put(message)
    counts = []
    while follower._observer.has_more or not follower._observer._inbox.empty():
        before = follower._observer._inbox.qsize() + follower._observer.has_more
        follower._observer.receive(1)
        counts.append(before - follower._observer._inbox.qsize() - follower._observer.has_more)
    return counts


def test_changes_that_come_together_are_looked_at_together() -> None:
    """Operators write the job's status with each change of a pod."""
    runs = picture("job", an_object(JOB, "Running"))
    assert received(runs, *[BOTH, runs, picture("events")] * 100) == [1, 300]


def test_changes_before_a_new_phase_are_looked_at_before_it() -> None:
    failed, gone = picture("job", an_object(JOB, "Failed")), picture("pods")
    assert received(RUNS, BOTH, BOTH, failed, gone, gone) == [1, 2, 1, 2]


HURRIED = replace(JOB, deadlines={"hopeless": 1e-9})


def test_events_of_other_jobs_wake_nobody() -> None:
    """A namespace has hundreds of launchers: each keeps the warnings about its own job only."""
    logs = Logs(a_server(), PODS, lambda _: None)
    follower = Follower(a_server(), JOB, JOB.nodes, BACKEND, UID, logs, print, Limits(JOB.limits))
    (events,) = (source for source in follower._observer._sources() if source.name == "events")
    job = follower.job.name
    for name, ours in {job: True, f"{job}-worker-3": True, f"{job}0": False, "other-worker-0": False}.items():
        assert events.concerns({"involvedObject": {"name": name}}) is ours


def refusal(version: str, message: str, uid: str = UID) -> dict[str, Any]:
    metadata = {"resourceVersion": version, "uid": version}
    return {
        "metadata": metadata,
        "reason": "FailedCreatePod",
        "message": message,
        "involvedObject": {"uid": uid},
    }


def one_pod_missing(*events: dict[str, Any]) -> tuple[Message | float, ...]:
    """Pictures of a job that gets no second pod for a second."""
    return (
        picture("job", an_object(JOB, "Created")),
        picture("pods", a_pod(JOB)),
        picture("events", *events),
        1,
    )


def test_what_others_events_say_is_not_heard() -> None:
    theirs = refusal("5", "exceeded quota: theirs", uid="somebody-else")
    assert looked_at(*one_pod_missing(theirs), job=HURRIED) is None


def test_a_suspended_job_has_no_hopeless_pods() -> None:
    """What its pods were refused for may be why it was suspended."""
    suspended = an_object(JOB, "Created", runPolicy={"suspend": True})
    _, *rest = one_pod_missing(refusal("5", "exceeded quota: ours"))
    assert looked_at(picture("job", suspended), *rest, job=HURRIED) is None


@pytest.mark.parametrize(
    ("error", "given_up", "words"),
    [
        (Unanswered("cut"), ClusterUnreachable, "cut"),
        (Refused(503, "", "overloaded"), ClusterUnreachable, "overloaded"),
        (Refused(403, "Forbidden", "no"), Refused, "HTTP 403 no"),
    ],
)
def test_what_cannot_be_seen_for_too_long_is_given_up(
    error: ApiError, given_up: type[Exception], words: str
) -> None:
    """A cut is waited for as long as an outage may last, a refusal as long as what looks hopeless."""
    for impatient in ({"outage": 1e-9}, {"hopeless": 1e-9}):
        job = replace(JOB, deadlines={"outage": 100.0, "hopeless": 100.0, **impatient})
        troubles = Trouble("pods", error), 1, Trouble("pods", error)
        if ("outage" in impatient) is (given_up is ClusterUnreachable):
            with pytest.raises(given_up, match=words):
                looked_at(*troubles, job=job)
        else:
            assert looked_at(*troubles, job=job) is None


def test_what_is_seen_again_is_no_trouble_any_more() -> None:
    job, trouble = replace(JOB, deadlines={**JOB.deadlines, "outage": 3}), Trouble("pods", Unanswered("cut"))
    found = picture("job", an_object(JOB, "Running")), picture("pods", a_pod(JOB), a_pod(JOB, "worker-1"))
    assert looked_at(trouble, 2, *found, trouble, 2, found[0], job=job) is None
    with pytest.raises(ClusterUnreachable):
        looked_at(trouble, 2, found[0], 2, job=job)


AWAY = Trouble("events", Unanswered("etcd is away"))


def test_an_outage_of_the_events_does_not_end_the_launch() -> None:
    """They may have a store of their own; the job and its pods are watched throughout."""
    said: list[str] = []
    healthy = picture("job", an_object(JOB, "Running")), picture("pods", a_pod(JOB), a_pod(JOB, "worker-1"))
    assert looked_at(*healthy, AWAY, 3600, *healthy, AWAY, 3600, say=said.append) is None
    assert said[1:] == ["events cannot be read, continuing without them: etcd is away"]


def test_deadlines_count_while_events_are_away() -> None:
    job = replace(JOB, deadlines={"finished": 100})
    with pytest.raises(DeadlineExceeded):
        looked_at(RUNS, BOTH, AWAY, 60, AWAY, 60, job=job)


RANKS = ("worker-0", "worker-1")


def minute(number: int) -> float:
    """Of the first of January, by the server's clock: this machine's is months ahead or behind."""
    return datetime(2026, 1, 1, tzinfo=UTC).timestamp() + 60 * number


def ran_from(rank: str, created: str, began: str) -> dict[str, Any]:
    times = {"metadata": {"uid": rank, "creationTimestamp": f"2026-01-01T{created}Z"}}
    return a_pod(JOB, rank, state={"running": {"startedAt": f"2026-01-01T{began}Z"}}, **times)


def test_the_limit_of_a_job_continues_when_it_is_adopted() -> None:
    """The job ran for 50 minutes before its launcher was evicted; one of its pods is a later one."""
    job = replace(JOB, nodes=3, deadlines={"finished": 3600})
    first = [ran_from(f"worker-{rank}", "00:00:00", f"00:0{4 + rank}:00") for rank in range(2)]
    pods = picture("pods", *first, ran_from("worker-2", "00:40:00", "00:41:00"))
    assert looked_at(RUNS, pods, 540, job=job, adopted_at=minute(55)) is None
    with pytest.raises(DeadlineExceeded):
        looked_at(RUNS, pods, 660, job=job, adopted_at=minute(55))
    assert looked_at(RUNS, pods, 660, job=job) is None, "a job that is not adopted has just begun"


def test_a_pod_of_many_restarts_began_when_it_was_started() -> None:
    """It shows its last two runs only, which may be much younger than the job."""
    job = replace(JOB, deadlines={"finished": 3600})
    ran = {
        "state": {"running": {"startedAt": "2026-01-01T00:50:00Z"}},
        "container": {"restartCount": 3, "lastState": ended(1)},
        "status": {"startTime": "2026-01-01T00:02:00Z"},
    }
    created = "2026-01-01T00:00:00Z"
    pods = picture(
        "pods",
        *(a_pod(JOB, rank, metadata={"uid": rank, "creationTimestamp": created}, **ran) for rank in RANKS),
    )
    assert looked_at(RUNS, pods, 400, job=job, adopted_at=minute(55)) is None
    with pytest.raises(DeadlineExceeded):
        looked_at(RUNS, pods, 440, job=job, adopted_at=minute(55))


def test_a_clock_that_is_behind_gives_no_more_time() -> None:
    job = replace(JOB, deadlines={"finished": 100})
    pods = picture("pods", *(ran_from(f"worker-{rank}", "00:00:00", "01:00:00") for rank in range(2)))
    with pytest.raises(DeadlineExceeded):
        looked_at(RUNS, pods, 101, job=job, adopted_at=minute(1))


def test_events_from_before_their_outage_do_not_count() -> None:
    *pictures, seconds = one_pod_missing(refusal("5", "no such account"))
    assert looked_at(*pictures, AWAY, seconds, job=HURRIED) is None


def test_each_trouble_is_reported_once_in_an_outage() -> None:
    said: list[str] = []
    away, refused = Trouble("pods", Unanswered("cut")), Trouble("job", Refused(403, "Forbidden", "no list"))
    healthy = picture("pods", a_pod(JOB), a_pod(JOB, "worker-1")), picture("job", an_object(JOB, "Running"))
    looked_at(away, refused, away, refused, *healthy, away, say=said.append)
    lost = "the API server is away, waiting: cut"
    assert said[:3] == [
        lost,
        "the API server refuses, waiting: HTTP 403 no list",
        "the API server answers again",
    ]
    assert said[3:].count(lost) == 1


def test_the_latest_rejection_counts_in_any_order_of_events() -> None:
    for events in (
        (refusal("10", "second"), refusal("9", "first")),
        (refusal("9", "first"), refusal("10", "second")),
    ):
        with pytest.raises(PodRefused, match="second"):
            looked_at(*one_pod_missing(*events), job=HURRIED)


def test_a_webhook_that_does_not_answer_is_named_once_and_waited_for() -> None:
    said: list[str] = []
    silent = refusal("5", 'failed calling webhook "mpod.kb.io": connection refused')
    pictures = (*one_pod_missing(silent), 400, 198)
    assert looked_at(*pictures, job=HURRIED, say=said.append) is None
    assert sum(line.startswith("waiting, as the cluster rejects") for line in said) == 1
    assert "failed calling webhook" in "".join(said)
    with pytest.raises(PodRefused, match=r"mpod\.kb\.io"):
        looked_at(*pictures, 2, job=HURRIED)


def test_the_clock_of_a_stage_stands_still_while_the_server_is_away() -> None:
    followed = Followed(replace(JOB, deadlines={"finished": 0.6, "outage": 30}))
    followed.server.fail(lambda request: request.path == PODS, Unanswered("refused"), times=4)
    followed.server.end_watches()
    followed.saw("the API server is away, waiting: refused")
    followed.saw("the API server answers again")
    error = followed.error(DeadlineExceeded)
    assert "still running after 1 s" in error.seen


def test_a_suspended_job_waits_and_says_so() -> None:
    followed = Followed(replace(JOB, deadlines={"finished": 0.5}))
    followed.server.put(JOBS, an_object(JOB, "Running", runPolicy={"suspend": True}))
    followed.saw("suspended: waiting for its queue")
    followed.pod(0, "Succeeded", state=ended(0))
    followed.pod(1, "Succeeded", state=ended(0))
    followed.job_is("Succeeded")
    assert followed.outcome().name == JOB.name


def replaced(phase: str = "Failed", **last: Any) -> tuple[Picture, Picture]:
    """Views of a pod that is gone and of its replacement."""
    left = picture("pods", a_pod(JOB), gone=a_pod(JOB, "worker-1", phase, metadata=GOING, **last))
    return left, picture("pods", a_pod(JOB), a_pod(JOB, "worker-1", metadata={"uid": "another"}))


def test_a_pod_that_is_replaced_against_the_rules_ends_the_job() -> None:
    """An operator that did not see it fail makes another one."""
    left, again = replaced(state=ended(143, at="2026-01-01T00:00:20Z"))
    assert looked_at(RUNS, BOTH, left) is None, "the operator may call it failed yet"
    error = failure_of(looked_at(RUNS, BOTH, left, again))
    assert error.which.startswith("worker-1 of")
    assert "its pod was deleted" in error.seen
    allowed = replace(JOB, restart="ExitCode")
    assert looked_at(RUNS, BOTH, left, again, job=allowed) is None


def test_pods_that_go_with_their_job_are_no_failure_of_theirs() -> None:
    """The job's deletion is seen after that of its pods: they come over different connections."""
    left, again = replaced(state=ended(143, at="2026-01-01T00:00:20Z"))
    with pytest.raises(LaunchError, match="the job was deleted while it was followed"):
        looked_at(RUNS, BOTH, left, again, is_there=False)


def test_a_pod_that_does_not_stop_terminating_ends_the_job() -> None:
    """Its node is lost, and operators replace it only when it is gone."""
    said: list[str] = []
    stuck = picture("pods", LEAVING, a_pod(JOB, "worker-1"))
    for job in (JOB, replace(JOB, restart="ExitCode")):
        assert looked_at(RUNS, BOTH, stuck, 80, job=job, say=said.append) is None
        assert "running: 2 of 2 pods, 1 terminating" in said
        error = failure_of(looked_at(RUNS, BOTH, stuck, 80, 20, job=job))
        assert error.which.startswith("worker-0 of")
        assert (
            "still terminating 90 s after its deletion was requested, its node n1 may be lost" in error.seen
        )
        assert f"--force --grace-period=0 -n team {JOB.name}-worker-0" in error.seen


UNSEEN = {"conditions": [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]}


def test_a_node_that_does_not_report_is_named_at_once_and_once() -> None:
    said: list[str] = []
    silent = picture("pods", a_pod(JOB), a_pod(JOB, "worker-1", node="n2", status=UNSEEN))
    assert looked_at(RUNS, BOTH, silent, 5, BOTH, say=said.append) is None
    named = [text for text in said if "n2" in text]
    assert named == [
        "node n2 has not reported for 40 s or more, with worker-1 on it",
        "node n2 reports again, or its pods are gone",
    ]


def test_an_outage_of_many_nodes_takes_few_lines() -> None:
    said: list[str] = []
    pods = [a_pod(JOB, f"worker-{rank}", node=f"n{rank}", status=UNSEEN) for rank in range(40)]
    assert looked_at(RUNS, picture("pods", *pods), BOTH, job=replace(JOB, nodes=40), say=said.append) is None
    assert sum("has not reported" in text or "reports again" in text for text in said) == 16
    assert said.count("many nodes come and go: no more lines about them follow") == 1


@pytest.mark.parametrize(("restart", "nodes"), [("Never", None), ("OnFailure", 2), ("ExitCode", 2)])
def test_a_pod_that_leaves_a_silent_node_is_not_waited_for(restart: str, nodes: int | None) -> None:
    job = replace(JOB, restart=restart)
    lost = a_pod(JOB, "worker-1", node="n2", status=UNSEEN, metadata=GOING)
    found = looked_at(RUNS, BOTH, picture("pods", a_pod(JOB), lost), job=job)
    assert "node n2 has not reported" in failure_of(found).seen
    assert isinstance(found, Ended)
    again = elastic.after_loss(job, found.replicas, found.stuck)
    assert (again and again.nodes) == nodes


@pytest.mark.parametrize("restart", ["Never", "OnFailure"])
@pytest.mark.parametrize("is_quiet", [True, False])
def test_ranks_that_wait_for_one_that_began_again_with_its_node_begin_again(
    restart: str, *, is_quiet: bool
) -> None:
    job, logs = replace(JOB, restart=restart), Logs(a_server(), PODS, lambda _: None)
    follower = Follower(a_server(), job, 2, BACKEND, UID, logs, print, Limits(job.limits), clock := Clock())
    silent = picture("pods", a_pod(JOB), a_pod(JOB, "worker-1", status=UNSEEN))
    back = picture("pods", a_pod(JOB), a_pod(JOB, "worker-1", container={"restartCount": 1}))
    seen = None
    for seconds, message in (
        (0, RUNS),
        (0, BOTH),
        (0, silent),
        (60, back),
        (30, back),
        (59, back),
        (1, back),
    ):
        clock.now += seconds
        if not is_quiet or seconds == 30:  # what it prints at its beginning
            logs.silence.take("worker-1", clock.now)
        follower._observer.take(message)
        assert seen is None
        seen = follower._look()
    why = "worker-1 began again with its node, and nothing was printed for 60 s"
    assert seen == (Resize(2, 2, why) if is_quiet and restart != "Never" else None)


def test_a_pod_that_is_stuck_may_be_continued_without() -> None:
    found = looked_at(RUNS, BOTH, picture("pods", LEAVING, a_pod(JOB, "worker-1")), 100)
    assert isinstance(found, Ended)
    resize = elastic.after_loss(replace(JOB, min_nodes=1), found.replicas)
    assert resize is not None
    assert resize.nodes == 1


def test_a_pod_that_terminates_in_time_does_not_end_the_job() -> None:
    stuck = picture("pods", LEAVING, a_pod(JOB, "worker-1"))
    gone = picture("pods", a_pod(JOB, "worker-1"), gone=LEAVING)
    assert looked_at(RUNS, BOTH, stuck, 80, gone, 80, job=replace(JOB, restart="ExitCode")) is None


def test_a_pod_that_had_not_begun_may_be_replaced() -> None:
    left, again = replaced("Pending", state={"waiting": {}})
    assert looked_at(RUNS, BOTH, left, again) is None


def test_a_pod_that_goes_while_its_job_is_suspended_may_be_replaced() -> None:
    left, again = replaced(state=ended(143, at="2026-01-01T00:00:20Z"))
    suspended = picture("job", an_object(JOB, "Created", runPolicy={"suspend": True}))
    assert looked_at(RUNS, BOTH, suspended, left, RUNS, again) is None
    assert looked_at(RUNS, BOTH, left, suspended, RUNS, again) is None


@pytest.mark.parametrize(("condition", "phase"), [("Succeeded", Phase.SUCCEEDED), ("Failed", Phase.FAILED)])
def test_a_job_removed_after_its_end_is_judged_by_its_last_state(condition: str, phase: Phase) -> None:
    code = int(condition == "Failed")
    over = (a_pod(JOB, f"worker-{rank}", condition, state=ended(code)) for rank in range(2))
    gone = picture("job", gone=an_object(JOB, condition))
    found = looked_at(RUNS, picture("pods", *over), gone)
    assert isinstance(found, Ended)
    assert found.status.phase is phase
    with pytest.raises(LaunchError, match="was deleted while it was followed"):
        looked_at(RUNS, BOTH, picture("job", gone=an_object(JOB, "Running")))


def test_a_job_of_the_same_name_is_not_the_job() -> None:
    followed = Followed()
    found = an_object(JOB, "Succeeded")
    followed.server.drop(f"{JOBS}/{JOB.name}")
    followed.server.put(JOBS, {**found, "metadata": {**found["metadata"], "uid": "another"}})
    with pytest.raises(LaunchError, match="was deleted while it was followed"):
        followed.outcome()


def test_a_job_is_judged_without_its_pods_last_states_in_the_end() -> None:
    followed = Followed()
    followed.job_is("Failed")
    assert followed.error(ReplicaFailed).seen.startswith("it is Failed")


@pytest.mark.parametrize("backend", all_backends(), ids=lambda one: str(one.resource.kind))
def test_success_needs_as_many_ranks_as_the_job_was_created_with(backend: Backend) -> None:
    """Somebody may have scaled the object."""
    history = PodHistory(JOB, backend)
    status = JobStatus(phase=Phase.SUCCEEDED, stage=Stage.FINISHED, message="", replicas=())
    found = backend.manifest(JOB, None)
    assert backend.wanted(found) == 2
    assert history.missing(found, status) == 2
    assert history.missing(found, replace(status, succeeded=1)) == 1
    assert history.missing(found, replace(status, succeeded=2)) == 0


def test_a_job_that_somebody_scales_down_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_RECONNECTING", 0.2)
    followed = Followed()
    smaller = an_object(replace(followed.job, nodes=1), "Running")
    followed.server.put(JOBS, smaller)
    followed.saw("somebody changed the number of its pods from 2 to 1")
    followed.lose(1)
    followed.pod(0, "Succeeded", state=ended(0))
    followed.server.put(JOBS, an_object(replace(followed.job, nodes=1), "Running=False", "Succeeded"))
    error = followed.error(ReplicaFailed)
    assert "its pod was deleted" in error.seen
    assert "somebody changed the number of its pods from 2 to 1" in error.seen


def test_a_pod_that_is_deleted_after_the_success_of_rank_0_has_not_succeeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator counts what still runs as succeeded when a job's master has."""
    monkeypatch.setattr(deadlines, "_RECONNECTING", 0.2)
    followed = Followed()
    followed.pod(0, "Succeeded", state=ended(0))
    followed.server.put(JOBS, an_object(followed.job, "Running=False", "Succeeded"))
    followed.lose(1)
    error = followed.error(ReplicaFailed)
    assert "its pod was deleted" in error.seen


@pytest.mark.parametrize("nodes", [2, 300, 3000])
def test_of_many_pods_several_changes_are_looked_at_together(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(following, "time", SimpleNamespace(sleep=pauses.append))
    followed = Followed(replace(JOB, nodes=nodes))
    followed.job_is("Failed")
    followed.error(ReplicaFailed)
    assert set(pauses) == {min(0.2, nodes * 0.0004)}


def test_pods_that_no_longer_exist_were_not_seen_to_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_RECONNECTING", 0.2)
    followed = Followed()
    followed.pod(0, "Succeeded", state=ended(0))
    found = an_object(followed.job, "Succeeded")
    followed.server.put(JOBS, {**found, "status": {"conditions": found["status"]["conditions"]}})
    assert "1 of 2 pods were not seen to succeed" in followed.error(ReplicaFailed).seen


def test_a_warning_about_a_pod_that_waits_is_shown_once_and_is_the_cause_of_a_late_start() -> None:
    job, said = replace(JOB, deadlines={"pulled": 100}), list[str]()
    late = a_pod(JOB, phase="Pending", state={"waiting": {"reason": "ContainerCreating"}})
    about = {"involvedObject": {"uid": "worker-0-uid"}, "count": 3}
    mount = {**about, "reason": "FailedMount", "message": "timed out"}
    version = {"uid": "e1", "resourceVersion": "7"}
    events = picture("events", {**mount, "metadata": version})
    pods = picture("pods", late, a_pod(JOB, "worker-1"))
    text = "worker-0: FailedMount (3 times): timed out"
    with pytest.raises(DeadlineExceeded, match="the latest warning is worker-0: FailedMount"):
        looked_at(RUNS, pods, events, events, 60, 60, job=job, say=said.append)
    assert said.count(text) == 1
