"""`ddpipe scale`: another number of pods for a job that runs."""

from __future__ import annotations

from dataclasses import asdict

import click

from ddpipe.commands import json_option, print_result
from ddpipe.commands.jobs import namespace_option
from ddpipe.kube.api import connect
from ddpipe.kube.retrying import answered
from ddpipe.launching.scaling import Scaled, scale


@click.command("scale")
@click.argument("job")
@click.option("--nodes", type=int, required=True, help="Number of pods.")
@namespace_option
@json_option
def scale_command(job: str, nodes: int, namespace: str | None) -> None:
    """Let the running JOB (see `ddpipe jobs ls`) go on with another number of pods.

    The launcher that follows the job does it: it removes the job, which lets its ranks write a checkpoint,
    and makes it anew under the same name. While no launcher runs nothing happens; the step's next attempt
    then does it.
    """
    cluster = connect()
    where = namespace or cluster.namespace
    scaled = answered(lambda: scale(cluster, where, job, nodes), f"{where}/{job}")
    print_result(asdict(scaled), _line(scaled))


def _line(scaled: Scaled) -> str:
    if not scaled.asked:
        return f"{scaled.job} has nodes={scaled.nodes} already, or is about to"
    before = f"from {scaled.before} " if scaled.before else ""
    return f"asked for: {scaled.job}, nodes {before}to {scaled.nodes}; its launcher makes it anew"
