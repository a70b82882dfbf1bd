"""Workflows on other data, and on a claim in place of an object store.

DDPIPE_TEST_CIFAR  a tar of <train|test>/<class>/<image>, for the run on photographs
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from place import Place, eventually
from uploads import KAGGLE, upload_photographs, upload_xrays
from workflows import (
    SMALL,
    Ran,
    Submit,
    accuracy_of_the_package,
    reported_accuracy,
    workflow_of,
    workflows_of,
)

from ddpipe.pipelines.compile import compile_v1
from ddpipe.storage import read_uri

pytestmark = pytest.mark.cluster


def test_photographs_from_the_bucket_train_the_same_way(submit: Submit, root: str) -> None:
    if "DDPIPE_TEST_CIFAR" not in os.environ:
        pytest.skip("no photographs: set DDPIPE_TEST_CIFAR")
    upload_photographs(Path(os.environ["DDPIPE_TEST_CIFAR"]), f"{root}/cifar", per_class=200)
    ran = submit(source="folder", source_path=f"{root}/cifar", dataset_name="cifar", epochs=1)
    assert ran.ended(900) == "Succeeded", ran.failure()
    assert accuracy_of_the_package(ran, ran.step("prepare")["facts"]["dataset"]) == pytest.approx(
        reported_accuracy(ran)
    )


def test_xrays_with_several_labels_each_train_the_same_way(submit: Submit, root: str, tmp_path: Path) -> None:
    upload_xrays(tmp_path, f"{root}/xrays")
    ran = submit(
        source="csv",
        source_path=f"{root}/xrays",
        **KAGGLE,
        dataset_name="xrays",
        batch_size=16,
        epochs=10,
        learning_rate=0.1,
    )
    assert ran.ended() == "Succeeded", ran.failure()
    assert ran.step("train")["facts"]["nodes"] == 2
    scores = json.loads(read_uri(f"{ran.folder}/evaluation/metrics.json"))["scores"]
    assert scores["macro_auc"]["value"] > 0.7, "0.5 is chance"


def test_without_an_object_store_all_data_is_on_a_claim(place: Place, tmp_path: Path) -> None:
    compile_v1(tmp_path, "photos")
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    place.create("/api/v1/persistentvolumeclaims", {"metadata": {"name": "photos"}, "spec": wanted})
    _let_everybody_write(place, "photos")
    # The package's own patch mounts the claim.
    small = {name: value for name, value in SMALL.items() if name != "patch"}
    workflow = workflow_of(small, tmp_path / "ddpipe-training-minikf.yaml")
    made = place.admin.create(workflows_of(place), workflow)
    ran = Ran(place, made["metadata"]["name"], "/data/ddpipe/runs")
    assert ran.ended() == "Succeeded", ran.failure()


def _let_everybody_write(place: Place, claim: str) -> None:
    """fsGroup does not reach volumes that are folders of the node."""
    path = f"/api/v1/namespaces/{place.namespace}/persistentvolumeclaims/{claim}"
    name = eventually(lambda: place.admin.get(path)["spec"].get("volumeName"), bool)
    volume = place.admin.get(f"/api/v1/persistentvolumes/{name}")["spec"]
    folder = Path(volume.get("hostPath", {}).get("path", "/nowhere"))
    if folder.is_dir():
        folder.chmod(0o777)
