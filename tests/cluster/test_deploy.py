"""Models behind a service on a real cluster: rollout, answers, rollback; with KServe where it is installed.

DDPIPE_TEST_IMAGES names our images; the predictor's among them has to be on the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from onnx_packages import SHAPE, a_small_package
from place import (
    ACCOUNT,
    OUR_IMAGES,
    RBAC,
    STORE_SECRET,
    Place,
    a_place,
    delete,
    eventually,
    let_deploy,
    missing_image,
)

from ddpipe.errors import DeployFailed
from ddpipe.kube.api import ApiServer, connect
from ddpipe.kube.cluster import is_served
from ddpipe.kube.resources import PODS
from ddpipe.serve.deploy import APP, INFERENCE_SERVICES, deploy
from ddpipe.serve.predictor import load_model
from ddpipe.serve.settings import DeployOptions

pytestmark = pytest.mark.cluster

IMAGE = OUR_IMAGES.format("predictor")


@pytest.fixture
def team(admin: ApiServer, tmp_path: Path) -> Iterator[ApiServer]:
    """A namespace of the *restricted* level, with the keys of the object store."""
    if missing := missing_image(admin, IMAGE):
        pytest.skip(missing)
    with a_place(admin, tmp_path) as place:
        data = admin.get(f"/api/v1/namespaces/kubeflow/secrets/{STORE_SECRET}")["data"]
        place.create("/api/v1/secrets", {"metadata": {"name": STORE_SECRET}, "data": data})
        _may_only_deploy(place)
        yield connect(str(place.kubeconfig))


def _may_only_deploy(place: Place) -> None:
    """The account has the rights of images/rbac-serving.yaml, and no others."""
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{place.namespace}"
    for document in yaml.safe_load_all(RBAC.read_text()):
        if document["kind"] == "RoleBinding" and document["metadata"]["name"] == ACCOUNT:
            delete(place.admin, f"{roles}/rolebindings/{document['metadata']['name']}")
    let_deploy(place)
    assert eventually(lambda: place.may("apps", "deployments", "create"), bool), "no Role"
    assert eventually(lambda: not place.may("", "pods", "delete"), bool), "it may do more"


def _options(environment: dict[str, str], kserve: str) -> DeployOptions:
    return DeployOptions(
        service="photos",
        serve_image=IMAGE,
        serve_cpu="200m",
        serve_memory="512Mi",
        s3_secret=STORE_SECRET,
        s3_endpoint=environment["POD_S3_ENDPOINT"],
        kserve=kserve,
    )


@pytest.mark.parametrize("kserve", ["no", "yes"])
def test_model_is_rolled_out_answers_and_is_rolled_back(
    team: ApiServer, root: str, s3_environment: dict[str, str], kserve: str
) -> None:
    if kserve == "yes" and not is_served(team, INFERENCE_SERVICES):
        pytest.skip("the cluster of KUBECONFIG has no KServe")
    options = _options(s3_environment, kserve)
    first, second, damaged = (
        a_small_package(f"{root}/{kserve}/{seed}", seed=seed, has_pattern=True) for seed in range(3)
    )
    damaged.folder.store.write("model.onnx", b"changed after it was published")
    for package in (first, second):
        uri = package.folder.store.uri
        assert "as exported, within" in deploy(options, uri, team).tested
        assert _answer(team, kserve) == pytest.approx(_expected(uri), abs=1e-6)
    for wrong, seen in {
        damaged.folder.store.uri: "a file was changed after it was published",
        first.folder.store.uri: "Image",
    }.items():
        changed = replace(options, serve_image="localhost/nowhere:1") if seen == "Image" else options
        with pytest.raises(DeployFailed) as failed:
            deploy(changed, wrong, team)
        assert seen in str(failed.value)
        assert second.folder.store.uri in str(failed.value)
        assert _answer(team, kserve) == pytest.approx(_expected(second.folder.store.uri), abs=1e-6)


def _expected(uri: str) -> list[float]:
    (answer,) = load_model(uri).predict([np.zeros(SHAPE, np.uint8) + 100])
    return list(answer.probabilities.values())


def _answer(team: ApiServer, kserve: str) -> list[float]:
    """What a ready pod says, asked through the API server."""
    label = "app=isvc.photos-predictor" if kserve == "yes" else f"{APP}=photos"

    def ready() -> list[str]:
        pods = team.get(PODS.path(team.namespace), {"labelSelector": label})["items"]
        return [pod["metadata"]["name"] for pod in pods if _is_ready(pod)]

    (name,) = eventually(ready, lambda names: len(names) == 1)
    return _asked(team, f"{PODS.path(team.namespace, name)}:8080")


def _asked(team: ApiServer, target: str) -> list[float]:
    """What a pod, or a pod behind a Service, says."""
    tensor = {
        "name": "images",
        "datatype": "UINT8",
        "shape": [1, *SHAPE],
        "data": [100] * int(np.prod(SHAPE)),
    }
    answer = team.create(f"{target}/proxy/v2/models/photos/infer", {"inputs": [tensor]})
    return list(answer["outputs"][0]["data"])


def _is_ready(pod: dict[str, object]) -> bool:
    conditions = pod["status"].get("conditions", ())  # type: ignore[attr-defined]
    going = "deletionTimestamp" in pod["metadata"]  # type: ignore[operator]
    return not going and any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
