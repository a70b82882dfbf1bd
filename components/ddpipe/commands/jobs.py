"""`ddpipe jobs ls|clean-up`: the jobs that ddpipe has created on the cluster."""

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
    "--namespace", "-n", help="Namespace (default: that of the kubeconfig or the pod)."
)


@click.group("jobs")
def jobs_command() -> None:
    """List and clean up the jobs that ddpipe has created on the cluster."""


@jobs_command.command("ls")
@namespace_option
@click.option("--pipeline", help="Only jobs of this pipeline.")
@json_option
def list_command(namespace: str | None, pipeline: str | None) -> None:
    """List ddpipe's jobs: state, creation time, run, and whether that run has ended."""
    cluster = connect()
    where = namespace or cluster.namespace
    jobs = answered(lambda: list_jobs(cluster, where, pipeline=pipeline), f"the jobs of namespace {where}")
    print_result({"jobs": [asdict(job) for job in jobs]}, "\n".join(map(_line, jobs)) or "no jobs")


def _line(job: FoundJob) -> str:
    over = {True: "ended", False: "running", None: "state unknown"}[job.run_over]
    run = f"{job.owner.pipeline}, run {job.owner.run_id} ({over})"
    return f"{job.name}  {job.state}  {job.created}  {run}{'  kept' if job.kept else ''}"


@jobs_command.command("clean-up")
@options(SweepOptions)
@namespace_option
@json_option
def clean_up_command(pipeline: str, run_id: str, namespace: str | None) -> None:
    """Remove ddpipe's jobs whose run has ended; never other people's jobs, nor jobs to be kept.

    With --run-id, as in the last step of a pipeline, jobs that cannot be removed are reported but do not fail
    the command: they say nothing about the outcome of the run.
    """
    _print_swept(_of_run(pipeline, run_id, namespace) if run_id else _complete(pipeline, run_id, namespace))


@jobs_command.command("sweep", hidden=True)
@options(SweepOptions)
@namespace_option
@json_option
def sweep_command(pipeline: str, run_id: str, namespace: str | None) -> None:
    """Former name of clean-up; fails with --run-id, too, if a job cannot be removed."""
    _print_swept(_complete(pipeline, run_id, namespace))


def _print_swept(swept: Swept) -> None:
    names = [job.name for job in swept.removed]
    text = "\n".join([f"{len(names)} removed", *names])
    print_result({"removed": names, "problems": swept.problems}, text)


def _complete(pipeline: str, run_id: str, namespace: str | None) -> Swept:
    """What was removed, if that is all."""
    swept = _swept(pipeline, run_id, namespace)
    swept.complete()
    return swept


def _of_run(pipeline: str, run_id: str, namespace: str | None) -> Swept:
    try:
        return _swept(pipeline, run_id, namespace)
    except LaunchError as error:
        click.echo(f"the jobs of the run could not be removed: {error}", err=True)
        return Swept([], [str(error)])


def _swept(pipeline: str, run_id: str, namespace: str | None) -> Swept:
    cluster = connect()
    where = namespace or cluster.namespace
    say = partial(click.echo, err=True)
    return answered(
        lambda: sweep(cluster, where, pipeline=pipeline or None, run=run_id or None, say=say),
        f"the jobs of namespace {where}",
    )
