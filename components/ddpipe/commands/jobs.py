"""`ddpipe jobs`: the jobs that ddpipe has on the cluster, shown and swept."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import click

from ddpipe.commands import json_option, print_result
from ddpipe.commands.options import options
from ddpipe.errors import LaunchError
from ddpipe.kube.api import connect
from ddpipe.kube.retrying import answered
from ddpipe.launching.orphans import FoundJob, Swept, list_jobs, sweep
from ddpipe.steps import SweepOptions

namespace_option = click.option(
    "--namespace", "-n", help="Namespace.  [default: the one of the kubeconfig or pod]"
)


@click.group("jobs")
def jobs_command() -> None:
    """List and clean up ddpipe's jobs on the cluster."""


@jobs_command.command("ls")
@namespace_option
@click.option("--pipeline", help="Only jobs of this pipeline.")
@json_option
def list_command(namespace: str | None, pipeline: str | None) -> None:
    """List ddpipe's jobs: state, age, run, and whether that run is over."""
    cluster = connect()
    where = namespace or cluster.namespace
    jobs = answered(lambda: list_jobs(cluster, where, pipeline=pipeline), f"the jobs of namespace {where}")
    print_result({"jobs": [asdict(job) for job in jobs]}, "\n".join(map(_line, jobs)) or "no jobs")


def _line(job: FoundJob) -> str:
    over = {True: "over", False: "going on", None: "end unknown"}[job.run_over]
    run = f"{job.owner.pipeline}, run {job.owner.run_id} ({over})"
    return f"{job.name}  {job.state}  {job.created}  {run}{'  kept' if job.kept else ''}"


@jobs_command.command("sweep")
@options(SweepOptions)
@namespace_option
@json_option
def sweep_command(pipeline: str, run_id: str, namespace: str | None) -> None:
    """Remove ddpipe's jobs whose run is over, but never anyone else's, nor those to be kept."""
    names = [job.name for job in _swept(pipeline, run_id, namespace).complete()]
    print_result({"removed": names}, "\n".join([f"{len(names)} removed", *names]))


@jobs_command.command("clean-up")
@options(SweepOptions)
@json_option
def clean_up_command(pipeline: str, run_id: str) -> None:
    """Remove what a run has left on the cluster: the last step of a pipeline, however the others ended.

    What cannot be removed is told and no error: it says nothing of how the run itself ended.
    """
    try:
        swept = _swept(pipeline, run_id, None)
    except LaunchError as error:
        click.echo(f"the run's jobs could not be removed: {error}", err=True)
        swept = Swept([], [str(error)])
    names = [job.name for job in swept.removed]
    print_result({"removed": names, "problems": swept.problems}, "\n".join([f"{len(names)} removed", *names]))


def _swept(pipeline: str, run_id: str, namespace: str | None) -> Swept:
    cluster = connect()
    where = namespace or cluster.namespace
    say = partial(click.echo, err=True)
    return answered(
        lambda: sweep(cluster, where, pipeline=pipeline or None, run=run_id or None, say=say),
        f"the jobs of namespace {where}",
    )
