"""Launch a search with Katib and wait for it: an Experiment by the launch protocol, and its best trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpipe.errors import LaunchError, OutputMissing
from ddpipe.jobs.backend import Backend
from ddpipe.jobs.experiment import RESOURCE, Best, SearchPlan, best_of, counts_of, experiment
from ddpipe.jobs.job import TrainingJob
from ddpipe.kube.api import Cluster
from ddpipe.kube.cluster import spec_schema
from ddpipe.kube.resources import Object
from ddpipe.launching.launcher import Outcome, launch


@dataclass(slots=True)
class _Ending:
    """What a finished Experiment says, taken before the launcher removes it."""

    title: str
    best: Best | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def problem(self, found: Object) -> LaunchError | None:
        """Why an Experiment that succeeded is not a success; None if it is one."""
        self.best, self.counts = best_of(found), counts_of(found)
        if self.best:
            return None
        metric = found["spec"]["objective"]["objectiveMetricName"]
        return OutputMissing(
            what="the search ended without a score",
            which=self.title,
            seen=f"no trial has a value of {metric}",
            do=f"Check that the lines of the training contain {metric}=VALUE, and that the namespace has the "
            "label katib.kubeflow.org/metrics-collector-injection=enabled.",
        )


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

    ending = _Ending(f"{RESOURCE.kind} {job.namespace}/{job.name}")
    outcome = launch(
        job, cluster, exists=lambda _uri: True, is_process=is_process, wrap=kind, check=ending.problem
    )
    if ending.best is None:  # `problem` would have said so
        raise AssertionError(job.name)
    return Tuned(outcome, ending.best, ending.counts)
