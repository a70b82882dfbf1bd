"""Any image and command as a training job: one step that launches it, follows it and fails if it fails."""

from __future__ import annotations

from ddpipe import steps
from ddpipe.components import image_named
from ddpipe.pipelines.wiring import DAY, HOUR, STORE_SECRET, Pipeline, Placeholder, Task
from ddpipe.storage.base import KUBEFLOW_ENDPOINT

NAME = "ddpipe-custom-job"
_OWNER = {"pipeline": NAME, "run_id": Placeholder.RUN_ID, "task_id": Placeholder.TASK_ID, "step": "job"}
_SWEPT = {"pipeline": NAME, "run_id": Placeholder.RUN_ID}

CUSTOM_JOB = Pipeline(
    name=NAME,
    title="ddpipe: run any training job",
    help=steps.PYTORCH_JOB.help,
    tasks=(Task(step=steps.PYTORCH_JOB, settled=_OWNER, cpu="100m", memory="512Mi", timeout=30 * DAY),),
    last=Task(step=steps.CLEAN_UP, settled=_SWEPT, cpu="100m", memory="512Mi", timeout=HOUR),
    defaults={
        "image": image_named(steps.Image.LAUNCHER),
        "command": ["python", "-c", "import platform; print('hello from', platform.node())"],
        "cpu": "100m",
        "memory": "128Mi",
        "s3_endpoint": KUBEFLOW_ENDPOINT,
        "s3_secret": STORE_SECRET,
    },
)
