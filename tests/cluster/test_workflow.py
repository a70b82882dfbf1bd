"""The package for KFP 1.x, run by a real Argo: green, shown by its UI, reused, and gated."""

from __future__ import annotations

import json

import pytest
from place import Place, let_deploy
from workflows import (
    SMALL,
    Ran,
    Submit,
    accuracy_of_the_package,
    reported_accuracy,
    workflow_of,
    workflows_of,
)

from ddpipe.pipelines.compile import COMPILED
from ddpipe.pipelines.training import GATED
from ddpipe.serve.deploy import MODEL
from ddpipe.serve.rollout import DEPLOYMENTS
from ddpipe.storage import read_uri

pytestmark = pytest.mark.cluster

GATED_WORKFLOW = COMPILED / "ddpipe-training-gated-minikf.yaml"


@pytest.fixture(scope="module")
def digits(submit: Submit) -> Ran:
    """The whole pipeline, once."""
    ran = submit()
    assert ran.ended() == "Succeeded", ran.failure()
    return ran


def test_the_whole_pipeline_succeeds_with_one_job_of_two_pods(digits: Ran) -> None:
    assert digits.place.jobs_ever() == 1
    training = json.loads(read_uri(f"{digits.folder}/training/training.json"))
    assert training["world_size"] == 2
    assert digits.place.jobs() == []


def test_the_exported_model_gives_the_reported_accuracy(digits: Ran) -> None:
    reported = reported_accuracy(digits)
    assert reported > 0.5
    assert accuracy_of_the_package(digits, digits.step("prepare")["facts"]["dataset"]) == pytest.approx(
        reported
    )


def test_the_engine_gets_what_its_ui_shows(digits: Ran) -> None:
    shown = {
        one["displayName"]: {artifact["name"] for artifact in one["outputs"].get("artifacts", [])}
        for one in digits.nodes()
        if one["type"] == "Pod"
    }
    found = {step.partition("(")[0]: names for step, names in shown.items()}
    assert {"mlpipeline-metrics", "mlpipeline-ui-metadata"} <= found["evaluate"] & found["train"]
    assert "mlpipeline-ui-metadata" in found["prepare"] & found["export"]


def test_a_run_on_unchanged_data_reuses_the_earlier_model(digits: Ran, submit: Submit) -> None:
    before, jobs = digits.step("prepare")["facts"], digits.place.jobs_ever()
    again = submit()
    assert again.ended() == "Succeeded", again.failure()
    after = again.step("prepare")["facts"]
    assert (before["reused"], after["reused"]) == (False, True)
    assert before["dataset"] == after["dataset"]
    earlier = digits.folder.rpartition("/")[2]
    assert [again.step(name)["facts"]["same_as"] for name in ("train", "evaluate", "export")] == [earlier] * 3
    assert again.step("export")["facts"]["model"] == f"{digits.folder}/model"
    assert digits.place.jobs_ever() == jobs


def test_a_gated_run_deploys_a_better_model_only(place: Place, root: str) -> None:
    """The engine's own conditions skip what follows a gate that keeps the champion."""
    let_deploy(place)
    deployed = {"service": "photos", "kserve": "no", "serve_cpu": "200m", "serve_memory": "512Mi"}
    given = {
        **SMALL,
        **deployed,
        "backend": "indexedjob",
        "runs": f"{root}/gated",
        "store": f"{root}/store",
        "gate_model": "toys",
    }
    models = []
    for epochs, decision, later in ((6, "promote", "Succeeded"), (1, "keep", None)):
        body = workflow_of(
            {**given, "model": "digits-cnn", "nodes": 1, "epochs": epochs}, GATED_WORKFLOW, GATED
        )
        ran = Ran(place, place.admin.create(workflows_of(place), body)["metadata"]["name"], given["runs"])
        assert ran.ended(900) == "Succeeded", ran.failure()
        assert ran.step("gate")["facts"]["decision"] == decision
        pods = [one for one in ran.nodes() if one["type"] == "Pod"]
        phases = {one["displayName"].partition("(")[0]: one["phase"] for one in pods}
        assert [phases.get(step) for step in ("export", "deploy")] == [later] * 2
        service = place.admin.get(DEPLOYMENTS.path(place.namespace, "photos"))
        models.append(service["metadata"]["annotations"][MODEL])
        assert service["status"]["readyReplicas"] == 1
    assert models[0] == models[1]
