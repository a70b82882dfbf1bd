"""`ddpipe schedule set|ls|rm`: recurring runs of a package."""

from __future__ import annotations

from collections.abc import Callable

import click

from ddpipe.commands import SectionedCommand, json_option, print_result
from ddpipe.commands.engine import with_engine, with_request
from ddpipe.engine.client import Engine
from ddpipe.engine.runs import Request
from ddpipe.engine.schedules import (
    ZONE,
    Schedule,
    cron,
    delete,
    find,
    interval,
    put,
    schedules,
)
from ddpipe.errors import ParameterError

name_argument = click.argument("name")


@click.group("schedule")
def schedule_command() -> None:
    """Create, list and remove schedules, which run a package repeatedly."""


@schedule_command.command("set", cls=SectionedCommand)
@name_argument
@with_request
@with_engine
@click.option(
    "--cron", "crontab", help="Crontab with five fields, such as '0 2 * * *', or six with seconds first."
)
@click.option("--every", help="Time between two runs, such as 90s, 30m, 6h, 1d.")
@json_option
def set_command(
    engine: Engine, publisher: Callable[[Engine], Request], name: str, crontab: str | None, every: str | None
) -> None:
    """Create or update the schedule NAME, which runs the newest version of a package.

    Runs do not overlap, and missed runs are not caught up. One that is disabled in the Kubeflow UI stays
    disabled.
    """
    if bool(crontab) == bool(every):
        raise ParameterError(
            what="the schedule cannot be created",
            which="--cron and --every",
            seen="both are given" if crontab else "neither is given",
            do="Give exactly one of them.",
        )
    trigger = cron(crontab) if crontab else interval(str(every))
    request = publisher(engine)
    schedule, changed = put(engine, name, trigger, request)
    state = "set" if changed else "unchanged"
    text = f"{_line(schedule)}  {state}, version {request.version.name}"
    print_result({**schedule.facts(), "changed": changed, "version": request.version.name}, text)
    if trigger.cron:
        click.echo(ZONE, err=True)


@schedule_command.command("ls", cls=SectionedCommand)
@with_engine
@json_option
def list_command(engine: Engine) -> None:
    """List the schedules: name, times, state, ID."""
    found = schedules(engine)
    print_result(
        {"schedules": [item.facts() for item in found]}, "\n".join(map(_line, found)) or "no schedules"
    )


@schedule_command.command("rm", cls=SectionedCommand)
@name_argument
@with_engine
@json_option
def remove_command(engine: Engine, name: str) -> None:
    """Remove a schedule by its NAME or ID; its runs are kept."""
    schedule = find(engine, name)
    delete(engine, schedule)
    print_result({"deleted": schedule.id}, f"{schedule.name} removed")


def _line(schedule: Schedule) -> str:
    state = "enabled" if schedule.enabled else "disabled"
    return f"{schedule.name}  {schedule.trigger}  {state}  {schedule.id}"
