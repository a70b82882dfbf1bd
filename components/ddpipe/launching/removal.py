"""Removes a job so that another one can take its name: the object, its pods, their share of the quota."""

from __future__ import annotations

import time

from ddpipe.errors import NameTaken
from ddpipe.kube.resources import PODS, Object
from ddpipe.kube.retrying import backoff, delete
from ddpipe.launching import diagnosis, preflight
from ddpipe.launching.attempt import Attempt

# Pods have 30 s to end, and keep their names until then.
_REMOVAL_SECONDS = 90.0
# A quota still counts pods that are gone, for seconds or, on a busy cluster, for a minute.
_QUOTA_SECONDS = 60.0
_SHOWN_PODS = 5


def remove(attempt: Attempt, found: Object) -> None:
    """Delete a job, and wait until its name, the names of its pods and its quota are free."""
    delete(attempt.patient, attempt.path, found["metadata"]["uid"])
    await_free_names(attempt)
    _await_free_quota(attempt)


def await_free_names(attempt: Attempt) -> None:
    """Wait for the rest of a removed job: an operator that finds old pods takes long to recover.

    Pods that do not end, on a lost node, are waited for no longer than others: they are reported, and the
    job is created in spite of them.
    """
    until = time.monotonic() + _REMOVAL_SECONDS
    for tried, pause in enumerate(backoff()):
        left, found = _left_over(attempt), attempt.find()
        is_going = found is not None and "deletionTimestamp" in found["metadata"]
        left = [pod for pod in left if found is None or not attempt.backend.owns(found, pod)]
        if not is_going and not left:
            return
        if time.monotonic() > until:
            break
        if not tried:
            attempt.say("waiting for the pods of an earlier attempt to end")
        time.sleep(pause)
    if is_going:
        raise NameTaken(
            what="the job of an earlier attempt was deleted but still exists",
            which=attempt.title,
            seen=f"it still exists after {_REMOVAL_SECONDS:.0f} s",
            do="See what its finalizers wait for: "
            + diagnosis.kubectl("get -o yaml", attempt.job, attempt.backend),
        )
    names = ", ".join(pod["metadata"]["name"] for pod in left[:_SHOWN_PODS])
    attempt.say(f"{len(left)} pods of an earlier attempt have not ended, continuing without them: {names}")


def _left_over(attempt: Attempt) -> list[Object]:
    path, selector = PODS.path(attempt.job.namespace), attempt.backend.selector(attempt.job)
    found: list[Object] = attempt.patient.get(path, {"labelSelector": selector})["items"]
    return found


def _await_free_quota(attempt: Attempt) -> None:
    """Wait until quotas have room again for the job that was removed: they are updated some time later."""
    job = attempt.job
    until = time.monotonic() + _QUOTA_SECONDS
    for tried, pause in enumerate(backoff()):
        problems = list(preflight.beyond_quota(attempt.patient, job, attempt.backend))
        if not problems or time.monotonic() > until:
            return
        if not tried:
            attempt.say(f"waiting for the pods of an earlier attempt to leave the quota: {problems[0]}")
        time.sleep(pause)
