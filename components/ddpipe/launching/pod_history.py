"""What became of every pod of a job, and which of it can still explain a failure.

A failure is caused by what went wrong first, and that pod may be gone by then. So the last state of every
pod is remembered until the job has recovered. Two pods with restart=ExitCode, as the API server shows them:

    10:00:00  worker-0 and worker-1 run
    10:05:00  worker-1 is evicted              the first failure: the cause, should the job fail now
    10:05:01  worker-0 is killed by SIGABRT    a consequence: it lost contact to worker-1
    10:05:20  another worker-1 is created      the evicted pod is lost and replaced: reported once
    10:06:00  worker-0 has restarted, all run  none of these processes ran when worker-1 was evicted
    10:06:30  they still run                   recovered: both failures are forgotten, all but their number
    14:00:00  worker-0 exits with code 1       the cause, with its own last lines

Without the recovery the eviction would be reported as the cause of the exception four hours later. A peer
that was never restarted may still wait for the evicted pod: NCCL gives up after ten minutes. Therefore a job
some of whose old processes still run has recovered only when it has been complete for fifteen minutes.

Three kinds of pods are gone:

    lost      gone, or replaced, while the job runs: may be the cause, until the job has recovered
    excused   removed because the job was suspended, or replaced before a recovery: never the cause
    tidied    removed after the job had ended, as operators do: its last state before that counts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.options import Restart
from ddpipe.jobs.replicas import Cache
from ddpipe.jobs.status import JobStatus, Phase, Replica, Run
from ddpipe.kube.resources import Object

# For how long a job must be complete before its earlier failures are forgotten.
_STEADY_SECONDS = 30.0
_COMPLETE_SECONDS = 900.0
# How long after its grace period a pod may still be terminating.
STUCK_SECONDS = 60.0
# How long other containers of a pod may run on when the one that trains has ended.
SIDECAR_SECONDS = 60.0
# A job whose pods fail again and again never recovers: the first and the last of this many are kept.
_KEPT_PER_NODE, _KEPT_AT_LEAST = 2, 64


class PodHistory:
    """The pods of one job, those that are gone included."""

    def __init__(self, job: TrainingJob, backend: Backend) -> None:
        self._job, self._backend = job, backend
        self._read = Cache()
        self._pods: Mapping[str, Object] = {}
        self._removals: dict[str, float] = {}
        self._lost: dict[str, Object] = {}
        self._excused: set[str] = set()
        self._seen: dict[str, Replica] = {}
        self._reported: set[str] = set()
        self._replacements = 0
        self._forgiven: dict[str, int] = {}
        self._old_runs: set[Run] = set()
        self._failed: dict[str, Run] = {}
        self._complete_since: float | None = None
        self._needed_seconds = _COMPLETE_SECONDS
        self._terminating: dict[str, float] = {}
        self._present: JobStatus | None = None
        self._succeeded: set[str] = set()
        self._own_failures = 0
        self._staying_since: float | None = None
        self.staying = ""
        self.next: float | None = None

    def take(self, pods: Mapping[str, Object], gone: Object | None = None) -> None:
        """Take in the pods that exist now, by uid, and the last state of the one that has just gone."""
        # Timestamps have whole seconds: of two pods removed in one second, the order is the one seen.
        for pod in (*pods.values(), *filter(None, [gone])) if self._pods else ():
            if "deletionTimestamp" in pod["metadata"]:
                self._removals.setdefault(pod["metadata"]["uid"], 1e-6 * len(self._removals))
        missing = self._pods.keys() - pods.keys()
        vanished = {uid: pod for uid, pod in self._pods.items() if uid in missing} if missing else {}
        if gone:
            vanished[gone["metadata"]["uid"]] = gone
        self._lost |= {uid: pod for uid, pod in vanished.items() if uid not in self._excused}
        self._excused -= vanished.keys()
        self._pods = pods
        if vanished:
            self._limit()
            self._read.keep([*pods, *self._lost])

    def look(self, found: Object, now: float) -> JobStatus:
        """What the job is doing; a job that ran on although it must not restart has failed."""
        self._recover(now)
        status = self._backend.status(self._job, found, list(self._pods.values()), self._read)
        if status.phase is Phase.SUSPENDED:
            # Who suspends a job removes its pods; others are created when it resumes.
            self._excused = set(self._pods)
            self._succeeded.clear()
            self._forget({})
        lost = self._lost_replicas(found, status)
        self._remember(status, lost)
        self._present = status
        if status.phase is Phase.ACTIVE:
            self._observe(status, now)
            status = self._without_sidecars(found, status, now)
        if self._is_broken(status, lost):
            return replace(status, phase=Phase.FAILED)
        return self._bounded(status) if status.phase is Phase.ACTIVE else status

    def look_back(self, found: Object) -> JobStatus:
        """What a job had done that is gone by now, judged by the last state of its pods."""
        latest = {pod["metadata"]["name"]: pod for pod in (*self._lost.values(), *self._pods.values())}
        status = self._backend.status(self._job, found, list(latest.values()), self._read)
        self._remember(status, self._lost_replicas(found, status))
        return status

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The last state of every pod, except for what the job has recovered from."""
        return tuple(map(self._unforgiven, self._seen.values()))

    @property
    def has_failures(self) -> bool:
        """Whether a pod has failed in a way that can explain the job's failure."""
        return bool(self._failed)

    @property
    def replacements(self) -> int:
        """How many pods were lost, and replaced or not."""
        present = {replica.uid for replica in self._present.replicas} if self._present else set()
        return self._replacements + len(self._seen.keys() - present)

    def missing(self, found: Object, status: JobStatus) -> int:
        """How many ranks must have succeeded, but neither were seen to nor are counted by the controller."""
        # If somebody scales the object, its controller calls the rest a success.
        if self._backend.wanted(found) is None:
            return 0
        # Once a master has succeeded, its controller counts a worker that still runs as succeeded, too. One
        # that was seen to be deleted is not; one that only vanished, as in an outage, may be.
        deleted = {one.rank for uid, one in self._seen.items() if uid in self._removals} - self._succeeded
        deleted -= {one.rank for uid, one in self._seen.items() if uid not in self._removals}
        counted = min(status.succeeded, self._job.nodes - len(deleted))
        return max(0, self._job.nodes - max(len(self._succeeded), counted))

    def newly_lost(self) -> list[Replica]:
        """The pods that were lost since the last call."""
        present = {replica.uid for replica in self._present.replicas} if self._present else set()
        new = self._seen.keys() - present - self._reported
        self._reported |= new
        return [replica for uid, replica in self._seen.items() if uid in new]

    def stuck(self, now: float) -> Replica | None:
        """A pod that is terminating on a silent node, or still is long after its grace period."""
        replicas = self._present.replicas if self._present else ()
        present = [replica for replica in replicas if replica.is_terminating]
        self._terminating = {item.uid: self._terminating.get(item.uid, now) for item in present}
        limits = {item.uid: self._terminating[item.uid] + item.grace + STUCK_SECONDS for item in present}
        return next((item for item in present if item.is_unseen or now > limits[item.uid]), None)

    def _lost_replicas(self, found: Object, status: JobStatus) -> list[Replica]:
        gone: list[Replica] = []
        if self._lost:
            before = self._backend.status(self._job, found, list(self._lost.values()), self._read)
            gone = [*before.replaced, *before.replicas]
        return [replica for replica in (*gone, *status.replaced) if replica.uid not in self._excused]

    def _remember(self, status: JobStatus, lost: Sequence[Replica]) -> None:
        for replica in (*lost, *status.replicas):
            if replica.has_succeeded:
                self._succeeded.add(replica.rank)
            before = self._seen.get(replica.uid)
            if before is replica or (replica.removed and replica.uid in self._excused):
                continue
            if before and before.ending and not before.removed and replica.restarts == before.restarts:
                # Its container was seen to end before anybody removed the pod.
                replica = replace(replica, removed="", removed_at=0.0)  # noqa: PLW2901 - of no importance
            is_removed_now = bool(replica.removed and before and not before.removed)
            # After the job's end the operator tidies up; a removal that ended the job may be seen later.
            if is_removed_now and status.phase.is_terminal and self._failed.keys() - {replica.uid}:
                continue
            if later := replica.removed_at and self._removals.get(replica.uid):
                replica = replace(replica, removed_at=replica.removed_at + later)  # noqa: PLW2901 - in order
            if before and before.removed and not replica.removed:
                replica = replace(replica, removed=before.removed, removed_at=before.removed_at)  # noqa: PLW2901 - its last state lacks it
            self._seen[replica.uid] = replica
            self._note_failure(self._unforgiven(replica))

    def _note_failure(self, replica: Replica) -> None:
        if not replica.has_failed:
            self._failed.pop(replica.uid, None)
            return
        # A container that was restarted shows the failure of the run before.
        run = replica.restarts if replica.ending else replica.restarts - 1
        if self._failed.get(replica.uid) != (replica.uid, run):
            self._failed[replica.uid] = replica.uid, run
            self._own_failures += not replica.removed
            self._complete_since = None

    def _observe(self, status: JobStatus, now: float) -> None:
        """See whether the job is on its way to recover from its failures."""
        if not self._failed:
            self._old_runs, self._complete_since = set(), None
            return
        runs = {replica.run for replica in status.replicas}
        if not self._old_runs:
            self._old_runs = {item.run for item in status.replicas if not self._is_successor(item)}
        self._old_runs |= set(self._failed.values())
        if len(status.replicas) < self._job.nodes or not all(item.is_running for item in status.replicas):
            self._complete_since = None
        elif self._complete_since is None:
            self._complete_since = now
        is_new = self._old_runs.isdisjoint(runs)
        self._needed_seconds = _STEADY_SECONDS if is_new else _COMPLETE_SECONDS

    def _is_successor(self, replica: Replica) -> bool:
        """Whether its present run took the place of one that failed."""
        if replica.uid in self._failed:
            return self._failed[replica.uid] != replica.run
        return any(self._seen[uid].rank == replica.rank for uid in self._failed)

    def _recover(self, now: float) -> None:
        """Forget the failures of a job that has been complete for long enough."""
        if self._complete_since is None or now - self._complete_since < self._needed_seconds:
            return
        assert self._present is not None  # noqa: S101 - it was complete
        present = {replica.uid: replica for replica in self._present.replicas}
        self._replacements += len(self._seen.keys() - present.keys())
        self._excused |= {replica.uid for replica in self._present.replaced}
        self._forgiven = {uid: replica.restarts for uid, replica in present.items()}
        self._forget(present)

    def _forget(self, kept: Mapping[str, Replica]) -> None:
        self._seen = {uid: self._seen[uid] for uid in self._seen if uid in kept}
        self._lost.clear()
        self._failed.clear()
        self._reported &= self._seen.keys()
        self._old_runs, self._complete_since = set(), None

    def _unforgiven(self, replica: Replica) -> Replica:
        """The replica without a failure that the job has recovered from."""
        is_forgiven = replica.previous and replica.restarts <= self._forgiven.get(replica.uid, -1)
        return replace(replica, previous=None) if is_forgiven else replica

    def _is_broken(self, status: JobStatus, lost: Sequence[Replica]) -> bool:
        """Whether a pod that must not be restarted was, in effect."""
        # An operator that sees a pod fail ends the job; one that looks when the pod is gone creates another.
        if status.phase is not Phase.ACTIVE or self._job.restart != Restart.NEVER:
            return False
        ranks = {replica.rank for replica in status.replicas}
        seen = [self._seen[replica.uid] for replica in lost]
        return any(replica.rank in ranks and replica.has_begun and replica.has_failed for replica in seen)

    def _bounded(self, status: JobStatus) -> JobStatus:
        """Failed once its pods have failed too often: the operator counts no pods that it replaces."""
        failures = max(self._own_failures, status.restarts)
        if self._job.restart == Restart.NEVER or failures <= self._job.max_restarts * self._job.nodes:
            return status
        return replace(status, phase=Phase.FAILED, message=f"its pods have failed {failures} times")

    def _without_sidecars(self, found: Object, status: JobStatus, now: float) -> JobStatus:
        """Ended once every rank has, or one for good, although other containers keep the pods from ending."""
        stays = [one for one in status.replicas if one.ending and one.beside and not one.over]
        failed = [one for one in stays if one.has_failed and self._job.restart == Restart.NEVER]
        is_whole = len(status.replicas) == self._job.nodes and self._backend.wanted(found) is not None
        ended = all(one.has_succeeded for one in status.replicas)
        if not stays or not is_whole or not (failed or ended):
            self._staying_since, self.next, self.staying = None, None, ""
            return status
        self._staying_since = now if self._staying_since is None else self._staying_since
        self.next = self._staying_since + SIDECAR_SECONDS
        first = (failed or stays)[0]
        self.staying = f"{first.rank} has ended, {first.beside} of its pod runs on"
        if now < self.next:
            return status
        return replace(status, phase=Phase.FAILED if failed else Phase.SUCCEEDED, message=self.staying)

    def _limit(self) -> None:
        """Keep the first lost pods, which may be the cause, and the last."""
        half = max(_KEPT_AT_LEAST, _KEPT_PER_NODE * self._job.nodes) // 2
        for uid in list(self._lost)[half:-half]:
            del self._lost[uid]
            if self._seen.pop(uid, None):
                self._replacements += 1
            self._failed.pop(uid, None)
            self._reported.discard(uid)
