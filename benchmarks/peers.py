"""The official clients, each in an environment of its own in the user's cache folder, for the same jobs."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from place import ACCOUNT, IMAGE, Place

from ddpipe.commands.jobs import job_of, launch_command
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.pytorchjob import manifest
from ddpipe.jobs.trainjob import manifest as trainjob_manifest
from ddpipe.kube.cluster import spec_schema

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ddpipe-bench"
TRAINING, SDK = "kubeflow-training==1.9.4", "kubeflow==0.5.0"


def training_python() -> Path:
    """The interpreter of an environment that has `kubeflow-training`."""
    return _python("official", TRAINING)


def sdk_python() -> Path:
    """The interpreter of an environment that has the Kubeflow SDK."""
    return _python("sdk", SDK)


def _python(name: str, package: str) -> Path:
    python = CACHE / name / "bin" / "python"
    if not list((CACHE / name).glob("lib/*/site-packages/kubeflow")):
        venv.create(CACHE / name, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    return python


def official(place: Place, patience: int) -> Callable[[Sequence[str]], list[str]]:
    """The command of `kubeflow-training` for the same job, with the master that its users give it.

    Args:
        place: Where the job runs.
        patience: Seconds that it waits.
    """
    python, script = str(training_python()), str(Path(__file__).with_name("official.py"))

    def command(arguments: Sequence[str]) -> list[str]:
        # As for an operator that knows no job without a master.
        made = manifest(_job(place, arguments), {"runPolicy": {}, "nprocPerNode": {}})
        return [python, script, json.dumps(made), str(patience)]

    return command


def sdk(place: Place, patience: int) -> Callable[[Sequence[str]], list[str]]:
    """The command of the SDK's TrainerClient for the same TrainJob; it may read training runtimes, too.

    Args:
        place: Where the job runs.
        patience: Seconds that it waits.
    """
    _grant_runtimes(place)
    _give_images(place)
    schema = spec_schema(place.admin, place.kind.resource, needed=place.kind.needs_schema)
    python, script = str(sdk_python()), str(Path(__file__).with_name("official_trainer.py"))

    def command(arguments: Sequence[str]) -> list[str]:
        found = trainjob_manifest(_job(place, arguments), schema)
        return [python, script, json.dumps(found), str(patience)]

    return command


def _give_images(place: Place) -> None:
    """The SDK reads no runtime whose containers have no image; ours get theirs from the job."""
    collection = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{place.namespace}/trainingruntimes"
    for runtime in place.admin.get(collection)["items"]:
        jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        for job in jobs:
            for container in job["template"]["spec"]["template"]["spec"]["containers"]:
                container["image"] = IMAGE
        change = {"spec": {"template": {"spec": {"replicatedJobs": jobs}}}}
        place.patch(f"{collection}/{runtime['metadata']['name']}", change)


def _grant_runtimes(place: Place) -> None:
    rbac, name = "rbac.authorization.k8s.io", {"metadata": {"name": "runtimes"}}
    rule = {
        "apiGroups": ["trainer.kubeflow.org"],
        "resources": ["trainingruntimes"],
        "verbs": ["get", "list"],
    }
    about = {"apiVersion": f"{rbac}/v1", **name}
    place.create(f"/apis/{rbac}/v1/roles", {**about, "kind": "Role", "rules": [rule]})
    binding = {
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "runtimes"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": place.namespace}],
    }
    place.create(f"/apis/{rbac}/v1/rolebindings", {**about, "kind": "RoleBinding", **binding})


def _job(place: Place, arguments: Sequence[str]) -> TrainingJob:
    options = dict(launch_command.make_context("launch", [*arguments[1:]]).params)
    del options["namespace"], options["check"]
    return job_of(place.namespace, **options)
