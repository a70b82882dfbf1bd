"""Images encoded by two pods, from and into an object store; environment as in test_training.py."""

from __future__ import annotations

import base64
import json
import re
import uuid
from pathlib import Path

import pytest
from place import OUR_IMAGES, a_place, delete, eventually
from step import Step

from ddpipe.data.manifest import load_manifest
from ddpipe.kube.api import ApiServer
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.storage import open_store

pytestmark = pytest.mark.cluster
IMAGE = OUR_IMAGES.format("trainer")


@pytest.mark.parametrize("lost", [False, True])
def test_two_pods_encode_the_version_of_one_process(
    admin: ApiServer,
    tmp_path: Path,
    s3_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    lost: bool,
) -> None:
    """Even if one of them is deleted; neither the job nor what the pods wrote for it is left."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    store = f"s3://{s3_environment['S3_BUCKET']}/test-{uuid.uuid4().hex[:8]}"
    keys = {"accesskey": "AWS_ACCESS_KEY_ID", "secretkey": "AWS_SECRET_ACCESS_KEY"}
    data = {key: base64.b64encode(s3_environment[name].encode()).decode() for key, name in keys.items()}
    job = {"image": IMAGE, "cpu": "250m", "memory": "512Mi", "shared_memory": "16Mi", "s3_secret": "store"}
    options = json.dumps({**job, "s3_endpoint": s3_environment["POD_S3_ENDPOINT"], "encode_nodes": 2})
    try:
        with a_place(admin, tmp_path, backend="indexedjob") as place:
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "data": data}
            place.create("/api/v1/secrets", secret)
            command = ("prepare", "--source", "digits", "--store", store, "--options", options)
            step = Step(place, command, s3_environment)
            if lost:
                name = place.pod("worker-1")["metadata"]["name"]
                path = f"/api/v1/namespaces/{place.namespace}/pods/{name}"
                delete(admin, path, gracePeriodSeconds=0)
                step.saw("worker-1 is replaced: its pod was deleted")
            ended = step.end()
            assert ended.code == 0, ended.text
            assert place.jobs_ever() == 1
            assert not eventually(place.pods, lambda pods: not pods)
        alone = prepare(PrepareSpec(source="digits", store=str(tmp_path / "alone")))
        assert re.findall(r"share (\d): (\d+) of \2 samples", ended.text) in (
            [("0", "898"), ("1", "899")],
            [("1", "899"), ("0", "898")],
        )
        uri = f"{store}/datasets/digits/{alone.dataset_id}/manifest.json"
        assert load_manifest(uri) == alone.manifest
        assert not list(open_store(store).list("scratch/"))
    finally:
        for item in list(open_store(store).list()):
            open_store(store).delete(item.key)
