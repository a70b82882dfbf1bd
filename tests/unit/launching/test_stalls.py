"""What keeps a job from running: which states are given up, and after how long."""

from __future__ import annotations

from typing import Any

import pytest
from launch_samples import UID, a_job, a_pod, an_object

from ddpipe.errors import DdpipeError, ImageUnavailable, LaunchError, PodRefused
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.options import Deadlines
from ddpipe.jobs.pytorchjob import BACKEND, status
from ddpipe.jobs.status import IMAGE_TROUBLE
from ddpipe.launching.stalls import Stall, StallPatience, latest_warning, stalls_of

JOB = a_job()
SOON, LATER, OUTAGE = 20.0, 120.0, 600.0
"""After how many seconds a certain stall is given up, one that may pass, and a webhook that is away."""
LIMITS = Deadlines(hopeless=SOON, outage=OUTAGE)


def stalls(*pods: dict[str, Any], events: tuple[dict[str, Any], ...] = ()) -> list[Stall]:
    return of_job(JOB, an_object(JOB, "Created"), *pods, events=events)


def of_job(
    job: TrainingJob, found: dict[str, Any], *pods: dict[str, Any], events: tuple[dict[str, Any], ...] = ()
) -> list[Stall]:
    return list(stalls_of(job, BACKEND, status(job, found, pods), found, events))


def hopeless(*pods: dict[str, Any], events: tuple[dict[str, Any], ...] = ()) -> DdpipeError | None:
    """The error of what keeps these pods from running, however long it must last."""
    return next((stall.error(0) for stall in stalls(*pods, events=events)), None)


def waiting(reason: str, message: str = "m") -> dict[str, Any]:
    return {"phase": "Pending", "state": {"waiting": {"reason": reason, "message": message}}}


def rejection(message: str, at: str = "", reason: str = "FailedCreatePod") -> dict[str, Any]:
    times = {"lastTimestamp": at} if at else {}
    about = {"involvedObject": {"uid": UID}, "metadata": {}}
    return {**about, **times, "reason": reason, "message": message}


class Watched:
    """A job that is looked at every five seconds."""

    def __init__(self) -> None:
        self._patience, self.now = StallPatience(LIMITS), 0.0

    def shows(
        self, *pods: dict[str, Any], seconds: float = 5, events: tuple[dict[str, Any], ...] = ()
    ) -> LaunchError | None:
        """What comes of it if this is what can be seen for so long."""
        end = self.now + seconds
        while self.now < end:
            self.now += 5
            if error := self._patience.exhausted(stalls(*pods, events=events), self.now):
                return error
        return None


def pulling(message: str, **changes: Any) -> dict[str, Any]:
    return a_pod(JOB, "worker-1", **waiting("ErrImagePull", message), **changes)


BACKING_OFF = a_pod(JOB, "worker-1", **waiting("ImagePullBackOff", 'Back-off pulling image "trainer:1"'))
BUSY = "failed to resolve reference: unexpected status: 503 Service Unavailable"
ABSENT = "rpc error: code = NotFound desc = failed to pull and unpack image: trainer:1: not found"
FIRST = a_pod(JOB)


def test_one_failed_pull_does_not_fail_the_job() -> None:
    """The kubelet shows it during a second pull that works, for minutes."""
    watched = Watched()
    assert watched.shows(FIRST, pulling(BUSY), seconds=3000) is None
    assert watched.shows(FIRST, a_pod(JOB, "worker-1")) is None


def test_a_registry_that_is_away_for_minutes_is_waited_for() -> None:
    watched = Watched()
    for pause in (10, 20, 40, 80):
        assert watched.shows(FIRST, pulling(BUSY)) is None
        assert watched.shows(FIRST, BACKING_OFF, seconds=pause) is None
    assert watched.shows(FIRST, a_pod(JOB, "worker-1")) is None


def test_a_registry_that_stays_away_fails_the_job() -> None:
    watched = Watched()
    for pause in (10, 20, 40, 80, 160):
        assert watched.shows(FIRST, pulling(BUSY)) is None
        assert watched.shows(FIRST, BACKING_OFF, seconds=pause) is None
    error = watched.shows(FIRST, pulling(BUSY))
    assert isinstance(error, ImageUnavailable)
    assert "503" in error.seen


@pytest.mark.parametrize(
    "message",
    [
        ABSENT,
        "unexpected status code 401 Unauthorized",
        "pull access denied, repository does not exist or may require authorization",
        'Head "https://r/v2/": denied: requested access to the resource is denied',
        "manifest unknown",
        "dial tcp: lookup registry.invalid: no such host",
        "no match for platform in manifest",
    ],
)
def test_an_image_that_cannot_exist_is_reported_soon(message: str) -> None:
    watched = Watched()
    assert watched.shows(FIRST, pulling(message), seconds=SOON) is None
    assert isinstance(watched.shows(FIRST, pulling(message)), ImageUnavailable)


@pytest.mark.parametrize("reason", ["ErrImageNeverPull", "InvalidImageName"])
def test_an_image_that_is_never_pulled_is_reported_soon(reason: str) -> None:
    assert Watched().shows(FIRST, a_pod(JOB, "worker-1", **waiting(reason)), seconds=25)


def test_the_cause_is_remembered_while_the_kubelet_only_waits() -> None:
    """Kubelets before 1.31 show it only until they begin to wait."""
    watched = Watched()
    assert watched.shows(FIRST, pulling(ABSENT)) is None
    error = watched.shows(FIRST, BACKING_OFF, seconds=SOON)
    assert isinstance(error, ImageUnavailable)


def test_an_event_explains_what_the_kubelet_shows_no_longer() -> None:
    event = {**rejection(f'Failed to pull image "trainer:1": {ABSENT}', reason="Failed")}
    event["involvedObject"] = {"uid": "worker-1-uid"}
    error = Watched().shows(FIRST, BACKING_OFF, seconds=25, events=(event,))
    assert error is not None
    assert ABSENT in error.seen


def test_a_word_in_the_image_s_name_is_no_reason() -> None:
    job = a_job(image="team/denied:503")
    found = of_job(job, an_object(job, "Created"), FIRST, pulling("pulling team/denied:503: EOF"))
    assert [stall.is_certain for stall in found] == [False]


@pytest.mark.parametrize(
    ("message", "seconds"),
    [('secret "nope" not found', SOON), ("failed to sync secret cache: timed out waiting", LATER)],
)
def test_a_container_that_may_still_be_created_is_given_longer(message: str, seconds: float) -> None:
    broken = a_pod(JOB, "worker-1", **waiting("CreateContainerConfigError", message))
    watched = Watched()
    assert watched.shows(FIRST, broken, seconds=seconds) is None
    assert isinstance(watched.shows(FIRST, broken), PodRefused)


def test_a_stall_that_ends_starts_from_zero_the_next_time() -> None:
    watched, broken = Watched(), a_pod(JOB, "worker-1", **waiting("CreateContainerError", "no such device"))
    assert watched.shows(FIRST, broken, seconds=SOON) is None
    assert watched.shows(FIRST, a_pod(JOB, "worker-1")) is None
    assert watched.shows(FIRST, broken, seconds=SOON) is None
    assert watched.shows(FIRST, broken) is not None


def test_many_pods_in_one_state_are_one_message_with_a_count() -> None:
    job = a_job(nodes=512)
    pods = [a_pod(job, f"worker-{rank}", **waiting("ErrImagePull", ABSENT)) for rank in range(512)]
    found = of_job(job, an_object(job, "Created"), *pods)
    patience = StallPatience(LIMITS)
    patience.exhausted(found, 0)
    error = patience.exhausted(found, SOON)
    assert error is not None
    assert error.which.endswith("-worker-0) and 511 other pods")


NOON, LATE = "2026-01-01T12:00:00Z", "2026-01-01T12:00:30Z"


def test_a_rejection_before_the_newest_pod_is_over() -> None:
    """512 pods take about a minute to be created."""
    newer = a_pod(JOB, metadata={"creationTimestamp": LATE})
    assert stalls(newer, events=(rejection("no such account", at=NOON),)) == []
    assert len(stalls(newer, events=(rejection("no such account", at=LATE),))) == 1


def test_a_growing_number_of_pods_is_progress() -> None:
    watched, event = Watched(), rejection("no such account", at=LATE)
    assert watched.shows(events=(event,), seconds=SOON) is None
    assert watched.shows(a_pod(JOB), events=(event,), seconds=SOON) is None
    assert watched.shows(a_pod(JOB), events=(event,)) is not None


def test_the_time_of_an_event_may_stand_in_any_of_its_fields() -> None:
    newer = a_pod(JOB, metadata={"creationTimestamp": LATE})
    plain = rejection("no")
    for old in (
        {"eventTime": "2026-01-01T12:00:00.000001Z", "lastTimestamp": None},
        {"series": {"lastObservedTime": "2026-01-01T12:00:00.000001Z"}},
        {"metadata": {"creationTimestamp": NOON}},
    ):
        assert stalls(newer, events=({**plain, **old},)) == []
    assert len(stalls(newer, events=(plain,))) == 1


@pytest.mark.parametrize(
    "message",
    ["exceeded quota: small", "object is being deleted: pods exist", "etcdserver: no leader"],
)
def test_a_rejection_that_may_pass_is_given_longer(message: str) -> None:
    """A quota still counts pods that have just gone; a pod of an earlier job is about to end."""
    watched, event = Watched(), rejection(message)
    assert watched.shows(FIRST, events=(event,), seconds=LATER) is None
    assert isinstance(watched.shows(FIRST, events=(event,)), PodRefused)


def test_a_webhook_that_does_not_answer_is_waited_for_like_the_api_server() -> None:
    """The operator tries again after pauses that double: within 120 s the last attempt is that of 82 s."""
    watched = Watched()
    event = rejection('failed calling webhook "mjobset.kb.io": connect: connection refused')
    assert watched.shows(FIRST, events=(event,), seconds=OUTAGE) is None
    error = watched.shows(FIRST, events=(event,))
    assert isinstance(error, PodRefused)
    assert "Check that its service runs" in error.do


def test_the_time_that_a_webhook_was_away_does_not_count_for_what_comes_after_it() -> None:
    watched, quota = Watched(), rejection("exceeded quota: small")
    assert watched.shows(FIRST, events=(rejection("failed calling webhook"),), seconds=400) is None
    assert watched.shows(FIRST, events=(quota,), seconds=LATER) is None
    assert isinstance(watched.shows(FIRST, events=(quota,)), PodRefused)


def test_a_pod_stuck_on_a_lost_node_is_named_in_the_end() -> None:
    error = hopeless(FIRST, events=(rejection("object is being deleted: pods already exists"),))
    assert error is not None
    assert "--force" in error.do


def test_the_next_look_is_due_when_a_stall_has_lasted() -> None:
    patience = StallPatience(LIMITS)
    assert patience.exhausted(stalls(FIRST, pulling(ABSENT)), 100) is None
    assert patience.next == 120
    patience.exhausted([], 110)
    assert patience.next is None


@pytest.mark.parametrize("reason", sorted(IMAGE_TROUBLE))
def test_every_word_for_an_image_that_does_not_come_is_known(reason: str) -> None:
    assert isinstance(hopeless(FIRST, a_pod(JOB, "worker-1", **waiting(reason))), ImageUnavailable)


@pytest.mark.parametrize(
    ("pod", "error"),
    [
        (waiting("ErrImagePull"), ImageUnavailable),
        (waiting("ImagePullBackOff"), ImageUnavailable),
        (waiting("ErrImageNeverPull"), ImageUnavailable),
        (waiting("CreateContainerConfigError"), PodRefused),
        (waiting("CreateContainerError"), PodRefused),
    ],
)
def test_each_state_has_an_error_of_its_own(pod: dict[str, Any], error: type) -> None:
    assert type(hopeless(a_pod(JOB, **pod), a_pod(JOB, "worker-1"))) is error


def test_an_init_container_s_image_counts_too() -> None:
    init = [{"name": "init", "state": {"waiting": {"reason": "ErrImagePull", "message": "alpine:3.10"}}}]
    pod = a_pod(JOB, phase="Pending", state={}, status={"initContainerStatuses": init})
    error = hopeless(pod, a_pod(JOB, "worker-1"))
    assert error is not None
    assert "alpine:3.10" in error.seen


def test_a_reason_ends_at_its_colon_with_any_message() -> None:
    error = hopeless(
        a_pod(JOB, **waiting("ErrImagePull", "pull: docker: no such host")), a_pod(JOB, "worker-1")
    )
    assert isinstance(error, ImageUnavailable)
    assert error.seen == "ErrImagePull: pull: docker: no such host"


def test_what_only_takes_time_is_not_hopeless() -> None:
    pods = [a_pod(JOB, **waiting("ContainerCreating")), a_pod(JOB, "worker-1", "Pending", node="", state={})]
    assert hopeless(*pods) is None


@pytest.mark.parametrize(
    ("message", "way_out"),
    [
        ("pods is forbidden: exceeded quota: small", "raise the quota"),
        ('violates PodSecurity "restricted"', "what the policy requires"),
        ('admission webhook "x" denied the request', "what the webhook objects to"),
        ("no such service account", "See: kubectl describe pytorchjobs.kubeflow.org -n team"),
    ],
)
def test_rejected_pods_show_in_the_job_s_events(message: str, way_out: str) -> None:
    error = hopeless(a_pod(JOB), events=(rejection(message),))
    assert isinstance(error, PodRefused)
    assert message in error.seen
    assert way_out in error.do


def test_a_rejection_is_over_when_all_pods_exist() -> None:
    assert hopeless(a_pod(JOB), a_pod(JOB, "worker-1"), events=(rejection("no"),)) is None


def mounting(
    uid: str, reason: str = "FailedMount", message: str = 'secret "nope" not found'
) -> dict[str, Any]:
    return {**rejection(message, reason=reason), "involvedObject": {"uid": uid}}


CREATING = {"phase": "Pending", "state": {"waiting": {"reason": "ContainerCreating"}}}


def test_a_missing_volume_shows_in_the_pod_s_own_events() -> None:
    pods = (a_pod(JOB, **CREATING), a_pod(JOB, "worker-1", **CREATING))
    error = hopeless(*pods, events=(mounting("worker-1-uid"),))
    assert isinstance(error, PodRefused)
    assert error.which.startswith("worker-1 (pod team/")
    assert error.seen == 'secret "nope" not found'


def test_a_folder_that_a_node_does_not_have_will_not_come_by_itself() -> None:
    message = "hostPath type check failed: /data is not a directory"
    pods = (a_pod(JOB, **CREATING), a_pod(JOB, "worker-1"))
    error = hopeless(*pods, events=(mounting("worker-0-uid", message=message),))
    assert error is not None
    assert message in str(error)


@pytest.mark.parametrize(
    "event",
    [
        mounting("another-uid"),
        mounting("worker-0-uid", reason="BackOff"),
        mounting("worker-0-uid", message="timed out waiting for the volume to attach"),
    ],
)
def test_other_events_are_no_missing_volume(event: dict[str, Any]) -> None:
    assert hopeless(a_pod(JOB, **CREATING), a_pod(JOB, "worker-1"), events=(event,)) is None


@pytest.mark.parametrize("pod", [{}, {"phase": "Pending", "node": "", "state": {}}])
def test_events_of_a_pod_that_runs_or_has_no_node_do_not_count(pod: dict[str, Any]) -> None:
    pods = (a_pod(JOB, **pod), a_pod(JOB, "worker-1"))
    assert hopeless(*pods, events=(mounting("worker-0-uid"),)) is None


def test_of_several_rejections_the_latest_is_reported() -> None:
    events = tuple(rejection(f"exceeded quota: {name}") for name in ("one", "two"))
    error = hopeless(a_pod(JOB), events=events)
    assert error is not None
    assert error.seen == "exceeded quota: two"


@pytest.mark.parametrize(
    ("event", "reason", "text"),
    [
        ({"reason": "FailedMount", "message": "m"}, "FailedMount", "worker-0: FailedMount: m"),
        ({"reason": "R", "message": "m", "count": 1, "series": {}}, "R", "worker-0: R: m"),
        ({"reason": "R", "message": "m", "count": 2}, "R", "worker-0: R (2 times): m"),
        (
            {"reason": "R", "message": "m", "count": 2, "series": {"count": 5}},
            "R",
            "worker-0: R (5 times): m",
        ),
        ({}, "Warning", "worker-0: Warning: "),
        ({"involvedObject": {}}, "", ""),
        ({"involvedObject": {"uid": "worker-1-uid"}}, "", ""),
        ({"involvedObject": {"uid": "worker-2-uid"}}, "Warning", "worker-2: Warning: "),
        ({"involvedObject": {"uid": "worker-3-uid"}}, "", ""),
    ],
)
def test_the_latest_event_of_a_pod_that_waits_without_a_reason_is_a_warning(
    event: dict[str, Any], reason: str, text: str
) -> None:
    """It is pulled or started; that one waits for a reason, or runs, says more than an event."""
    explained = waiting("CreateContainerConfigError")
    starting = {"phase": "Pending", "state": {"waiting": {"reason": "RunContainerError"}}}
    pods = [
        a_pod(JOB, f"worker-{rank}", **one) for rank, one in enumerate((CREATING, explained, starting, {}))
    ]
    found = status(JOB, an_object(JOB, "Created"), pods)
    about = {"involvedObject": {"uid": "worker-0-uid"}}
    assert latest_warning(found, [{**about, "reason": "before"}, {**about, **event}]) == (
        (reason, text) if reason else ("before", "worker-0: before: ")
    )


@pytest.mark.parametrize(("count", "more"), [(1, ""), (2, " and another pod"), (3, " and 2 other pods")])
def test_the_other_pods_in_the_same_state_are_counted(count: int, more: str) -> None:
    job = a_job(nodes=4)
    pods = [a_pod(job, f"worker-{rank}", **waiting("ErrImageNeverPull")) for rank in range(count)]
    other = [a_pod(job, f"worker-{rank}", **waiting("CreateContainerError")) for rank in range(count, 4)]
    patience = StallPatience(LIMITS)
    found = of_job(job, an_object(job, "Created"), *pods, *other)
    assert patience.exhausted(found, 0) is None
    error = patience.exhausted(found, SOON)
    assert error is not None
    assert error.which == f"worker-0 (pod team/{job.name}-worker-0){more}"


def test_what_the_scheduler_does_not_find_is_reported() -> None:
    message = 'persistentvolumeclaim "data" not found'
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    unscheduled = a_pod(JOB, phase="Pending", node="", state={}, status={"conditions": [said]})
    error = hopeless(unscheduled, a_pod(JOB, "worker-1"))
    assert isinstance(error, PodRefused)
    assert error.seen == message


def test_a_volume_with_a_key_that_does_not_exist_is_hopeless() -> None:
    about = {"involvedObject": {"uid": "worker-0-uid"}, "metadata": {}, "reason": "FailedMount"}
    message = 'MountVolume.SetUp failed for volume "key" : references non-existent secret key: nope'
    error = hopeless(a_pod(JOB, **waiting("ContainerCreating", "")), events=({**about, "message": message},))
    assert isinstance(error, PodRefused)
    assert error.seen == message


def test_a_job_that_somebody_scaled_down_is_no_lack_of_room() -> None:
    found = an_object(JOB, "Created")
    found["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 0
    (stall,) = of_job(JOB, found)
    assert stall.is_certain, "who sets it back does so at once"
    assert "asks for 0 of 2" in stall.error(0).seen
    assert "Request less" not in stall.error(0).do
