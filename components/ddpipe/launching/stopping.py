"""A request to stop deletes the job, before anything else is done.

Argo gives a terminated step half a second to live, and nobody reads its output any more. So a thread waits
for the signal, with its own open connection, and writes nothing before the job is deleted.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from threading import Event, Thread
from time import monotonic, sleep

from ddpipe.errors import LaunchError
from ddpipe.jobs.job import Owner, owner_of
from ddpipe.jobs.status import condition
from ddpipe.kube.api import ApiError, Cluster, Refused, Unanswered
from ddpipe.kube.retrying import is_transient
from ddpipe.launching.ownership import run_of, runs_over

# API servers close a connection that is idle for 90 s.
_WARM = 80
# Seconds until a busy server is asked again for the launcher's own pod.
_LOOK_AGAIN = 2
# A create request that was given up when the signal came shows its object within this time.
_SETTLING = 0.4
_GIVE_UP = 25
# Seconds for which a busy server is asked whether the run was terminated.
_ANSWERED = 5
# The kubelet signals a pod that it evicts and writes down why at the same time; either may be seen first.
_NOTICE = 0.15


class Creating(Event):
    """Set during a request to create the job, which a busy server may answer late."""

    path = ""  # of the job that was created last, or is followed; empty before


@dataclass(frozen=True, slots=True)
class Target:
    """What to delete, and for whom."""

    path: str
    owner: Owner
    launcher: str | None = None  # path of this process's pod, if known; ignored if there is no such pod
    creating: Creating = field(default_factory=Creating)


@contextmanager
def deletes_on_stop(cluster: Cluster, target: Target) -> Iterator[None]:
    """SIGTERM and SIGINT delete the target and end the process, with 143 or 130; only for the main thread."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # The handler has nothing to do: the interpreter has already written the signal's number to the pipe.
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda _number, _frame: None) for number in numbers}
    woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    is_stopping = Event()
    guard = Thread(target=_guard, args=(cluster, target, reader, is_stopping), name="stopping", daemon=True)
    guard.start()
    try:
        yield
    finally:
        if is_stopping.is_set():
            # The job is gone because the guard deletes it; the guard also ends the process.
            guard.join()
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)


def _guard(cluster: Cluster, target: Target, reader: int, is_stopping: Event) -> None:
    is_known = target.launcher is None
    while True:
        if not is_known:
            target, is_known = _looked_up(cluster, target)
        with suppress(ApiError):
            cluster.get(target.path)
        if select.select([reader], [], [], _WARM if is_known else _LOOK_AGAIN)[0]:
            break
    number = os.read(reader, 1)
    if not number:
        os.close(reader)
        return
    is_stopping.set()
    sys.setswitchinterval(1e-4)  # threads that read long logs leave the interpreter after 5 ms otherwise
    message = _stop(cluster, target)
    with suppress(OSError):
        os.write(2, f"[launch] {message}\n".encode())
    os._exit(128 + number[0])  # as shells report the signal


def _stop(cluster: Cluster, target: Target) -> str:
    """Delete the job, and retry until the process is killed; what was done, as a message."""
    if _is_evicted(cluster, target) and not _is_terminated(cluster, target):
        return "this pod is evicted: the job stays, the next attempt adopts it"
    began = monotonic()
    while monotonic() - began < _GIVE_UP:
        # Before the server is asked: after its answer the request may end, and the job be there.
        is_creating = target.creating.is_set()
        path = target.creating.path or target.path
        try:
            found = cluster.get(path)
            if owner_of(found) != target.owner:
                return "stop requested; the job of this name has another owner and stays"
            cluster.delete(path, found["metadata"]["uid"])
        except Refused as error:
            is_none = error.status == HTTPStatus.NOT_FOUND and not is_creating
            if is_none and monotonic() - began > _SETTLING:
                return "stop requested; there is no job to delete"
            if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT} and not is_transient(error):
                return f"stop requested; the job cannot be deleted: {error}"
        except ApiError:
            pass
        else:
            return f"stop requested: {path.rpartition('/')[2]} is deleted"
        sleep(0.02)
    return "stop requested; the job could not be deleted, the API server does not answer"


def _looked_up(cluster: Cluster, target: Target) -> tuple[Target, bool]:
    """The target, without a launcher's pod that does not exist; and whether that is known."""
    # A server that is busy at this moment is asked again: until then the pod is assumed to exist, or its
    # eviction would be taken for the termination of the run.
    try:
        cluster.get(target.launcher or "")
    except ApiError as error:
        return (target, False) if is_transient(error) else (replace(target, launcher=None), True)
    return target, True


def _is_evicted(cluster: Cluster, target: Target) -> bool:
    """Whether this pod is removed, or gone, while the run continues."""
    # An eviction through the API, such as a drain, sets the deletion time before the signal comes. A kubelet
    # that is short of memory, or shuts its node down, sets only a condition, at the time of the signal.
    if target.launcher is None:
        return False
    until = monotonic() + _NOTICE
    while True:
        with suppress(Unanswered):
            try:
                pod = cluster.get(target.launcher)
            except Refused as error:
                if not is_transient(error):
                    return error.status == HTTPStatus.NOT_FOUND
            else:
                # Kubelets before 1.26 have no condition for it: the reason is Evicted, NodeShutdown or such.
                reason = (pod.get("status") or {}).get("reason")
                if reason or "deletionTimestamp" in pod["metadata"] or condition(pod, "DisruptionTarget"):
                    return True
        if monotonic() > until:
            return False
        sleep(_NOTICE / 4)


def _is_terminated(cluster: Cluster, target: Target) -> bool:
    """Whether this pod is removed because its run was terminated.

    Argo marks the workflow, and deletes a pod that it takes for pending, which may have been running for a
    second: the pod has a deletion time, as in a drain, but no next attempt will come.
    """
    patient = cluster.patient(_ANSWERED)
    for path in filter(None, (target.launcher, target.creating.path or target.path)):
        with suppress(ApiError, LaunchError):
            found = patient.get(path)
            if run := run_of(found):
                return runs_over(patient, found["metadata"]["namespace"], [run])[run["uid"]] is True
    return False
