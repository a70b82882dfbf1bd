"""`ddpipe runs ls|show|logs|stop|retry`: the runs in a folder and on a Kubeflow Pipelines server.

A run in a folder is known by its name, a run on a server by its ID. A server is asked if one is configured:
by --endpoint, by KFP_ENDPOINT, or inside a cluster.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from ddpipe.commands import json_option, print_result, say
from ddpipe.commands.engine import Command, followed, with_engine
from ddpipe.commands.options import SectionedCommand, options, taken
from ddpipe.engine.client import Engine, connect
from ddpipe.engine.endpoint import EndpointOptions, has_endpoint, resolve
from ddpipe.engine.runs import RunState, StepState, latest, look, retry, step_log, step_named, stop
from ddpipe.runs import NAME, Run, runs_in

run_argument = click.argument("run_id", metavar="RUN")
wait_option = click.option(
    "--wait", is_flag=True, help="Wait for the run to end; its outcome is the exit code."
)
folder_option = click.option(
    "--runs", "folder", default="runs", help="URI of the folder that holds local runs."
)


def with_places(command: Command) -> Command:
    """Add options for a folder and a server; the command receives the folder, and the server if any."""

    @folder_option
    @options(EndpointOptions)
    @functools.wraps(command)
    def connected(**given: Any) -> None:
        own = taken(EndpointOptions, given)
        engine = connect(resolve(own, os.environ)) if has_endpoint(own, os.environ) else None
        command(engine=engine, **given)

    return connected


@click.group("runs")
def runs_command() -> None:
    """List, show, stop and retry runs, in a folder and on Kubeflow Pipelines, and read their logs."""


@runs_command.command("ls", cls=SectionedCommand)
@with_places
@click.option("--count", default=20, type=click.IntRange(1), help="Maximum number of runs of each place.")
@json_option
def list_command(engine: Engine | None, folder: str, count: int) -> None:
    """List the newest runs in a folder and on a server: name or ID, state, age, title."""
    local = [_state(run, begun) for run, begun in runs_in(folder, count)]
    runs = [*local, *(latest(engine, count) if engine else ())]
    print_result({"runs": [run.facts() for run in runs]}, "\n".join(_table(runs)) or "no runs")


@runs_command.command("show", cls=SectionedCommand)
@run_argument
@with_places
@wait_option
@json_option
def show_command(engine: Engine | None, folder: str, run_id: str, wait: bool) -> None:
    """Show a run and its steps: states and times.

    RUN is the name of a run in the folder, or the ID of a run on the server.
    """
    if local := _local(folder, run_id):
        _print_run(local)
    else:
        _show(engine or connect(resolve(EndpointOptions(), os.environ)), run_id, wait=wait)


@runs_command.command("logs", cls=SectionedCommand)
@run_argument
@click.argument("step", required=False)
@with_engine
@json_option
def logs_command(engine: Engine, run_id: str, step: str | None) -> None:
    """Print the log of a STEP: by default the one that failed, or else the latest."""
    found = step_named(look(engine, run_id), step)
    text = step_log(engine, run_id, found)
    print_result({"run_id": run_id, "step": found.name, "log": text}, text.rstrip("\n"))


@runs_command.command("stop", cls=SectionedCommand)
@run_argument
@with_engine
@json_option
def stop_command(engine: Engine, run_id: str) -> None:
    """Stop a run; its training job is deleted, its last checkpoint is kept."""
    stopped = stop(engine, run_id)
    text = "stop requested" if stopped else "the run has already ended"
    print_result({"run_id": run_id, "stopped": stopped}, text)


@runs_command.command("retry", cls=SectionedCommand)
@run_argument
@with_engine
@wait_option
@json_option
def retry_command(engine: Engine, run_id: str, wait: bool) -> None:
    """Run the failed steps of a run again; training resumes from its last checkpoint."""
    retry(engine, run_id)
    _show(engine, run_id, wait=wait)


def _show(engine: Engine, run_id: str, *, wait: bool) -> None:
    _print_run(followed(engine, run_id, partial(say, err=True)) if wait else look(engine, run_id))


def _print_run(state: RunState) -> None:
    lines = [f"{state.name}  {state.state}", state.link, *map(_line, state.steps)]
    print_result(state.facts(), "\n".join(lines))


def _local(folder: str, name: str) -> RunState | None:
    """The run of this name in a folder, if it is there."""
    if not NAME.fullmatch(name):
        return None
    run = Run.named(folder, name)
    return _state(run, None) if run.has_begun else None


def _state(run: Run, begun: datetime | None) -> RunState:
    """A run in a folder, in the form of a run on a server."""
    records = run.steps()
    steps = tuple(
        StepState(
            name=record["step"],
            state=record["status"].upper(),
            started=datetime.fromisoformat(record["started"]),
            seconds=record["seconds"],
        )
        for record in records
    )
    created = steps[0].started if steps else begun
    return RunState(id=run.name, name=run.name, state=run.state(), created=created, link=run.uri, steps=steps)


def _table(runs: Iterable[RunState]) -> list[str]:
    """A line for each run, in columns."""
    rows = [(run.id, run.state, _age(run), run.name if run.name != run.id else run.link) for run in runs]
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]


def _line(step: StepState) -> str:
    return f"  {step.name:<12} {step.state:<9} {step.seconds:.0f} s".rstrip()


def _age(run: RunState) -> str:
    """How long ago it began, in the largest unit that fits."""
    if run.created is None:
        return ""
    minutes = int((datetime.now(UTC) - run.created).total_seconds() // 60)
    hours, days = minutes // 60, minutes // (60 * 24)
    return (f"{days} d" if days else f"{hours} h" if hours else f"{minutes} min") + " ago"
