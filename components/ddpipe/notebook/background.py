"""The launcher of a handle: its own process, which outlives the notebook's kernel.

    python -m ddpipe.notebook.background FOLDER [adopt]

It does what `ddpipe launch` does, or on this machine what `ddpipe train` does, for the launch.json in the
folder, and at the end writes outcome.json. SIGTERM ends the work: the job is deleted, the ranks are stopped.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from dataclasses import replace
from typing import Any

from ddpipe.errors import (
    ClusterUnreachable,
    DdpipeError,
    Forbidden,
    InputError,
    Interrupted,
    LaunchError,
    NameTaken,
    NoSuchObject,
    NotInstalled,
    ParameterError,
    PreflightFailed,
    StoreError,
)
from ddpipe.jobs import LOCAL
from ddpipe.kube.api import Cluster, Refused, connect
from ddpipe.kube.resources import Object
from ddpipe.kube.retrying import answered, delete
from ddpipe.launching.adoption import Attempt, adopt, adopt_or_create
from ddpipe.launching.launcher import launch
from ddpipe.launching.ownership import list_jobs
from ddpipe.notebook.folder import KEY, OUTCOME, PIPELINE, Launch, check_ranks, ended_early
from ddpipe.notebook.machine import Machine, Secrets
from ddpipe.processes.local import run_local
from ddpipe.storage import Store, exists, open_store

_log = logging.getLogger(__name__)

_PATIENCE = 20.0  # seconds for which a request is retried when a job is deleted
# What keeps a second launcher from following a job says nothing about how the launch ended.
_INCONCLUSIVE = (
    ClusterUnreachable,
    Forbidden,
    NameTaken,
    NotInstalled,
    PreflightFailed,
    InputError,
    StoreError,
)


class CannotAdopt(Exception):
    """No job could be adopted, and there is no result: this launcher does not know how the launch ended."""


def main() -> None:
    """Run the launch to its end."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    uri, *mode = sys.argv[1:]
    folder, machine = open_store(uri), Machine(uri)
    known, began = machine.secrets(), time.monotonic()
    outcome: dict[str, Any] = {"phase": "succeeded", "error": None, "metrics": {}}
    try:
        outcome["metrics"] = _run(Launch.read(folder), folder, known, adopting=bool(mode))
    except CannotAdopt as error:
        # Another launcher may be about to create the job: a launcher that knows nothing records nothing.
        _log.warning("[launch] %s", error)
        return
    except DdpipeError as error:
        if mode and isinstance(error, _INCONCLUSIVE):
            _log.warning("[launch] this launch cannot be followed from here: %s", error)
            return
        stopped = isinstance(error, Interrupted)
        outcome |= {"phase": "stopped" if stopped else "failed", "error": error.as_dict()}
    outcome["seconds"] = round(time.monotonic() - began, 3)
    folder.write(OUTCOME, json.dumps(outcome, indent=1).encode())
    if known.options:
        machine.keep(Secrets(known.key))


def remove_jobs(launched: Launch, cluster: Cluster) -> None:
    """Delete what is on the cluster of a launch that has no launcher any more."""
    namespace = launched.namespace or cluster.namespace
    patient = cluster.patient(_PATIENCE)

    def remove() -> None:
        for job in list_jobs(patient, namespace, pipeline=PIPELINE, run=launched.name):
            if not job.kept:
                delete(patient, job.path, job.uid)

    answered(remove, f"the job of launch {launched.name} in namespace {namespace}")


def _run(launched: Launch, folder: Store, known: Secrets, *, adopting: bool) -> dict[str, float]:
    metrics: dict[str, float] = {}
    if launched.backend == LOCAL:
        os.environ[KEY] = known.key
        ranks = launched.nodes * max(1, launched.processes)
        run_local("ddpipe.notebook.call", [folder.uri, launched.sha256], ranks)
    else:
        metrics = _run_job(launched, folder, known, connect(), adopting=adopting)
    try:
        check_ranks(folder)
    except NoSuchObject:
        raise ended_early("rank 0") from None
    return metrics


def _run_job(
    launched: Launch, folder: Store, known: Secrets, cluster: Cluster, *, adopting: bool
) -> dict[str, float]:
    """Follow the launch's job to its end; the numbers of its last progress line."""
    if not launched.namespace:
        # Elsewhere, the account's own namespace is another one.
        launched = replace(launched, namespace=cluster.namespace)
        if not adopting:
            launched.write(folder)
    job = launched.job(folder.uri, cluster.namespace, known.options, known.key)
    if job.min_nodes and set(launched.private) - known.options.keys():
        raise ParameterError(
            what="this launch cannot be followed from here",
            which=launched.name,
            seen=f"only the machine of the launch has its {' and '.join(launched.private)}, and a job with "
            "min_nodes is created again when pods are lost",
            do="Attach on the machine (and as the user) of the launch.",
        )

    def adopt_known(attempt: Attempt) -> tuple[Object, bool]:
        try:
            return adopt(attempt)
        except (Refused, LaunchError) as error:
            raise CannotAdopt(str(error)) from error

    begin = adopt_known if adopting else adopt_or_create
    try:
        return dict(launch(job, cluster, exists=exists, is_process=True, begin=begin).metrics)
    except CannotAdopt:
        # The cluster removes finished jobs after a while; the result says that this one succeeded.
        if exists(job.outputs[0]):
            return {}
        raise


if __name__ == "__main__":
    main()
