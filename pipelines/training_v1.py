"""The training pipeline for KFP 1.x, which MiniKF has: an Argo workflow of containers that call `ddpipe`.

    prepare ──▶ train ──▶ evaluate ──▶ export, and clean-up however they end

Its parameters with their texts and defaults, and its images, are read from the compiled v2 pipeline: there is
one definition of them. kfp 1.8 can not be installed beside kfp 2, so `ddpipe compile` runs this file with
another Python, which has kfp 1.8 and nothing of ddpipe:

    python training_v1.py training.yaml training-v1.yaml [CLAIM]

With a claim, datasets and runs are on a volume in place of an object store.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import yaml
from kfp import compiler, dsl

NAME = "ddpipe-training"
DATA = "/data"
"""Where a claim is mounted, in every step and in the job."""

OUTPUTS = "/tmp/outputs"  # noqa: S108 - in the container, where KFP 1.x collects them
SHOWN = {"metrics": "mlpipeline-metrics", "ui": "mlpipeline-ui-metadata"}
"""What the UI shows: names of `ddpipe ... --write`, and of the engine."""

RECIPE = (
    "model",
    "epochs",
    "batch_size",
    "learning_rate",
    "momentum",
    "weight_decay",
    "warmup_fraction",
    "label_smoothing",
    "augmentation",
    "precision",
    "seed",
    "checkpoint_minutes",
)


def _of_secret(variable: str, key: str) -> dict[str, Any]:
    secret = {"name": "{{workflow.parameters.s3_secret}}", "key": key}
    return {"name": variable, "valueFrom": {"secretKeyRef": secret}}


STORE = {
    "env": [
        {"name": "S3_ENDPOINT", "value": "{{workflow.parameters.s3_endpoint}}"},
        _of_secret("AWS_ACCESS_KEY_ID", "accesskey"),
        _of_secret("AWS_SECRET_ACCESS_KEY", "secretkey"),
    ]
}
VOLUME = {"volumeMounts": [{"name": "data", "mountPath": DATA}]}
RESTRICTED = {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
}
"""The *restricted* Pod Security level: per container, because in MiniKF Argo's own containers are root."""

TYPES = {"STRING": str, "NUMBER_INTEGER": int, "NUMBER_DOUBLE": float, "BOOLEAN": bool}


@dataclass(frozen=True, slots=True)
class Package:
    """What the compiled v2 pipeline says.

    Attributes:
        description: Of the pipeline.
        parameters: By name: parameterType, defaultValue, description.
        images: By step.
        claim: Holds all data in place of an object store; none if empty.
    """

    description: str
    parameters: Mapping[str, Mapping[str, Any]]
    images: Mapping[str, str]
    claim: str = ""

    @classmethod
    def read(cls, path: Path) -> Package:
        """The package in this file."""
        spec = next(yaml.safe_load_all(path.read_text()))
        parameters = spec["root"]["inputDefinitions"]["parameters"]
        executors = spec["deploymentSpec"]["executors"]
        return cls(
            description=spec["pipelineInfo"]["description"],
            parameters=parameters,
            images={name.removeprefix("exec-"): one["container"]["image"] for name, one in executors.items()},
        )

    def on(self, claim: str) -> Package:
        """The same with all data on this claim."""
        defaults = {"runs": f"{DATA}/ddpipe/runs", "store": f"{DATA}/ddpipe/store", "s3_secret": ""}
        parameters = {
            name: {**facts, "defaultValue": defaults.get(name, facts["defaultValue"])}
            for name, facts in self.parameters.items()
        }
        return replace(self, parameters=parameters, claim=claim)


def pipeline_of(package: Package) -> Callable[..., None]:
    """The pipeline as a function with the parameters of `package`."""

    def training(**given: dsl.PipelineParam) -> None:
        cleaned = _step(
            "clean-up",
            package.images["clean-up"],
            *("ddpipe", "jobs", "sweep", "--pipeline", NAME, "--run-id", dsl.RUN_ID_PLACEHOLDER),
        )
        with dsl.ExitHandler(cleaned):
            prepared = _step(
                "prepare",
                package.images["prepare"],
                # The run's folder is named by the user or else by the engine.
                *("sh", "-c", 'run="${0:-$1}"; shift; exec ddpipe prepare --run "$run" "$@"'),
                *(given["run_name"], dsl.RUN_ID_PLACEHOLDER),
                *("--runs", given["runs"], "--store", given["store"], "--source", given["source"]),
                *("--source-path", given["source_path"], "--dataset-name", given["dataset_name"]),
                *("--image-size", given["image_size"], "--split-seed", given["split_seed"]),
                *("--validation-fraction", given["validation_fraction"]),
                *("--test-fraction", given["test_fraction"], "--image-format", given["image_format"]),
                *("--quality", given["quality"], "--folds", given["folds"], "--fold", given["fold"]),
                *("--table", given["table"], "--image-column", given["image_column"]),
                *("--label-columns", given["label_columns"], "--group-column", given["group_column"]),
                *("--split-column", given["split_column"], "--verify", given["verify"]),
                *("--skip-bad", given["skip_bad"]),
                values=("run", "training", "dataset", "dataset_id"),
                shown=("ui",),
            )
            run, dataset = prepared.outputs["run"], prepared.outputs["dataset"]
            whole = ("--run", run, "--runs", given["runs"], "--dataset", dataset)
            trained = _step(
                "train",
                package.images["train"],
                *("ddpipe", "launch", "--pipeline", NAME, "--run-id", dsl.RUN_ID_PLACEHOLDER),
                *("--dataset", dataset, "--output", prepared.outputs["training"]),
                *("--recipe", _recipe(package, given), "--image", given["image"]),
                *("--backend", given["backend"], "--nodes", given["nodes"]),
                *("--processes", given["processes"]),
                *("--cpu", given["cpu"], "--memory", given["memory"], "--gpus", given["gpus"]),
                *("--s3-endpoint", given["s3_endpoint"], "--s3-secret", given["s3_secret"]),
                *(("--volumes", f"claim:{package.claim}:{DATA}") if package.claim else ()),
                shown=("metrics", "ui"),
            )
            evaluated = _step(
                "evaluate",
                package.images["evaluate"],
                *("ddpipe", "evaluate", *whole),
                values=("evaluation", "accuracy"),
                shown=("metrics", "ui"),
            ).after(trained)
            _step(
                "export",
                package.images["export"],
                *("ddpipe", "export", *whole),
                values=("model",),
                shown=("ui",),
            ).after(evaluated)

    training.__doc__ = _docstring(package)
    training.__signature__ = Signature(  # type: ignore[attr-defined]
        [_parameter(name, **facts) for name, facts in package.parameters.items()]
    )
    pipeline: Callable[..., None] = dsl.pipeline(name=NAME, description=package.description)(training)
    return pipeline


def _parameter(name: str, parameterType: str, defaultValue: object, **_: object) -> Parameter:  # noqa: N803 - the package's names
    """A parameter as Python has them; the package holds every number as a float."""
    kind = TYPES[parameterType]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=kind(defaultValue), annotation=kind)


def _step(
    name: str,
    image: str,
    *command: object,
    values: tuple[str, ...] = (),
    shown: tuple[str, ...] = (),
) -> dsl.ContainerOp:
    """A container that writes results to files: `values` for later steps, `shown` for the UI."""
    files = {result: f"{OUTPUTS}/{result}" for result in (*values, *shown)}
    writing = [part for result, path in files.items() for part in ("--write", result, path)]
    step = dsl.ContainerOp(
        name=name,
        image=image,
        command=[*command, *writing],
        file_outputs={result: files[result] for result in values},
        output_artifact_paths={SHOWN[result]: files[result] for result in shown},
    )
    # The engine can not see whether the data behind an address changed: each step finds that out itself.
    step.execution_options.caching_strategy.max_cache_staleness = "P0D"
    # Lost pods only: every step goes on where its lost pod was. What failed fails again.
    step.set_retry(2, policy="OnError")
    return step


def _recipe(package: Package, given: Mapping[str, dsl.PipelineParam]) -> str:
    """The recipe as JSON, its values filled in by the engine."""
    quotes = {name: '"' if package.parameters[name]["parameterType"] == "STRING" else "" for name in RECIPE}
    members = (f'"{name}": {quotes[name]}{given[name]}{quotes[name]}' for name in RECIPE)
    return f"{{{', '.join(members)}}}"


def _docstring(package: Package) -> str:
    """What kfp 1.8 takes the parameters' descriptions from."""
    texts = {name: " ".join(facts["description"].split()) for name, facts in package.parameters.items()}
    lines = (f"    {name}: {text}" for name, text in texts.items())
    return "\n".join([package.description, "", "Args:", *lines])


def compile_workflow(package: Package) -> str:
    """The workflow as YAML; the same package always gives the same."""
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        path = Path(scratch) / "workflow.yaml"
        compiler.Compiler().compile(pipeline_of(package), str(path))
        workflow = yaml.safe_load(path.read_text())
    del workflow["metadata"]["annotations"]["pipelines.kubeflow.org/pipeline_compilation_time"]
    workflow["spec"]["securityContext"] = {"fsGroup": 1000}  # a step may write to a claim
    for template in workflow["spec"]["templates"]:
        if "container" in template:
            template["container"] |= RESTRICTED | (VOLUME if package.claim else STORE)
    if package.claim:
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": package.claim}}
        workflow["spec"]["volumes"] = [volume]
    text: str = yaml.safe_dump(workflow, sort_keys=False, width=110)
    return text


if __name__ == "__main__":
    source, target, *claim = sys.argv[1:]
    package = Package.read(Path(source))
    Path(target).write_text(compile_workflow(package.on(*claim) if claim else package))
