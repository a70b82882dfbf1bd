"""Launch a search with Katib and wait for it: an Experiment by the launch protocol, and its best trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpipe.errors import LaunchError, OutputMissing
from ddpipe.jobs.backend import Backend
from ddpipe.jobs.experiment import RESOURCE, Best, SearchPlan, best_of, counts_of, experiment
from ddpipe.jobs.job import TrainingJob
from ddpipe.kube.api import Cluster
from ddpipe.kube.cluster import spec_schema
from ddpipe.kube.resources import Object
from ddpipe.launching.launcher import Outcome, launch


@dataclass(frozen=True, slots=True)
class Tuned:
    """A search that succeeded."""

    outcome: Outcome
    best: Best
    counts: Mapping[str, int]


def tune(job: TrainingJob, plan: SearchPlan, cluster: Cluster, *, is_process: bool = False) -> Tuned:
    """Run an Experiment and wait for its end; see `launch`, whose guarantees it has."""

    def kind(inner: Backend) -> Backend:
        patient = cluster.patient(job.limits.outage)
        return experiment(plan, inner, spec_schema(patient, inner.resource, needed=inner.needs_schema))

    found: list[tuple[Best, dict[str, int]]] = []  # taken before the launcher removes the Experiment

    def check(ended: Object) -> LaunchError | None:
        if best := best_of(ended):
            found.append((best, counts_of(ended)))
            return None
        return OutputMissing(
            what="the search ended without a score",
            which=f"{RESOURCE.kind} {job.namespace}/{job.name}",
            seen=f"no trial has a value of {plan.metric}",
            do=f"Check that the lines of the training contain {plan.metric}=VALUE, and that the namespace "
            "has the label katib.kubeflow.org/metrics-collector-injection=enabled.",
        )

    outcome = launch(job, cluster, exists=lambda _uri: True, is_process=is_process, wrap=kind, check=check)
    return Tuned(outcome, *found[-1])
