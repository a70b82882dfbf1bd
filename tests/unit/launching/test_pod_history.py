"""Which of the pods that are gone, or were restarted, explain a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from launch_samples import a_job, a_pod, an_object, ended

from ddpipe.jobs import indexedjob, pytorchjob
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.status import JobStatus, Phase
from ddpipe.launching import diagnosis, elastic
from ddpipe.launching.pod_history import PodHistory

JOB = a_job(restart="ExitCode")
RUNS, FAILED = an_object(JOB, "Running"), an_object(JOB, "Failed")
SUSPENDED = an_object(JOB, "Created", runPolicy={"suspend": True})
EVICTED = {"status": {"reason": "Evicted", "message": "the node is low on memory"}, "state": ended(137)}
GOING = {"deletionTimestamp": "2026-01-01T00:00:42Z", "deletionGracePeriodSeconds": 30}
HOUR = 3600.0


class Watched:
    """A record of a job, and a clock."""

    def __init__(self, job: TrainingJob = JOB) -> None:
        self.job, self.record, self.now = job, PodHistory(job, pytorchjob.BACKEND), 0.0
        self.found = RUNS

    def sees(self, *pods: dict[str, Any], found: dict[str, Any] | None = None, after: float = 1) -> JobStatus:
        """Look at these pods, some seconds later."""
        self.now += after
        self.found = found or self.found
        self.record.take({pod["metadata"]["uid"]: pod for pod in pods})
        return self.record.look(self.found, self.now)

    def cause(self) -> diagnosis.ReplicaFailed:
        backend = pytorchjob.BACKEND
        return diagnosis.failure(
            self.job,
            backend,
            "",
            replicas=self.record.replicas,
            tail=lambda uid: (f"log of {uid}",),
            notes=(),
        )


def pod(rank: int, run: int = 0, **changes: Any) -> dict[str, Any]:
    """A pod; of a later run of its container if `run` is not 0, which failed before."""
    before = {"restartCount": run, "lastState": ended(134)} if run else {}
    return a_pod(JOB, f"worker-{rank}", container=before, **changes)


def another(rank: int, **changes: Any) -> dict[str, Any]:
    """The pod that takes the place of a lost one."""
    return a_pod(JOB, f"worker-{rank}", metadata={"uid": f"another-{rank}"}, **changes)


def recovered(job: TrainingJob = JOB) -> Watched:
    """A job that lost a pod, restarted the other, and then ran for an hour."""
    watched = Watched(job)
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0), pod(1, phase="Failed", **EVICTED))
    watched.sees(pod(0, state=ended(134)))
    watched.sees(pod(0, run=1), another(1))
    watched.sees(pod(0, run=1), another(1), after=HOUR)
    return watched


def test_a_recovered_loss_is_not_the_cause_of_a_later_bug() -> None:
    watched = recovered()
    watched.sees(pod(0, run=1, phase="Failed", state=ended(1)), another(1), found=FAILED, after=4 * HOUR)
    error = watched.cause()
    assert error.which.startswith("worker-0 of")
    assert "Evicted" not in error.seen
    assert error.seen.endswith("log of worker-0-uid")


def test_a_bug_after_a_recovered_loss_does_not_count_as_lost_pod() -> None:
    job = replace(JOB, min_nodes=1)
    watched = recovered(job)
    bug = {"phase": "Failed", "state": ended(1, at="2026-01-01T05:00:00Z")}
    watched.sees(pod(0, run=1, **bug), another(1), found=FAILED, after=4 * HOUR)
    assert elastic.after_loss(job, watched.record.replicas) is None


def test_a_loss_is_the_cause_until_the_job_has_recovered() -> None:
    watched = Watched()
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0), pod(1, phase="Failed", **EVICTED))
    watched.sees(pod(0, run=1), another(1))
    watched.sees(pod(0, run=1), another(1), after=20)
    watched.sees(pod(0, run=1, phase="Failed", state=ended(1)), another(1), found=FAILED)
    assert watched.cause().which.startswith("worker-1 of")
    assert "Evicted" in watched.cause().seen


@pytest.mark.parametrize(("seconds", "cause"), [(600, "worker-1"), (1000, "worker-0")])
def test_peers_that_were_not_restarted_may_wait_ten_minutes(seconds: float, cause: str) -> None:
    """NCCL notices that late that a peer is lost."""
    watched = Watched()
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0), pod(1, phase="Failed", **EVICTED))
    watched.sees(pod(0), another(1))
    watched.sees(pod(0), another(1), after=seconds)
    watched.sees(pod(0, phase="Failed", state=ended(1)), another(1), found=FAILED)
    assert watched.cause().which.startswith(cause)


@pytest.mark.parametrize(("run", "seconds"), [(1, 30), (0, 900)])
def test_a_job_has_recovered_when_it_has_been_complete_for_long_enough(run: int, seconds: float) -> None:
    """Half a minute if all processes are new ones, else a quarter of an hour."""
    watched = Watched()
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0), pod(1, phase="Failed", **EVICTED))
    watched.sees(pod(0, run=run), another(1))
    watched.sees(pod(0, run=run), another(1), after=seconds - 1)
    assert watched.record.has_failures
    watched.sees(pod(0, run=run), another(1))
    assert not watched.record.has_failures


@pytest.mark.parametrize(("after", "is_stuck"), [(90, False), (91, True)])
def test_a_pod_is_stuck_a_minute_after_its_grace_period(after: float, *, is_stuck: bool) -> None:
    watched = Watched()
    watched.sees(pod(0), pod(1, metadata=GOING))
    assert watched.record.stuck(watched.now) is None
    assert (watched.record.stuck(watched.now + after) is not None) == is_stuck


def test_a_recovered_restart_is_not_the_cause_of_a_later_failure() -> None:
    """The container's last state still shows it, as long as the pod exists."""
    watched = Watched(replace(JOB, restart="OnFailure"))
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0, state=ended(1)), pod(1, run=1))
    watched.sees(pod(0, run=1), pod(1, run=1))
    watched.sees(pod(0, run=1), pod(1, run=1), after=HOUR)
    late = ended(137, at="2026-01-01T05:00:00Z", reason="OOMKilled")
    watched.sees(pod(0, run=1, phase="Failed", state=late), pod(1, run=1), found=FAILED, after=HOUR)
    error = watched.cause()
    assert error.which.startswith("worker-0 of")
    assert "out of memory" in error.seen
    assert "worker-1" not in error.seen


def test_a_restart_between_two_looks_delays_the_recovery() -> None:
    watched = Watched(replace(JOB, restart="OnFailure"))
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0, run=1), pod(1, run=1))
    watched.sees(pod(0, run=1), pod(1, run=2), after=20)
    late = ended(1, at="2026-01-01T05:00:00Z")
    watched.sees(pod(0, run=1, phase="Failed", state=late), pod(1, run=2), found=FAILED, after=15)
    assert watched.cause().which.startswith("worker-1 of")


def test_a_job_all_of_whose_containers_restarted_between_two_looks_recovers_soon() -> None:
    """None of its processes may still wait for one that is gone."""
    watched = Watched(replace(JOB, restart="OnFailure"))
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0, run=1), pod(1, run=1))
    watched.sees(pod(0, run=1), pod(1, run=1), after=40)
    late = ended(1, at="2026-01-01T05:00:00Z")
    watched.sees(pod(0, run=1, phase="Failed", state=late), pod(1, run=1), found=FAILED)
    assert watched.cause().seen.startswith("exit code 1")


def test_ranks_whose_end_nobody_saw_count_as_their_controller_counts_them() -> None:
    """One was restarted in place before; the pods went while the server was away."""
    watched = Watched(replace(JOB, restart="OnFailure"))
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0, run=1), pod(1))
    found = an_object(JOB, "Running=False", "Succeeded")
    status = watched.sees(found=found)
    assert (status.succeeded, watched.record.missing(found, status)) == (2, 0)


def test_a_failure_seen_before_and_after_its_restart_counts_once() -> None:
    watched = Watched(replace(JOB, restart="OnFailure", max_restarts=1))
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0, state=ended(1)), pod(1, state=ended(1)))
    assert watched.sees(pod(0, run=1), pod(1, run=1)).phase is Phase.ACTIVE


def test_a_container_that_fails_again_after_a_recovery_is_the_cause() -> None:
    watched = Watched(replace(JOB, restart="OnFailure"))
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0, run=1), pod(1, run=1))
    watched.sees(pod(0, run=1), pod(1, run=1), after=HOUR)
    watched.sees(pod(0, run=1), pod(1, run=2), found=FAILED, after=HOUR)
    assert watched.cause().which.startswith("worker-1 of")


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_pods_removed_in_a_second_the_first_one_seen_is_the_cause(first: int) -> None:
    """Both may be seen in one look, and the first one may take longer to end."""
    watched = Watched()
    watched.sees(pod(0), pod(1))
    going = [pod(rank, metadata=GOING if rank == first else {}) for rank in (0, 1)]
    watched.record.take({one["metadata"]["uid"]: one for one in going})
    watched.sees(pod(0, metadata=GOING), pod(1, metadata=GOING))
    slow, quick = ({"phase": "Failed", "state": ended(143, at=f"2026-01-01T00:00:{at}Z")} for at in (40, 13))
    watched.sees(*(pod(rank, metadata=GOING, **(slow if rank == first else quick)) for rank in (0, 1)))
    assert watched.cause().which.startswith(f"worker-{first} of")


def test_pods_removed_by_a_suspension_are_not_the_cause() -> None:
    watched = Watched()
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0, metadata=GOING), pod(1, metadata=GOING))
    watched.sees(pod(0, metadata=GOING), pod(1, metadata=GOING), found=SUSPENDED)
    watched.sees(found=SUSPENDED)
    watched.sees(another(0), another(1), found=RUNS)
    watched.sees(another(0, phase="Failed", state=ended(3)), another(1), found=FAILED)
    assert watched.cause().which.startswith("worker-0 of")
    assert watched.cause().seen.startswith("exit code 3")


def test_a_job_that_is_suspended_again_and_again_needs_no_more_memory() -> None:
    watched = Watched()
    for number in range(100):
        alive = [pod(0, metadata={"uid": f"a{number}"}), pod(1, metadata={"uid": f"b{number}"})]
        watched.sees(*alive, found=RUNS)
        watched.sees(*alive, found=SUSPENDED)
        watched.sees(found=SUSPENDED)
    assert watched.record.replicas == ()
    assert not watched.record._excused


def test_a_pod_that_vanished_unseen_counts_as_replaced() -> None:
    """A watch that is started again lists what exists, not what went in between."""
    watched = Watched()
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0), another(1))
    assert [replica.rank for replica in watched.record.newly_lost()] == ["worker-1"]
    assert watched.record.newly_lost() == []
    assert watched.record.replacements == 1


def test_what_a_job_has_recovered_from_is_still_counted() -> None:
    watched = recovered()
    watched.sees(pod(0, run=1), another(1))
    assert watched.record.replacements == 1
    assert not watched.record.has_failures


def test_pods_lost_without_end_are_not_all_kept() -> None:
    """The first may be the cause; the last are what a person sees."""
    watched = Watched()
    watched.sees(pod(0), pod(1, metadata={"uid": "1"}))
    for number in range(2, 2000):
        assert watched.sees(pod(0), pod(1, metadata={"uid": str(number)})).phase is Phase.ACTIVE
    kept = [replica.uid for replica in watched.record.replicas]
    assert len(kept) == 64 + 2
    assert {"1", "1999", "worker-0-uid"} < set(kept)
    assert watched.record.replacements == 1998


def test_an_indexed_job_s_replaced_pod_is_forgotten_too() -> None:
    """Its failed pod remains next to the one that replaced it."""
    job = replace(JOB, backend="indexedjob", nodes=1)
    record = PodHistory(job, indexedjob.BACKEND)
    found = indexedjob.manifest(job)
    found["metadata"] |= {"uid": "job-uid", "creationTimestamp": "2026-01-01T00:00:00Z"}
    number = {"batch.kubernetes.io/job-completion-index": "0"}
    old, new = (
        a_pod(
            job,
            phase,
            phase,
            metadata={"uid": phase, "annotations": number, "creationTimestamp": f"2026-01-01T00:0{at}:00Z"},
            **changes,
        )
        for at, (phase, changes) in enumerate([("Failed", {"state": ended(1)}), ("Running", {})])
    )
    record.take({"Failed": old, "Running": new})
    for now in (0, 60, 120):
        record.look(found, now)
    assert not record.has_failures
    assert [replica.uid for replica in record.replicas] == ["Running"]
    assert record.replacements == 1


def test_a_job_whose_pods_fail_too_often_has_failed_though_the_operator_replaces_them_for_ever() -> None:
    job = a_job(restart="ExitCode", max_restarts=1)  # of two pods: two failures are allowed
    watched = Watched(job)
    for number in range(3):
        old = {"uid": f"number-{number}"}
        watched.sees(pod(0), a_pod(job, "worker-1", metadata=old))
        status = watched.sees(pod(0), a_pod(job, "worker-1", "Failed", state=ended(255), metadata=old))
        assert (status.phase is Phase.FAILED) == (number == 2)
    assert status.message == "its pods have failed 3 times"


def test_losses_of_pods_are_no_failures_of_theirs() -> None:
    job = a_job(restart="ExitCode", max_restarts=0)
    watched = Watched(job)
    watched.sees(pod(0), pod(1))
    assert watched.sees(pod(0), pod(1, phase="Failed", **EVICTED)).phase is Phase.ACTIVE


SIDECAR = {"name": "proxy", "state": {"running": {}}}


def with_sidecar(rank: int, code: int) -> dict[str, Any]:
    return pod(rank, status={"containerStatuses": [{"name": "pytorch", "state": ended(code)}, SIDECAR]})


@pytest.mark.parametrize(("code", "phase"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED)])
def test_a_container_that_stays_does_not_keep_a_job_from_ending(code: int, phase: Phase) -> None:
    watched = Watched(a_job())
    watched.sees(pod(0), pod(1))
    assert watched.sees(with_sidecar(0, 0), with_sidecar(1, code)).phase is Phase.ACTIVE
    assert watched.record.next == watched.now + 60
    assert watched.sees(with_sidecar(0, 0), with_sidecar(1, code), after=59).phase is Phase.ACTIVE
    status = watched.sees(with_sidecar(0, 0), with_sidecar(1, code), after=1)
    assert status.phase is phase
    assert status.message == f"worker-{int(code > 0)} has ended, proxy of its pod runs on"


def test_a_container_beside_a_rank_that_still_trains_or_restarts_is_waited_for() -> None:
    watched = Watched(a_job())
    watched.sees(with_sidecar(0, 0), pod(1))
    assert watched.sees(with_sidecar(0, 0), pod(1), after=HOUR).phase is Phase.ACTIVE
    again = Watched(a_job(restart="OnFailure"))
    again.sees(with_sidecar(0, 3), pod(1))
    assert again.sees(with_sidecar(0, 3), pod(1), after=HOUR).phase is Phase.ACTIVE


def test_a_container_that_was_seen_to_fail_is_the_cause_though_its_pod_is_deleted_later() -> None:
    watched = Watched(a_job())
    watched.sees(pod(0), pod(1))
    watched.sees(pod(0), pod(1, state=ended(7, at="2026-01-01T00:00:30Z")))
    watched.sees(pod(0), pod(1, state=ended(7, at="2026-01-01T00:00:30Z"), metadata=GOING))
    watched.sees(found=FAILED)
    assert watched.cause().seen.startswith("exit code 7")
