"""The door to launching: `ddpipe launch` runs a PyTorchJob and waits for it, `ddpipe jobs` shows and sweeps.

Options become the values of launch/job.py; what is done with them is told in launch/launcher.py.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from ddpipe.commands import json_option, kfp_v1, tell, write_option
from ddpipe.errors import ParameterError
from ddpipe.launch.cluster import connect
from ddpipe.launch.job import (
    Deadlines,
    Keep,
    Owner,
    Replicas,
    Restart,
    S3Access,
    Success,
    TrainingJob,
    Volume,
    VolumeKind,
    training_command,
    validated,
)
from ddpipe.launch.launcher import BACKENDS, launch
from ddpipe.launch.orphans import FoundJob, list_jobs, sweep
from ddpipe.launch.outage import answered
from ddpipe.storage import exists

Options = Callable[[Callable[..., None]], Callable[..., None]]
_STAGES = ", ".join(field.name for field in fields(Deadlines))


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, or @ and the path of a file that holds one."""
    try:
        parsed = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{text!r} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise click.BadParameter(f"{text!r} is no JSON object")
    return parsed


def _options(*options: Options) -> Options:
    """Several click options as one decorator, shown in this order."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _many(
    *names: str,
    help: str,  # noqa: A002 - click's own words
    type: Callable[[str], Any] | None = None,  # noqa: A002
    metavar: str | None = None,
) -> Options:
    return click.option(*names, type=type, metavar=metavar, multiple=True, help=help)


def _defaulted(kind: type, field: str, help: str, *names: str) -> Options:  # noqa: A002
    """An option with the default of a dataclass field."""
    default = next(item.default for item in fields(kind) if item.name == field)
    return click.option(*(names or (f"--{field.replace('_', '-')}",)), default=default, help=help)


identity = _options(
    click.option("--pipeline", default="ddpipe", help="Name of the pipeline; its earlier runs are swept."),
    click.option(
        "--run", help="Id of the run: giving the same again takes up the same job. [default: a new one]"
    ),
    click.option("--step", default="train", help="Name of the step."),
    click.option("--task", default="", help="What tells loop iterations of one run apart."),
)
work = _options(
    click.option("--image", required=True, help="Container image."),
    click.option("--dataset", help="Manifest of a dataset: runs ddpipe's own training on it."),
    click.option("--output", help="URI for checkpoints and results of ddpipe's own training."),
    click.option("--recipe", default="{}", help="Recipe of ddpipe's own training, as JSON."),
    _many("--expect", help="URI that must exist before the job counts as a success."),
)
size = _options(
    click.option(
        "--backend", type=click.Choice(list(BACKENDS)), default="pytorchjob", help="What runs the pods."
    ),
    _defaulted(Replicas, "nodes", "Pods."),
    _defaulted(Replicas, "processes", "Training processes per pod."),
    _defaulted(Replicas, "cpu", "CPUs per pod."),
    _defaulted(Replicas, "memory", "Memory per pod."),
    _defaulted(Replicas, "gpus", "GPUs per pod."),
    _defaulted(Replicas, "gpu_resource", "What a GPU is called on this cluster."),
    _defaulted(Replicas, "shared_memory", "Limit of /dev/shm."),
)
pod = _options(
    _many("--env", type=pair, metavar="NAME=VALUE", help="Environment variable."),
    _many(
        "--volume",
        type=Volume.parsed,
        metavar="KIND:NAME:PATH[:ro]",
        help=f"Volume of every pod; KIND is one of: {', '.join(VolumeKind)}.",
    ),
    click.option("--s3-secret", help="Secret with the object store's accesskey and secretkey."),
    click.option(
        "--s3-endpoint", default="minio-service.kubeflow:9000", help="Object store as pods reach it."
    ),
    _many("--node-selector", type=pair, metavar="NAME=VALUE", help="Label that nodes must have."),
    _many("--toleration", type=json_object, metavar="JSON", help="Toleration, as in a pod."),
    click.option("--priority-class", default="", help="Priority class of the pods."),
    click.option("--service-account", default="", help="Service account of the pods."),
    click.option("--pull-policy", default="IfNotPresent", help="When the image is pulled."),
    _many("--pull-secret", help="Secret for the image's registry."),
    _many("--label", type=pair, metavar="NAME=VALUE", help="Label of job and pods."),
    _many("--annotation", type=pair, metavar="NAME=VALUE", help="Annotation of job and pods."),
    click.option(
        "--patch",
        type=json_object,
        metavar="JSON",
        default="{}",
        help="Strategic merge patch of the pod template; @FILE reads it.",
    ),
)
behaviour = _options(
    click.option("--queue", default="", help="Kueue queue."),
    click.option(
        "--scheduling",
        type=json_object,
        metavar="JSON",
        default="{}",
        help="The operator's schedulingPolicy.",
    ),
    click.option(
        "--success",
        type=click.Choice([one.value for one in Success]),
        default=Success.ALL.value,
        help="Whose success counts.",
    ),
    click.option(
        "--restart",
        type=click.Choice([one.value for one in Restart]),
        default=Restart.NEVER.value,
        help="Which replicas restart.",
    ),
    _defaulted(TrainingJob, "max_restarts", "How often they do."),
    click.option(
        "--keep",
        type=click.Choice([one.value for one in Keep]),
        default=Keep.NEVER.value,
        help="Which ended jobs stay.",
    ),
    _many("--deadline", type=pair, metavar="STAGE=SECONDS", help=f"Seconds for a stage: {_STAGES}."),
    click.option("--autoscaling", is_flag=True, help="Nodes can be added: do not insist on a present one."),
    click.option("--outage", default=600.0, help="Seconds for which the API server may be away."),
)
namespace_option = click.option(
    "--namespace", "-n", help="Namespace.  [default: the one of the kubeconfig or pod]"
)


@click.command("launch", context_settings={"allow_interspersed_args": False})
@identity
@work
@size
@pod
@behaviour
@namespace_option
@write_option("name", "metrics", "ui")
@json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def launch_command(namespace: str | None, outage: float, backend: str, **given: Any) -> None:  # noqa: ANN401
    """Run COMMAND, or ddpipe's own training, as a PyTorchJob and wait for its end.

    Ends with 0 if and only if the training succeeded and its outputs exist.
    """
    cluster = connect()
    job = job_of(namespace or cluster.namespace, **given)
    outcome = launch(job, cluster, exists=exists, outage=outage, is_process=True, backend=backend)
    text = f"{outcome.namespace}/{outcome.name} succeeded after {outcome.seconds:.1f} s"
    tell(
        asdict(outcome),
        text,
        metrics=lambda: kfp_v1.metrics(outcome.metrics),
        ui=lambda: kfp_v1.views(*_event_files(given["output"])),
    )


def _event_files(output: str | None) -> list[kfp_v1.View]:
    """TensorBoard, where its folder is one that the UI can reach."""
    return [kfp_v1.tensorboard(f"{output}/tensorboard")] if output and "://" in output else []


def job_of(
    namespace: str,
    *,
    pipeline: str,
    run: str | None,
    step: str,
    task: str,
    deadline: Sequence[tuple[str, str]],
    s3_secret: str | None,
    s3_endpoint: str,
    **given: Any,  # noqa: ANN401 - as click gives them
) -> TrainingJob:
    """The options as one value.

    Raises:
        ParameterError: Some can not be right; all are listed.
    """
    command, expected = _command(given)
    return validated(
        TrainingJob(
            owner=Owner(pipeline=pipeline, run=run or uuid.uuid4().hex[:12], step=step, task=task),
            namespace=namespace,
            image=given["image"],
            command=command,
            replicas=Replicas(**{field.name: given[field.name] for field in fields(Replicas)}),
            outputs=expected,
            deadlines=_deadlines(deadline),
            s3=S3Access(secret=s3_secret, endpoint=s3_endpoint) if s3_secret else None,
            env=dict(given["env"]),
            volumes=given["volume"],
            node_selector=dict(given["node_selector"]),
            tolerations=given["toleration"],
            labels=dict(given["label"]),
            annotations=dict(given["annotation"]),
            pull_secrets=given["pull_secret"],
            success=Success(given["success"]),
            restart=Restart(given["restart"]),
            keep=Keep(given["keep"]),
            **{name: given[name] for name in _PLAIN},
        )
    )


_PLAIN = (
    "max_restarts",
    "priority_class",
    "queue",
    "scheduling",
    "service_account",
    "pull_policy",
    "autoscaling",
    "patch",
)


def _command(given: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the pods run, and what has to exist afterwards."""
    command, expected = tuple(given["command"]), tuple(given["expect"])
    if given["dataset"] is None and given["output"] is None:
        return command, expected
    if command or None in {given["dataset"], given["output"]}:
        raise ParameterError(
            what="it is not clear what to run",
            which="--dataset, --output, COMMAND",
            seen="ddpipe's own training takes both --dataset and --output, and no COMMAND",
            do="Give both, or a COMMAND after --.",
        )
    own = training_command(given["dataset"], given["output"], given["recipe"])
    return own, (f"{given['output'].rstrip('/')}/training.json", *expected)


def _deadlines(given: Sequence[tuple[str, str]]) -> Deadlines:
    try:
        return Deadlines(**{stage: float(seconds) for stage, seconds in given})
    except (TypeError, ValueError) as error:
        raise ParameterError(
            what="a deadline can not be right",
            which="--deadline " + " --deadline ".join("=".join(pair) for pair in given),
            seen=str(error),
            do=f"Give STAGE=SECONDS with a stage of {_STAGES}.",
        ) from error


@click.group("jobs")
def jobs_command() -> None:
    """Show, and sweep, the jobs that ddpipe has on the cluster."""


@jobs_command.command("ls")
@namespace_option
@click.option("--pipeline", help="Of this pipeline only.")
@json_option
def list_command(namespace: str | None, pipeline: str | None) -> None:
    """List ddpipe's jobs: state, age, run, and whether that run is over."""
    cluster = connect()
    where = namespace or cluster.namespace
    jobs = answered(lambda: list_jobs(cluster, where, pipeline=pipeline), f"the jobs of namespace {where}")
    tell({"jobs": [asdict(job) for job in jobs]}, "\n".join(map(_line, jobs)) or "no jobs")


def _line(job: FoundJob) -> str:
    over = {True: "over", False: "going on", None: "end unknown"}[job.run_over]
    kept = "  kept" if job.kept else ""
    return f"{job.name}  {job.state}  {job.created}  {job.owner.pipeline}, run {job.owner.run} ({over}){kept}"


@jobs_command.command("sweep")
@namespace_option
@click.option("--pipeline", help="Of this pipeline only.")
@click.option("--run", help="This run is over: remove its jobs, also running ones.")
@json_option
def sweep_command(namespace: str | None, pipeline: str | None, run: str | None) -> None:
    """Remove ddpipe's jobs whose run is over; never anybody else's, nor what was to be kept."""
    cluster = connect()
    where = namespace or cluster.namespace
    removed = answered(
        lambda: sweep(cluster, where, pipeline=pipeline, run=run), f"the jobs of namespace {where}"
    )
    names = [job.name for job in removed]
    tell({"removed": names}, "\n".join([f"{len(names)} removed", *names]))
