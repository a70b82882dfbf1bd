"""`ddpipe run`: the whole pipeline on this machine, one step after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ddpipe.api import RUN_GROUPS, planned, resumed_by
from ddpipe.commands import json_option, print_result, same_command
from ddpipe.commands.options import SectionedCommand, given_names, options
from ddpipe.errors import ParameterError


@click.command("run", cls=SectionedCommand)
@click.argument("path", required=False)
@options(*RUN_GROUPS, without=("run_id",), brief=True)
@json_option
def run_command(path: str | None, **given: Any) -> None:
    """Run the whole pipeline on this machine: prepare, train, evaluate, export, report.

    PATH is the raw data: a folder, a file or s3://bucket/prefix, the same as --source-path.
    """
    given = with_path(path, given)
    plan = planned(given, given_names(given))
    with resumed_by("run", plan.run, given["run"], same_command()):
        finished = plan.carry_out()
    print_result(finished.to_dict(), finished.text())


def with_path(path: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with the raw data of the argument PATH as their source path."""
    if path and given["source_path"] not in {"", path}:
        raise ParameterError(
            what="the run cannot start",
            which=path,
            seen=f"`source_path` names other data: {given['source_path']}",
            do="Give one of them.",
        )
    return {**given, **({"source_path": path} if path else {})}
