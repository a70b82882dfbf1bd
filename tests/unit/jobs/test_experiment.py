"""A search as an Experiment of Katib, and an Experiment with its pods as a status."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from launch_samples import UID, a_job

from ddpipe.errors import ParameterError
from ddpipe.jobs import BACKENDS
from ddpipe.jobs.backend import backend
from ddpipe.jobs.experiment import TRIAL, Best, SearchPlan, best_of, counts_of, experiment
from ddpipe.jobs.job import owner_of
from ddpipe.jobs.status import Phase, Stage

PLAN = SearchPlan(
    parameters=[
        {"name": "learning_rate", "parameterType": "double", "feasibleSpace": {"min": "0.01", "max": "1"}}
    ],
    metric="val_accuracy",
    algorithm="tpe",
    seed=3,
    early_stopping=True,
    trials=6,
    parallel=2,
    max_failed=1,
    restart="Never",
)


def body(name: str = "pytorchjob", plan: SearchPlan = PLAN, **changes: Any) -> dict[str, Any]:
    job = a_job(nodes=2, command=["train", '{"learning_rate": ${trialParameters.learning_rate}}'], **changes)
    made: dict[str, Any] = experiment(plan, backend(name)).manifest(job, None)
    return made


def an_object(*conditions: str, **status: Any) -> dict[str, Any]:
    reported = [{"type": kind, "status": "True", "message": f"it is {kind}"} for kind in conditions]
    metadata = {"uid": UID, "creationTimestamp": "2026-01-01T00:00:00Z"}
    made = body()
    return {
        **made,
        "metadata": {**made["metadata"], **metadata},
        "status": {"conditions": reported, **status},
    }


def a_pod(
    trial: str, phase: str = "Running", state: dict[str, Any] | None = None, **metadata: str
) -> dict[str, Any]:
    container = {"name": "pytorch", "restartCount": 0, "state": state or {"running": {}}}
    return {
        "metadata": {
            "name": f"{a_job().name}-{trial}-worker-0",
            "uid": trial,
            "creationTimestamp": "2026-01-01T00:00:05Z",
            **metadata,
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "pytorch"}, {"name": "metrics-logger-and-collector"}],
        },
        "status": {"phase": phase, "containerStatuses": [container]},
    }


def status_of(found: dict[str, Any], *pods: dict[str, Any]) -> Any:
    return experiment(PLAN, backend("pytorchjob")).status(a_job(nodes=2), found, pods)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_trial_is_a_job_without_a_name(name: str) -> None:
    template = body(name)["spec"]["trialTemplate"]
    trial = template["trialSpec"]
    assert trial.keys() == {"apiVersion", "kind", "spec"}
    assert trial["kind"] == backend(name).resource.kind
    assert "${trialParameters.learning_rate}" in json.dumps(trial["spec"])
    assert {item["name"] for item in template["trialParameters"]} == {"learning_rate", "trial"}


def test_katib_reads_the_metrics_of_a_trial_s_first_pod() -> None:
    assert body()["spec"]["trialTemplate"]["primaryPodLabels"] == {"training.kubeflow.org/replica-index": "0"}


def test_words_of_a_command_survive_the_shell_of_katib() -> None:
    (script,) = _scripts(body()["spec"]["trialTemplate"]["trialSpec"])
    assert shlex.split(script) == ["train", '{"learning_rate": ${trialParameters.learning_rate}}']


def _scripts(value: Any) -> set[str]:
    """What follows `sh -c`."""
    if isinstance(value, dict):
        return set().union(*map(_scripts, value.values()), set())
    if isinstance(value, list):
        own = {value[2]} if value[:2] == ["sh", "-c"] else set()
        return own.union(*map(_scripts, value))
    return set()


def test_pods_of_a_trial_meet_at_the_name_of_the_trial() -> None:
    text = json.dumps(body(plan=replace(PLAN, parallel=1))["spec"]["trialTemplate"]["trialSpec"])
    assert f"{TRIAL}-worker-0" in text
    assert a_job().name not in text


def test_limits_are_those_of_the_search() -> None:
    spec = body()["spec"]
    assert (spec["maxTrialCount"], spec["parallelTrialCount"], spec["maxFailedTrialCount"]) == (6, 2, 1)
    few = body(plan=replace(PLAN, trials=1, max_failed=3))["spec"]
    assert (few["maxTrialCount"], few["parallelTrialCount"], few["maxFailedTrialCount"]) == (1, 1, 1)
    assert spec["earlyStopping"] == {"algorithmName": "medianstop"}
    assert spec["trialTemplate"]["trialSpec"]["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
    assert "earlyStopping" not in body(plan=replace(PLAN, early_stopping=False))["spec"]


def test_an_experiment_belongs_to_its_step() -> None:
    assert owner_of(body()) == a_job().owner
    assert body() == body()


@pytest.mark.parametrize("name", BACKENDS)
def test_the_pods_of_an_experiment_are_those_of_its_trials(name: str) -> None:
    """Whether they fit on the nodes, and into the quota, is decided by them."""
    inner = backend(name)
    assert experiment(PLAN, inner).pod(a_job()) == inner.pod(a_job())


def test_a_plain_job_has_trials_of_one_pod_only() -> None:
    with pytest.raises(ParameterError, match="2 pods need a service"):
        body("indexedjob", replace(PLAN, parallel=1))


def test_an_experiment_is_what_its_conditions_say() -> None:
    assert status_of(an_object()).phase is Phase.ACTIVE
    assert status_of(an_object("Created", "Running")).phase is Phase.ACTIVE
    assert status_of(an_object("Created", "Succeeded")).phase is Phase.SUCCEEDED
    failed = status_of(an_object("Created", "Failed"))
    assert (failed.phase, failed.message) == (Phase.FAILED, "it is Failed")


def test_a_failed_trial_does_not_end_the_experiment() -> None:
    dead = {"terminated": {"exitCode": 3, "finishedAt": "2026-01-01T00:01:00Z"}}
    seen = status_of(an_object("Running"), a_pod("aa", "Failed", dead), a_pod("bb"))
    assert seen.phase is Phase.ACTIVE
    assert seen.stage is Stage.FINISHED
    assert [replica.rank for replica in seen.replicas if replica.has_failed] == ["aa-worker-0"]


@pytest.mark.parametrize(("trained", "collected", "code"), [(0, 255, 255), (3, 255, 3), (0, 0, None)])
def test_a_failed_metrics_collector_fails_its_trial(trained: int, collected: int, code: int | None) -> None:
    """As when Katib's database does not answer; a failed training is the cause of what follows."""
    pod = a_pod("aa", "Failed", {"terminated": {"exitCode": trained, "finishedAt": "2026-01-01T00:01:00Z"}})
    collector = {"terminated": {"exitCode": collected, "finishedAt": "2026-01-01T00:02:00Z"}}
    pod["status"]["containerStatuses"].append({"name": "metrics-logger-and-collector", "state": collector})
    (replica,) = status_of(an_object("Running"), pod).replicas
    assert (replica.failure.code if replica.failure else None) == code


def test_an_experiment_waits_for_its_first_pods() -> None:
    assert status_of(an_object()).stage is Stage.RECONCILED
    assert status_of(an_object("Created")).stage is Stage.SCHEDULED
    waiting = a_pod("aa", "Pending", {"waiting": {"reason": "ImagePullBackOff"}})
    assert status_of(an_object("Created"), waiting).stage is Stage.PULLED


def test_lines_are_read_where_katib_puts_them() -> None:
    (replica,) = status_of(an_object("Running"), a_pod("aa")).replicas
    assert replica.container == "metrics-logger-and-collector"


def test_pods_of_an_earlier_experiment_are_ignored() -> None:
    old = a_pod("aa", creationTimestamp="2025-12-31T23:59:59Z")
    assert status_of(an_object("Running"), old).replicas == ()


@pytest.mark.parametrize(
    ("name", "created", "concerned"),
    [
        ("-tpe-6fd474cd9f", "2026-01-01T00:00:07Z", True),  # the ReplicaSet of the sampler
        ("-tpe-6fd474cd9f", "2025-12-31T23:59:59Z", False),  # of an earlier Experiment of this name
        ("2-tpe-6fd474cd9f", "2026-01-01T00:00:07Z", False),
    ],
)
def test_rejected_pods_of_the_sampler_concern_an_experiment(name: str, created: str, concerned: bool) -> None:
    found = an_object("Created")
    backend_of_trials = experiment(PLAN, backend("pytorchjob"))
    event = {
        "metadata": {"creationTimestamp": created},
        "involvedObject": {
            "kind": "ReplicaSet",
            "name": f"{found['metadata']['name']}{name}",
            "uid": "other",
        },
        "reason": "FailedCreate",
    }
    assert backend_of_trials.concerns(found, event) is concerned
    assert backend_of_trials.concerns(found, {**event, "involvedObject": {"uid": UID}})


def test_the_best_trial_has_values_and_a_score() -> None:
    best = {
        "bestTrialName": "x-aa",
        "parameterAssignments": [{"name": "learning_rate", "value": "0.5"}],
        "observation": {"metrics": [{"name": "val_accuracy", "latest": ".953", "max": ".960"}]},
    }
    found = an_object("Succeeded", currentOptimalTrial=best, trialsSucceeded=5, trialsFailed=1)
    assert best_of(found) == Best("x-aa", {"learning_rate": "0.5"}, 0.953)
    assert counts_of(found) == {"succeeded": 5, "failed": 1}


def test_an_experiment_without_a_score_has_no_best_trial() -> None:
    assert best_of(an_object("Succeeded")) is None
    assert best_of(an_object("Succeeded", currentOptimalTrial={"observation": {}})) is None
