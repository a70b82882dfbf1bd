"""Any image and command as a training job: one step that launches it, follows it and fails when it fails."""

from __future__ import annotations

from ddpipe import steps
from ddpipe.pipelines.wiring import STORE_SECRET, Engine, Pipeline, Task
from ddpipe.storage.base import KUBEFLOW_ENDPOINT

NAME = "ddpipe-custom-job"
_OWNER = {"pipeline": NAME, "run_id": Engine.RUN_ID, "task_id": Engine.TASK_ID, "step": "job"}
_SWEPT = {"pipeline": NAME, "run_id": Engine.RUN_ID}

CUSTOM_JOB = Pipeline(
    name=NAME,
    title="ddpipe: run any training job",
    help=steps.PYTORCH_JOB.help,
    tasks=(Task(step=steps.PYTORCH_JOB, settled=_OWNER, resources="launcher", cpu="100m", memory="512Mi"),),
    last=Task(step=steps.CLEAN_UP, settled=_SWEPT, resources="launcher", cpu="100m", memory="512Mi"),
    defaults={"s3_endpoint": KUBEFLOW_ENDPOINT, "s3_secret": STORE_SECRET},
)
