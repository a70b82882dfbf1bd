"""Experiment (kubeflow.org/v1beta1) of Katib: trials of any kind of job, as a kind of job. Pure functions.

An Experiment looks to the launch protocol like a job: it is created once by its name, adopted after a retry,
followed with the pods of its trials, deleted on a stop. Katib makes each trial's job from a template in which
it replaces `${trialParameters.NAME}` by a value; the trial's name is one of these, where pods meet by name.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from ddpipe.errors import ParameterError
from ddpipe.jobs.backend import Backend, Controller
from ddpipe.jobs.job import TrainingJob, manifest_of
from ddpipe.jobs.replicas import Read, name_within, replica_of
from ddpipe.jobs.status import JobStatus, Phase, Stage, condition
from ddpipe.kube.resources import JOBS, Object, Resource, names

RESOURCE = Resource(group="kubeflow.org", version="v1beta1", plural="experiments", kind="Experiment")
KATIB = Controller(
    name="Katib controller",
    find="kubectl get pods -A -l katib.kubeflow.org/component=controller",
    webhook="katib.kubeflow.org",
    install="Install Kubeflow Katib",
    pods="Katib's ConfigMap katib-config (the securityContext of its own containers)",
)
TRIAL = "${trialParameters.trial}"  # in a template, the name of the trial
_EXPERIMENT, _TRIAL = "katib.kubeflow.org/experiment", "katib.kubeflow.org/trial"
# The container that Katib adds: the lines of the training are in its log.
_COLLECTOR = "metrics-logger-and-collector"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """What an Experiment varies, which name in the lines is maximized, and how far it goes."""

    parameters: Sequence[Mapping[str, Any]]
    metric: str
    algorithm: str
    seed: int
    early_stopping: bool
    trials: int
    parallel: int
    max_failed: int
    restart: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrialJob(TrainingJob):
    """The job of a trial, whose name only Katib knows."""

    @property
    def name(self) -> str:
        return TRIAL


def experiment(plan: SearchPlan, inner: Backend, schema: Object | None = None) -> Backend:
    """The backend that runs a job as the trials of an Experiment; the job has as many pods as all trials."""
    return Backend(
        resource=RESOURCE,
        controller=KATIB,
        manifest=partial(_manifest, plan, inner, schema),
        pod=inner.pod,
        phase=phase,
        status=partial(_status, inner.container),
        owns=owns,
        selector=lambda name: f"{_EXPERIMENT}={name},{_TRIAL}",  # on the pods of every kind of job
        concerns=concerns,
        expires=False,
    )


def _manifest(
    plan: SearchPlan, inner: Backend, schema: Object | None, job: TrainingJob, _own: Object | None = None
) -> dict[str, Any]:
    """The Experiment; the same job always gives the same manifest."""
    trial = _trial(plan, job)
    if inner.resource == JOBS and trial.nodes > 1:
        raise ParameterError(
            what="a trial cannot run in several pods of a Job",
            which=f"Experiment {job.namespace}/{job.name}",
            seen=f"{trial.nodes} pods need a service, which Katib does not create for a trial",
            do="Choose one pod for each trial, or another `backend`.",
        )
    made = inner.manifest(trial, schema)
    template = {
        "retain": True,  # the pods of a failed trial show why
        "primaryContainerName": inner.container,
        **({"primaryPodLabels": dict(inner.first)} if inner.first else {}),
        "trialParameters": [
            *({"name": item["name"], "reference": item["name"]} for item in plan.parameters),
            {"name": "trial", "reference": "${trialSpec.Name}"},
        ],
        "trialSpec": {"apiVersion": made["apiVersion"], "kind": made["kind"], "spec": made["spec"]},
    }
    return manifest_of(RESOURCE, job, {**_search(plan), "trialTemplate": template})


def _trial(plan: SearchPlan, job: TrainingJob) -> TrainingJob:
    """The job of a trial; its command is quoted, because Katib lets a shell run the words as they are."""
    given = {item.name: getattr(job, item.name) for item in fields(TrainingJob)}
    given |= {"nodes": job.nodes // plan.parallel, "restart": plan.restart}
    return _TrialJob(**{**given, "command": ("sh", "-c", shlex.join(job.command))})


def _search(plan: SearchPlan) -> dict[str, Any]:
    seed = {"algorithmSettings": [{"name": "random_state", "value": str(plan.seed)}]}
    return {
        "objective": {
            "type": "maximize",
            "objectiveMetricName": plan.metric,
            # the score of the model that the training leaves: that of its last epoch
            "metricStrategies": [{"name": plan.metric, "value": "latest"}],
        },
        "algorithm": {"algorithmName": plan.algorithm, **seed},
        **({"earlyStopping": {"algorithmName": "medianstop"}} if plan.early_stopping else {}),
        # Katib rejects more parallel or failed trials than there are trials.
        "parallelTrialCount": min(plan.parallel, plan.trials),
        "maxTrialCount": plan.trials,
        "maxFailedTrialCount": min(plan.max_failed, plan.trials),
        "resumePolicy": "Never",
        "parameters": [dict(item) for item in plan.parameters],
        "metricsCollectorSpec": {"collector": {"kind": "StdOut"}},
    }


def owns(found: Object, item: Object) -> bool:
    """Whether a pod belongs to a trial of this Experiment, not of an earlier one of this name."""
    return bool(item["metadata"]["creationTimestamp"] >= found["metadata"]["creationTimestamp"])


def concerns(found: Object, event: Object) -> bool:
    """Whether an event is about the Experiment, its sampler or the job of a trial, by their names."""
    named, metadata = event["involvedObject"], found["metadata"]
    # Events outlive what they are about.
    is_new = event["metadata"].get("creationTimestamp", "") >= metadata["creationTimestamp"]
    is_part = str(named.get("name", "")).startswith(f"{metadata['name']}-")
    return names(found, event) or (is_new and is_part)


def phase(found: Object) -> Phase:
    """How far the Experiment is."""
    if condition(found, "Failed"):
        return Phase.FAILED
    return Phase.SUCCEEDED if condition(found, "Succeeded") else Phase.ACTIVE


def _status(
    container: str, _job: TrainingJob, found: Object, pods: Sequence[Object], read: Read = replica_of
) -> JobStatus:
    """What the Experiment is doing; see `Backend`. Pods are named by their trials."""
    own = [(item["metadata"]["creationTimestamp"], name_within(found, item), item) for item in pods]
    replicas = tuple(
        replace(read(item, name, _judged(item, container)), container=_log_of(item, container))
        for _, name, item in sorted(own, key=lambda one: one[:2])
        if owns(found, item)
    )
    ending = condition(found, "Failed") or condition(found, "Succeeded") or {}
    working = [replica.stage for replica in replicas if not replica.over]
    begun = (found.get("status") or {}).get("conditions")
    idle = Stage.FINISHED if replicas else Stage.SCHEDULED if begun else Stage.RECONCILED
    return JobStatus(
        phase=phase(found),
        stage=max(working, default=idle),
        message=ending.get("message", ""),
        replicas=replicas,
    )


def _judged(item: Object, container: str) -> str:
    """The container whose end is the trial's: Katib's own, if it fails after the training has succeeded."""
    # It fails, for instance, when Katib's database does not answer: the trial then has no score.
    states = (item.get("status") or {}).get("containerStatuses") or ()
    codes = {one["name"]: one.get("state", {}).get("terminated", {}).get("exitCode") for one in states}
    return _COLLECTOR if codes.get(container) == 0 and codes.get(_COLLECTOR) else container


def _log_of(item: Object, container: str) -> str:
    return _COLLECTOR if any(one["name"] == _COLLECTOR for one in item["spec"]["containers"]) else container


@dataclass(frozen=True, slots=True)
class Best:
    """The best trial of an Experiment so far."""

    trial: str
    values: Mapping[str, str]
    score: float


def best_of(found: Object) -> Best | None:
    """The best trial; None if no trial has a score."""
    best = (found.get("status") or {}).get("currentOptimalTrial") or {}
    metrics = (best.get("observation") or {}).get("metrics") or ()
    metric = found["spec"]["objective"]["objectiveMetricName"]
    score = next((item.get("latest") for item in metrics if item["name"] == metric), None)
    if not best.get("bestTrialName") or score is None:
        return None
    values = {item["name"]: item["value"] for item in best.get("parameterAssignments") or ()}
    return Best(best["bestTrialName"], values, float(score))


def counts_of(found: Object) -> dict[str, int]:
    """How many trials ended in each way."""
    state = found.get("status") or {}
    names = {"succeeded": "trialsSucceeded", "failed": "trialsFailed", "stopped early": "trialsEarlyStopped"}
    return {word: state[name] for word, name in names.items() if state.get(name)}
