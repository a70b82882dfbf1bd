"""A pipeline for KFP 1.x, as in MiniKF: an Argo workflow of containers that run `ddpipe`.

kfp 1.8 cannot be installed next to kfp 2, so `ddpipe compile` runs this file with another Python, which has
kfp 1.8 but not ddpipe, on the output of `wiring.Pipeline.describe`:

    python kfp_v1.py training.json ddpipe-training-minikf.yaml
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import Parameter, Signature
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from kfp import compiler, dsl

MOUNT = "/data"
OUTPUTS = "/tmp/outputs"  # noqa: S108 - in the container, where KFP 1.x collects them
SHOWN = ("mlpipeline-metrics", "mlpipeline-ui-metadata")
"""The documents that the UI shows of a step."""

KINDS = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}
ENGINE = {"run_id": dsl.RUN_ID_PLACEHOLDER, "task_id": ""}
"""There are no loops, so the name of a step identifies it."""

RESTRICTED = {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
}
"""The *restricted* Pod Security level: per container, because in MiniKF Argo's own containers are root."""

Described = Mapping[str, Any]


def pipeline_of(pipeline: Described) -> Callable[..., None]:
    """The pipeline as a function with the described parameters."""

    def graph(**given: dsl.PipelineParam) -> None:
        with dsl.ExitHandler(_step(pipeline["last"], given, {})):
            done: dict[str, dsl.ContainerOp] = {}
            for only_if, tasks in groupby(pipeline["tasks"], lambda one: one["only_if"]):
                with _if_made(only_if, done):
                    for task in tasks:
                        with _if_given(task, given):
                            made = _step(task, given, done).after(*done.values())
                        if not task["if_given"]:
                            done[task["name"]] = made

    texts = [f"    {item['name']}: {item['help']}" for item in pipeline["parameters"]]
    graph.__doc__ = "\n".join([pipeline["help"], "", "Args:", *texts])
    graph.__signature__ = Signature(list(map(_parameter, pipeline["parameters"])))  # type: ignore[attr-defined]
    made: Callable[..., None] = dsl.pipeline(name=pipeline["name"], description=pipeline["help"])(graph)
    return made


def _if_made(
    only_if: Described | None, done: Mapping[str, dsl.ContainerOp]
) -> AbstractContextManager[object]:
    """The engine's own condition on an earlier result, if there is one."""
    if not only_if:
        return nullcontext()
    earlier, result = only_if["made"]
    made: AbstractContextManager[object] = dsl.Condition(
        done[earlier].outputs[result] == "yes", name=result.replace("_", "-")
    )
    return made


def _if_given(task: Described, given: Mapping[str, dsl.PipelineParam]) -> AbstractContextManager[object]:
    """The engine's own condition on a parameter, if the task has one."""
    if not task["if_given"]:
        return nullcontext()
    made: AbstractContextManager[object] = dsl.Condition(
        given[task["if_given"]] != "",
        name=f"{task['name']}-if",
    )
    return made


def _parameter(item: Described) -> Parameter:
    kind = KINDS[item["kind"]]
    default = Parameter.empty if item["default"] is None else kind(item["default"])
    return Parameter(item["name"], Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _step(
    task: Described, given: Mapping[str, dsl.PipelineParam], done: Mapping[str, dsl.ContainerOp]
) -> dsl.ContainerOp:
    """A container that writes its results to files."""

    def filled(part: Any) -> Any:  # noqa: ANN401 - text, or what stands for it
        match part:
            case {"given": name}:
                return given[name]
            case {"made": [earlier, result]}:
                return done[earlier].outputs[result]
            case {"engine": name}:
                return ENGINE[name]
        return part

    shown = SHOWN if task["shows"] else ()
    files = {name: f"{OUTPUTS}/{name}" for name in (*task["values"], *shown)}
    writing = [part for name, path in files.items() for part in ("--write", name, path)]
    step = dsl.ContainerOp(
        name=task["name"],
        image=task["image"],
        command=[*map(filled, task["command"]), *writing],
        file_outputs={name: files[name] for name in task["values"]},
        output_artifact_paths={name: files[name] for name in shown},
    )
    # The engine caches by input URI and cannot see whether the data behind it changed; each step can.
    step.execution_options.caching_strategy.max_cache_staleness = "P0D"
    # For lost pods only, whose steps resume; a step that failed would fail again.
    step.set_retry(2, policy="OnError")
    step.set_timeout(task["timeout"])
    return step


def compile_workflow(pipeline: Described) -> str:
    """The workflow as YAML; deterministic."""
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        path = Path(scratch) / "workflow.yaml"
        compiler.Compiler().compile(pipeline_of(pipeline), str(path))
        workflow = yaml.safe_load(path.read_text())
    del workflow["metadata"]["annotations"]["pipelines.kubeflow.org/pipeline_compilation_time"]
    spec = workflow["spec"]
    spec["securityContext"] = {"fsGroup": 1000}  # a step may write to a claim
    tasks = {task["name"]: task for task in (*pipeline["tasks"], pipeline["last"])}
    for template in spec["templates"]:
        if "container" in template:
            template["container"] |= RESTRICTED | _data(pipeline)
            if template["name"] == pipeline["last"]["name"]:
                template["container"].setdefault("env", []).extend(_from_secret(*pipeline["notify"]))
            template["podSpecPatch"] = json.dumps(_resources(tasks[template["name"]]))
    if pipeline["claim"]:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": pipeline["claim"]}}]
    text: str = yaml.safe_dump(workflow, sort_keys=False, width=110)
    return text


def _from_secret(secret: str, keys: Mapping[str, str]) -> list[dict[str, Any]]:
    """Variables that refer to keys of a secret, if the namespace has it."""
    reference = {"name": secret, "optional": True}
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {**reference, "key": key}}} for key, name in keys.items()
    ]


def _data(pipeline: Described) -> dict[str, Any]:
    """The claim, or references to the object store's credentials, if the namespace has them."""
    if pipeline["claim"]:
        return {"volumeMounts": [{"name": "data", "mountPath": MOUNT}]}
    keys = {"accesskey": "AWS_ACCESS_KEY_ID", "secretkey": "AWS_SECRET_ACCESS_KEY"}
    return {"env": _from_secret(f"{{{{workflow.parameters.{pipeline['secret']}}}}}", keys)}


def _resources(task: Described) -> dict[str, Any]:
    """Resources as a patch, which the engine fills in later than it checks a container's own fields."""
    match task["memory"]:
        case {"given": name}:
            memory = f"{{{{workflow.parameters.{name}}}}}"
        case memory:
            pass
    resources = {"requests": {"cpu": task["cpu"], "memory": memory}, "limits": {"memory": memory}}
    return {"containers": [{"name": "main", "resources": resources}]}


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(compile_workflow(json.loads(source.read_text())))
