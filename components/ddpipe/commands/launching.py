"""The door to launching: `ddpipe launch` runs a PyTorchJob and waits for it, `ddpipe jobs` shows and sweeps.

Options become the values of launch/job.py; what is done with them is told in launch/launcher.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click

from ddpipe.commands import json_option, kfp_v1, tell, write_option
from ddpipe.commands.options import options
from ddpipe.errors import ParameterError
from ddpipe.launch.cluster import connect
from ddpipe.launch.job import Owner, TrainingJob, training_command
from ddpipe.launch.launcher import launch
from ddpipe.launch.orphans import FoundJob, list_jobs, sweep
from ddpipe.launch.retrying import answered
from ddpipe.storage import exists
from ddpipe.train.recipe import Recipe

namespace_option = click.option(
    "--namespace", "-n", help="Namespace.  [default: the one of the kubeconfig or pod]"
)


@click.command("launch", context_settings={"allow_interspersed_args": False})
@options(Owner, TrainingJob)
@click.option("--dataset", help="Manifest of a dataset: runs ddpipe's own training on it.")
@click.option("--output", help="URI for checkpoints and results of ddpipe's own training.")
@click.option("--recipe", default="{}", help="Recipe of ddpipe's own training, as JSON.")
@namespace_option
@write_option("name", "metrics", "ui")
@json_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND]...")
def launch_command(namespace: str | None, **given: Any) -> None:  # noqa: ANN401 - click hands every option by its name
    """Run COMMAND, or ddpipe's own training, as a PyTorchJob and wait for its end.

    Ends with 0 if and only if the training succeeded and its outputs exist.
    """
    job = job_of(**given)
    cluster = connect()
    job = replace(job, namespace=namespace or cluster.namespace)
    outcome = launch(job, cluster, exists=exists, is_process=True)
    text = f"{outcome.namespace}/{outcome.name} succeeded after {outcome.seconds:.1f} s"
    tell(
        asdict(outcome),
        text,
        metrics=lambda: kfp_v1.metrics(outcome.metrics),
        ui=lambda: kfp_v1.views(*_event_files(given["output"])),
    )


def job_of(
    *,
    dataset: str | None,
    output: str | None,
    recipe: str,
    arguments: Sequence[str],
    **given: Any,  # noqa: ANN401 - the job's own options
) -> TrainingJob:
    """The options as a job whose namespace is not known yet.

    Raises:
        ParameterError: Some cannot work; all are listed.
    """
    command = (*given.pop("command"), *arguments)
    if dataset is not None or output is not None:
        if command or None in {dataset, output}:
            raise ParameterError(
                what="it is not clear what to run",
                which="--dataset, --output, COMMAND",
                seen="ddpipe's own training takes both --dataset and --output, and no COMMAND",
                do="Give both, or a COMMAND after --.",
            )
        command = training_command(str(dataset), str(output), Recipe.from_json(recipe).to_json())
        given["outputs"] = [f"{str(output).rstrip('/')}/training.json", *given["outputs"]]
    owner = Owner.picked(given)
    owner = owner if owner.run_id else replace(owner, run_id=uuid.uuid4().hex[:12])
    return TrainingJob.picked({**given, "owner": owner, "namespace": "", "command": command})


def _event_files(output: str | None) -> list[kfp_v1.View]:
    """TensorBoard, where its folder is one that the UI can reach."""
    return [kfp_v1.tensorboard(f"{output}/tensorboard")] if output and "://" in output else []


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
    return (
        f"{job.name}  {job.state}  {job.created}  {job.owner.pipeline}, run {job.owner.run_id} ({over}){kept}"
    )


@jobs_command.command("sweep")
@namespace_option
@click.option("--pipeline", help="Of this pipeline only.")
@click.option("--run-id", "run", help="This run is over: remove its jobs, also running ones.")
@json_option
def sweep_command(namespace: str | None, pipeline: str | None, run: str | None) -> None:
    """Remove ddpipe's jobs whose run is over; never anybody else's, nor what was to be kept."""
    cluster = connect()
    where = namespace or cluster.namespace
    swept = answered(
        lambda: sweep(cluster, where, pipeline=pipeline, run=run, say=partial(click.echo, err=True)),
        f"the jobs of namespace {where}",
    )
    names = [job.name for job in swept.complete()]
    tell({"removed": names}, "\n".join([f"{len(names)} removed", *names]))
