"""`ddpipe launch`: runs any image and command as a training job and waits for it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from ddpipe.commands.jobs import namespace_option
from ddpipe.commands.results import CommandOutcome
from ddpipe.commands.shown import Scores
from ddpipe.commands.step import step_command
from ddpipe.jobs.job import Owner, TrainingJob
from ddpipe.kube.api import connect
from ddpipe.launching.launcher import launch
from ddpipe.steps import PYTORCH_JOB
from ddpipe.storage import exists


@step_command(PYTORCH_JOB, context_settings={"allow_interspersed_args": False})
@namespace_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND]...")
def launch_command(namespace: str | None, **given: Any) -> CommandOutcome:  # noqa: ANN401 - the step's parameters
    """Run the step; its declaration describes it."""
    job = job_of("", **given)  # invalid values are reported before a cluster is contacted
    cluster = connect()
    job = replace(job, namespace=namespace or cluster.namespace)
    outcome = launch(job, cluster, exists=exists, is_process=True)
    return CommandOutcome(
        asdict(outcome),
        f"{outcome.namespace}/{outcome.name} succeeded after {outcome.seconds:.1f} s",
        values={"job": outcome.name},
        shown={"job_metrics": Scores(outcome.metrics)},
    )


def job_of(namespace: str, *, arguments: Sequence[str], **given: Any) -> TrainingJob:  # noqa: ANN401 - as above
    """The job that the options and the arguments after them describe."""
    owner = Owner.picked(given)
    own = {
        "owner": owner if owner.run_id else replace(owner, run_id=uuid.uuid4().hex[:12]),
        "namespace": namespace,
        "command": (*given["command"], *arguments),
    }
    return TrainingJob.picked({**given, **own})
