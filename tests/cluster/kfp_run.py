"""A run on a Kubeflow Pipelines v2 backend, seen through its API and through the cluster below it."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kfp import Client
from place import OUR_IMAGES, delete, eventually

from ddpipe.kube.api import ApiServer

NAMESPACE = "kubeflow"
"""Where a single-user backend has its runs."""

_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_JOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
_OURS = r"[\w./:-]+/ddpipe-(launcher|predictor|trainer):[\w.]+"
_ENDED = {"SUCCEEDED", "FAILED", "CANCELED", "SKIPPED"}


def connected() -> Client:
    """The backend's API."""
    if "KFP_ENDPOINT" not in os.environ:
        pytest.skip("no Kubeflow Pipelines: set KFP_ENDPOINT to its API, such as http://127.0.0.1:8888")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # every call warns which servers are supported
        return Client(host=os.environ["KFP_ENDPOINT"])


def remove_experiment(client: Client, name: str) -> None:
    """An experiment with its schedules and runs."""
    experiment = client.get_experiment(experiment_name=name).experiment_id
    for schedule in client.list_recurring_runs(experiment_id=experiment).recurring_runs or ():
        client.delete_recurring_run(schedule.recurring_run_id)
    for run in client.list_runs(experiment_id=experiment, page_size=100).runs or ():
        client.delete_run(run.run_id)
    client.delete_experiment(experiment)


def remove_pipeline(client: Client, name: str) -> None:
    """A pipeline with its versions, if it is there."""
    pipeline = client.get_pipeline_id(name)
    if pipeline is None:
        return
    for version in client.list_pipeline_versions(pipeline).pipeline_versions or ():
        client.delete_pipeline_version(pipeline, version.pipeline_version_id)
    client.delete_pipeline(pipeline)


def package_with_test_images(package: Path, folder: Path) -> str:
    """The package as it is committed, but for the names of our images."""
    text = re.sub(_OURS, lambda match: OUR_IMAGES.format(match[1]), package.read_text())
    (folder / package.name).write_text(text)
    return str(folder / package.name)


@dataclass(frozen=True)
class Run:
    """One run of a package.

    Attributes:
        client: The backend's API.
        admin: The cluster.
        id: The run's id.
        folder: Where its results are, an s3:// URI.
    """

    client: Client
    admin: ApiServer
    id: str
    folder: str

    @property
    def state(self) -> str:
        return str(self.client.get_run(self.id).state)

    def ended(self, seconds: float = 900) -> str:
        """The state at its end."""
        return eventually(lambda: self.state, lambda state: state in _ENDED, seconds, pause=1)

    def states(self) -> dict[str, str]:
        """The state of each task, by its name."""
        details = self.client.get_run(self.id).run_details
        return {task.display_name: str(task.state) for task in (details and details.task_details) or ()}

    def jobs(self) -> list[dict[str, Any]]:
        """The training jobs of this run that are on the cluster."""
        items: list[dict[str, Any]]
        items = self.admin.get(_JOBS, {"labelSelector": f"ddpipe.dev/run={self.id}"})["items"]
        return items

    def pods_of_job(self) -> list[dict[str, Any]]:
        """The pods of this run's training jobs, as they were asked for."""
        items = self.admin.get(_PODS, {"labelSelector": f"ddpipe.dev/run={self.id}"})["items"]
        return [item["spec"] for item in items]

    def pod_of(self, step: str) -> dict[str, Any]:
        """The pod that did the work of a step, as it was asked for."""
        return next(
            pod["spec"]
            for pod in self._pods(step)
            if any("ddpipe" in one["image"] for one in pod["spec"]["containers"])
        )

    def log(self, step: str) -> str:
        """What the container of a step wrote, and what the engine added."""
        return "\n".join(
            line.decode()
            for pod in self._pods(step)
            for line in self.admin.lines(f"{_PODS}/{pod['metadata']['name']}/log", {"container": "main"}, 10)
        )

    def _pods(self, step: str) -> list[dict[str, Any]]:
        pods = self.admin.get(_PODS, {"labelSelector": f"pipeline/runid={self.id}"})["items"]
        name = "workflows.argoproj.io/node-name"
        return [pod for pod in pods if f".{step}." in pod["metadata"]["annotations"][name]]

    def failure(self) -> str:
        """What went wrong, for the test's own message."""
        states = self.states()
        logs = [
            f"--- {step}\n{self.log(step)[-4000:]}" for step, state in states.items() if state == "FAILED"
        ]
        return "\n".join([str(states), *logs])

    def remove(self) -> None:
        """Stop it if it runs, and take it off the backend, with its jobs."""
        if self.state not in _ENDED:
            self.client.terminate_run(self.id)
            self.ended(120)
        self.client.delete_run(self.id)
        for job in self.jobs():
            delete(self.admin, f"{_JOBS}/{job['metadata']['name']}")
