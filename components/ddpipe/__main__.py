"""The command line: `ddpipe run|prepare|data|train|evaluate|export|submit|runs|schedule|launch|jobs|scale|…`.

Results go to standard output (with --json as one object), everything else to standard error.
Exit codes are those of errors.py.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys

import click

from ddpipe.errors import DdpipeError, ParameterError
from ddpipe.processes.process import clean_up_and_leave, search_rarely

COMMANDS = (
    "run",
    "prepare",
    "data",
    "train",
    "evaluate",
    "export",
    "compile",
    "submit",
    "runs",
    "doctor",
    "schedule",
    "launch",
    "jobs",
    "scale",
)
"""Each has a file in commands/, imported when it is called: launching does not pay for preparing."""


class Door(click.Group):
    """Commands that end with an error's four parts and its exit code, never with a traceback."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Names in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """The command of this name, imported now."""
        if name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(f"ddpipe.commands.{name}")
        except ModuleNotFoundError as error:
            if _is_ours(error):
                raise
            return _absent(name, str(error.name))
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; show an expected error as prose, and as JSON where that was asked for."""
        try:
            return self._invoke(ctx)
        except DdpipeError as error:
            told = without_options(str(error)) if ctx.meta.get("write") else str(error)
            click.secho(told, fg="red", err=True)
            if ctx.meta.get("json"):
                click.echo(json.dumps(error.as_dict()))
            ctx.exit(error.exit_code)

    def _invoke(self, ctx: click.Context) -> object:
        """Run the command; steps import what they need when they start, which may not be installed."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if _is_ours(error):
                raise
            raise _too_small(str(ctx.invoked_subcommand), str(error.name)) from error


def without_options(text: str) -> str:
    """The same with parameters' names in place of options: inside a pipeline nobody types any."""
    return re.sub(r"--([a-z][a-z0-9-]*)", lambda option: option[1].replace("-", "_"), text)


def _is_ours(error: ModuleNotFoundError) -> bool:
    """Whether a module of ddpipe itself is missing, which is a bug."""
    return not error.name or error.name.startswith("ddpipe")


def _too_small(name: str, package: str) -> ParameterError:
    return ParameterError(
        what="the command cannot run here",
        which=f"ddpipe {name}",
        seen=f"the package {package} is not installed",
        do="Use the trainer image, or: pip install 'ddpipe[all]'",
    )


def _absent(name: str, package: str) -> click.Command:
    """Stands for a command that this installation is too small for: preparing, in the launcher image."""

    @click.command(name, help=f"(Not installed here: needs {package}.)", add_help_option=False)
    @click.argument("_arguments", nargs=-1, type=click.UNPROCESSED)
    def refuse(_arguments: tuple[str, ...]) -> None:
        raise _too_small(name, package)

    refuse.ignore_unknown_options = True
    return refuse


@click.group(
    cls=Door,
    context_settings={"show_default": True, "help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="ddpipe")
def cli() -> None:
    """Distributed PyTorch training as Kubeflow Pipelines components."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")


def main() -> None:
    """Entry point of the console script."""
    search_rarely()
    try:
        cli(prog_name="ddpipe")
    except SystemExit as ended:
        clean_up_and_leave(int(ended.code or 0))


if __name__ == "__main__":
    main()
