"""`ddpipe runs ls|show|logs|stop|retry`: the runs on a Kubeflow Pipelines server."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import click

from ddpipe.commands import json_option, print_result
from ddpipe.commands.engine import with_engine
from ddpipe.commands.following import followed
from ddpipe.commands.options import SectionedCommand
from ddpipe.engine.client import Engine
from ddpipe.engine.runs import RunState, StepState, latest, look, retry, step_log, step_named, stop

run_argument = click.argument("run_id")
wait_option = click.option("--wait", is_flag=True, help="Follow it to its end; its outcome is the exit code.")


@click.group("runs")
def runs_command() -> None:
    """List, show, stop and retry runs on Kubeflow Pipelines, and read what their steps wrote."""


@runs_command.command("ls", cls=SectionedCommand)
@with_engine
@click.option("--count", default=20, type=click.IntRange(1), help="How many, the newest first.")
@json_option
def list_command(engine: Engine, count: int) -> None:
    """List the newest runs: id, state, age, name."""
    runs = latest(engine, count)
    lines = [f"{run.id}  {run.state:<9}  {_age(run):>6}  {run.name}" for run in runs]
    print_result({"runs": [run.facts() for run in runs]}, "\n".join(lines) or "no runs")


@runs_command.command("show", cls=SectionedCommand)
@run_argument
@with_engine
@wait_option
@json_option
def show_command(engine: Engine, run_id: str, wait: bool) -> None:
    """Show a run and its steps: states and times."""
    _show(engine, run_id, wait=wait)


@runs_command.command("logs", cls=SectionedCommand)
@run_argument
@click.argument("step", required=False)
@with_engine
@json_option
def logs_command(engine: Engine, run_id: str, step: str | None) -> None:
    """Print what a STEP wrote: by default the one that failed, or else the latest."""
    found = step_named(look(engine, run_id), step)
    text = step_log(engine, run_id, found)
    print_result({"run_id": run_id, "step": found.name, "log": text}, text.rstrip("\n"))


@runs_command.command("stop", cls=SectionedCommand)
@run_argument
@with_engine
@json_option
def stop_command(engine: Engine, run_id: str) -> None:
    """Stop a run, unless it is over; its training job is deleted, and its last checkpoint stays."""
    stopped = stop(engine, run_id)
    print_result({"run_id": run_id, "stopped": stopped}, "told to stop" if stopped else "it was over already")


@runs_command.command("retry", cls=SectionedCommand)
@run_argument
@with_engine
@wait_option
@json_option
def retry_command(engine: Engine, run_id: str, wait: bool) -> None:
    """Run the failed steps of a run again: training goes on from its last checkpoint."""
    retry(engine, run_id)
    _show(engine, run_id, wait=wait)


def _show(engine: Engine, run_id: str, *, wait: bool) -> None:
    state = followed(engine, run_id, partial(click.echo, err=True)) if wait else look(engine, run_id)
    lines = [f"{state.name}  {state.state}", state.link, *map(_line, state.steps)]
    print_result(state.facts(), "\n".join(lines))


def _line(step: StepState) -> str:
    return f"  {step.name:<12} {step.state:<9} {step.seconds:.0f} s".rstrip()


def _age(run: RunState) -> str:
    """In the largest unit that fits."""
    if run.created is None:
        return ""
    minutes = int((datetime.now(UTC) - run.created).total_seconds() // 60)
    hours, days = minutes // 60, minutes // (60 * 24)
    return f"{days} d" if days else f"{hours} h" if hours else f"{minutes} min"
