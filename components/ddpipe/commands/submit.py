"""`ddpipe submit`: uploads a package to the pipeline server as a version, and runs it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import click

from ddpipe.commands import json_option, print_result
from ddpipe.commands.engine import followed, with_engine, with_request
from ddpipe.commands.options import SectionedCommand
from ddpipe.engine.client import Engine
from ddpipe.engine.runs import Request, look, start


@click.command("submit", cls=SectionedCommand)
@with_request
@with_engine
@click.option(
    "--run-name", help="Name of the run on the server (default: name of the pipeline, and the time)."
)
@click.option("--wait", is_flag=True, help="Wait for the run to end; its outcome is the exit code.")
@json_option
def submit_command(
    engine: Engine, publisher: Callable[[Engine], Request], run_name: str | None, wait: bool
) -> None:
    """Upload a package to Kubeflow Pipelines, unless it is there already, and start a run.

    PACKAGE is training, training-gated, training-tuned, custom-job, or the path of a compiled package.
    """
    request = publisher(engine)
    version = request.version
    name = run_name or f"{version.pipeline}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    run_id = start(engine, request, name)
    say = partial(click.echo, err=True)
    say(f"version  {version.name} of {version.pipeline} ({'uploaded' if version.uploaded else 'unchanged'})")
    say(f"run      {name}\n         {engine.link(run_id)}")
    state = followed(engine, run_id, say) if wait else look(engine, run_id)
    facts = {
        "pipeline": version.pipeline,
        "version": version.name,
        "version_id": version.id,
        "uploaded": version.uploaded,
        **state.facts(),
    }
    print_result(facts, run_id)
