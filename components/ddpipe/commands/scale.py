"""`ddpipe scale`: changes the number of pods of a running job."""

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
    """Change the number of pods of the running JOB (see `ddpipe jobs ls`).

    This records the request. The launcher that follows the job then deletes the job, whose ranks write a
    checkpoint, and creates it again under the same name; without a running launcher, the step's next attempt
    does so.
    """
    cluster = connect()
    where = namespace or cluster.namespace
    scaled = answered(lambda: scale(cluster, where, job, nodes), f"{where}/{job}")
    print_result(asdict(scaled), _line(scaled))


def _line(scaled: Scaled) -> str:
    if not scaled.asked:
        return f"{scaled.job} has, or is about to have, nodes={scaled.nodes} already"
    before = f"from {scaled.before} " if scaled.before else ""
    return f"requested: {scaled.job}, nodes {before}to {scaled.nodes}; its launcher creates it again"
