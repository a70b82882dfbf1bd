"""The training pipelines: raw data in, an evaluated and exported model out.

prepare ──▶ train ──▶ evaluate ──▶ export, and clean-up however they end
prepare ──▶ train ──▶ evaluate ──▶ gate ──▶ if the gate says so: export ──▶ deploy and register if wanted
prepare ──▶ tune ──▶ train with the best recipe ──▶ evaluate ──▶ export, likewise
"""

from __future__ import annotations

from dataclasses import replace

from ddpipe import steps
from ddpipe.components import image_named
from ddpipe.pipelines.wiring import (
    DAY,
    HOUR,
    STEP_MEMORY,
    STORE_SECRET,
    Given,
    Made,
    Pipeline,
    Placeholder,
    Task,
    Value,
)
from ddpipe.storage.base import KUBEFLOW_ENDPOINT

NAME = "ddpipe-training"
_RUN: dict[str, Value] = {"run": "", "run_id": Placeholder.RUN_ID}
_DATASET: dict[str, Value] = {**_RUN, "dataset": Made("prepare", "dataset")}
_PACKAGE: dict[str, Value] = {"model": Made("export", "model")}
_EXPORTED = Made("gate", "to_export")
_OWNER: dict[str, Value] = {**_DATASET, "pipeline": NAME, "task_id": Placeholder.TASK_ID, "step": "train"}


def _owned(task: Task, pipeline: str) -> Task:
    """The task in another pipeline, which owns its jobs."""
    owner = {"pipeline": pipeline} if "pipeline" in task.settled else {}
    return replace(task, settled={**task.settled, **owner})


TRAINING = Pipeline(
    name=NAME,
    title="ddpipe: train a model",
    help="Train an image classifier: prepare the data, train, evaluate on the test split, and export.",
    tasks=(
        Task(step=steps.PREPARE, settled=_RUN, cpu="500m", memory=STEP_MEMORY, timeout=DAY),
        Task(step=steps.TRAIN, settled=_OWNER, cpu="100m", memory="512Mi", timeout=30 * DAY),
        Task(step=steps.EVALUATE, settled=_DATASET, cpu="500m", memory=STEP_MEMORY, timeout=DAY),
        Task(step=steps.EXPORT, settled=_DATASET, cpu="500m", memory=STEP_MEMORY, timeout=DAY),
    ),
    last=Task(
        step=steps.CLEAN_UP,
        settled={"run_id": Placeholder.RUN_ID, "pipeline": NAME},
        cpu="100m",
        memory="512Mi",
        timeout=HOUR,
    ),
    defaults={
        "runs": "s3://mlpipeline/ddpipe/runs",
        "store": "s3://mlpipeline/ddpipe/store",
        "if_unchanged": steps.REUSE,
        "image": image_named(steps.Image.TRAINER),
        "s3_endpoint": KUBEFLOW_ENDPOINT,
        "s3_secret": STORE_SECRET,
    },
)


def _after_export(step: steps.Step, timeout: int, parameter: str) -> Task:
    """A task about the exported model, for which a parameter names a server."""
    return Task(
        step=step,
        settled=_PACKAGE,
        cpu="100m",
        memory="512Mi",
        timeout=timeout,
        only_if=_EXPORTED,
        if_given=Given(parameter),
    )


GATED = replace(
    TRAINING,
    name=f"{NAME}-gated",
    title="ddpipe: train a model, and promote it if it is better",
    help="Train an image classifier, compare it with the champion on the same test images, and export and "
    "promote it if it is better.",
    tasks=(
        *(_owned(task, f"{NAME}-gated") for task in TRAINING.tasks[:-1]),
        Task(step=steps.GATE, settled=_DATASET, cpu="500m", memory=STEP_MEMORY, timeout=DAY),
        replace(TRAINING.tasks[-1], only_if=_EXPORTED),
        _after_export(steps.DEPLOY, DAY, "deploy_service"),
        _after_export(steps.REGISTER, HOUR, "register_url"),
    ),
    last=_owned(TRAINING.last, f"{NAME}-gated"),
    defaults={
        **TRAINING.defaults,
        "gate_model": "digits",
        "service": "",
        "registry": "",
        "serve_image": image_named(steps.Image.PREDICTOR),
    },
)

_PREPARE, _TRAIN, *_LATER = (_owned(task, f"{NAME}-tuned") for task in TRAINING.tasks)
TUNED = replace(
    TRAINING,
    name=f"{NAME}-tuned",
    title="ddpipe: search hyperparameters, train with the best",
    help="Search the hyperparameters of an image classifier with Katib, train with the best recipe, evaluate "
    "on the test split, and export.",
    tasks=(
        _PREPARE,
        replace(_TRAIN, step=steps.TUNE, settled={**_TRAIN.settled, "step": "tune"}),
        replace(_TRAIN, settled={**_TRAIN.settled, "recipe": Made("tune", "best_recipe")}),
        *_LATER,
    ),
    last=_owned(TRAINING.last, f"{NAME}-tuned"),
    defaults={**TRAINING.defaults, "search": ["learning_rate"]},
)
