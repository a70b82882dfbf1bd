"""`ddpipe launch` and `ddpipe jobs ls|scale|clean-up`: the jobs that ddpipe creates on the cluster."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click

from ddpipe.commands import json_option, print_result, say
from ddpipe.commands.options import options
from ddpipe.commands.results import CommandOutcome, Scores
from ddpipe.commands.step import step_command
from ddpipe.errors import DdpipeError, LaunchError
from ddpipe.jobs import LOCAL
from ddpipe.jobs.job import Owner, TrainingJob
from ddpipe.kube.api import ApiError, connect
from ddpipe.kube.retrying import answered
from ddpipe.launching.elastic import scale
from ddpipe.launching.launcher import launch
from ddpipe.launching.ownership import FoundJob, Swept, failed_steps, list_jobs, sweep, with_progress
from ddpipe.parameters import refuse
from ddpipe.processes.local import run_program
from ddpipe.processes.notices import is_wanted, notify
from ddpipe.steps import LAUNCH_ANYWHERE, LaunchAnywhereOptions, SweepOptions
from ddpipe.storage import exists
from ddpipe.validation import RunSettings

_PATIENCE = 30.0  # seconds for which a request is retried
_MOST_READ = 20  # jobs of a list whose progress is shown: it is in their logs
namespace_option = click.option(
    "--namespace", "-n", help="Namespace (default: that of the kubeconfig or the pod)."
)


@step_command(LAUNCH_ANYWHERE, context_settings={"allow_interspersed_args": False})
@namespace_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND]...")
def launch_command(given: RunSettings, namespace: str | None, arguments: tuple[str, ...]) -> CommandOutcome:
    """Run the step; its declaration describes it."""
    if given["backend"] == LOCAL:
        here, command = given.of(LaunchAnywhereOptions), (*given["command"], *arguments)
        refuse("nothing can be launched", [] if command else ["the command is missing: -- python train.py"])
        ranks = here.nodes * here.processes_per_pod
        run_program(command, ranks)
        text = f"{' '.join(command)} succeeded on this machine, ranks: {ranks}"
        return CommandOutcome({"ranks": ranks}, text)
    job = job_of(
        "", arguments=arguments, **given.values
    )  # invalid values are reported before a cluster is contacted
    cluster = connect()
    job = replace(job, namespace=namespace or cluster.namespace)
    outcome = launch(job, cluster, exists=exists, is_process=True)
    return CommandOutcome(
        asdict(outcome),
        f"{outcome.namespace}/{outcome.name} succeeded after {outcome.seconds:.1f} s",
        values={"job": outcome.name},
        shown={"job_metrics": Scores(outcome.metrics)},
    )


def job_of(namespace: str, *, arguments: Sequence[str], **given: Any) -> TrainingJob:
    """The job that the options and the arguments after them describe."""
    owner = Owner.from_run_values(given)
    own = {
        "owner": owner if owner.run_id else replace(owner, run_id=uuid.uuid4().hex[:12]),
        "namespace": namespace,
        "command": (*given["command"], *arguments),
    }
    return TrainingJob.from_run_values({**given, **own}).validated()


@click.group("jobs")
def jobs_command() -> None:
    """List, scale and clean up the jobs that ddpipe has created on the cluster."""


@jobs_command.command("ls")
@namespace_option
@click.option("--pipeline", help="Only jobs of this pipeline.")
@json_option
def list_command(namespace: str | None, pipeline: str | None) -> None:
    """List ddpipe's jobs: state, creation time, run, whether that has ended, and how far it is."""
    cluster = connect()
    where, patient = namespace or cluster.namespace, cluster.patient(_PATIENCE)
    jobs = answered(lambda: list_jobs(patient, where, pipeline=pipeline), f"the jobs of namespace {where}")
    jobs = with_progress(cluster, where, jobs, _MOST_READ)
    print_result({"jobs": [asdict(job) for job in jobs]}, "\n".join(map(_line, jobs)) or "no jobs")


def _line(job: FoundJob) -> str:
    over = {True: "ended", False: "running", None: "state unknown"}[job.run_over]
    run = f"{job.owner.pipeline}, run {job.owner.run_id} ({over})"
    far = f"  {job.progress}" if job.progress and str(job.progress) else ""
    return f"{job.name}  {job.state}  {job.created}  {run}{'  kept' if job.kept else ''}{far}"


@jobs_command.command("scale")
@click.argument("job")
@click.option("--nodes", type=int, required=True, help="Number of pods.")
@namespace_option
@json_option
def scale_command(job: str, nodes: int, namespace: str | None) -> None:
    """Change the number of pods of the running JOB (see `ddpipe jobs ls`).

    This records the request. The launcher that follows the job then deletes the job, whose ranks write a
    checkpoint, and creates it again under the same name; without a running launcher, the step's next attempt
    does so.
    """
    cluster = connect().patient(_PATIENCE)
    where = namespace or cluster.namespace
    title, before = answered(lambda: scale(cluster, where, job, nodes), f"{where}/{job}")
    text = f"requested: {title}, nodes={nodes}; its launcher creates it again"
    print_result({"job": title, "before": before, "nodes": nodes}, text)


@jobs_command.command("clean-up")
@options(SweepOptions)
@namespace_option
@json_option
def clean_up_command(pipeline: str, run_id: str, namespace: str | None) -> None:
    """Remove ddpipe's jobs whose run has ended; never other people's jobs, nor jobs to be kept.

    With --run-id, as in the last step of a pipeline, jobs that cannot be removed are reported but do not fail
    the command: they say nothing about the outcome of the run. With DDPIPE_NOTIFY_URL, how the run has ended
    is then sent there.
    """
    try:
        cluster = connect().patient(_PATIENCE)
        where, report = namespace or cluster.namespace, partial(say, err=True)
        swept = answered(
            lambda: sweep(cluster, where, pipeline=pipeline or None, run=run_id or None, say=report),
            f"the jobs of namespace {where}",
        )
    except LaunchError as error:
        if not run_id:
            raise
        say(f"the jobs of the run could not be removed: {error}", err=True)
        swept = Swept([], [str(error)])
    if not run_id:
        swept.complete()
    if run_id and is_wanted():
        _notify(pipeline, run_id)
    names = [job.name for job in swept.removed]
    text = "\n".join([f"{len(names)} removed", *names])
    print_result({"removed": names, "problems": swept.problems}, text)


def _notify(pipeline: str, run_id: str) -> None:
    """Send how the run has ended whose last step this is."""
    try:
        failures = failed_steps(connect())
    except (ApiError, DdpipeError) as error:
        say(f"the end of the run is not reported: {error}", err=True)
        return
    if failures is not None:
        state = "failed" if failures else "succeeded"
        text = "\n\n".join([*failures, f"See: ddpipe runs show {run_id}"])
        notify(f"{pipeline or 'pipeline'}: run {run_id} {state}", text, succeeded=not failures)
