"""The command line: `ddpipe run|tune|prepare|data|train|evaluate|gate|export|predict|serve|deploy|…`.

Results go to standard output (with --json as one object), everything else to standard error.
Exit codes are those of errors.py.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from signal import SIGINT
from typing import Any

import click
from click.shell_completion import CompletionItem

from ddpipe.commands import ARGUMENTS, JSON, RESULT, SPELLING
from ddpipe.errors import DdpipeError, Interrupted, ParameterError, error_for_missing_package, visible
from ddpipe.form import as_option, spelled
from ddpipe.processes.machine import STOPS, clean_up_and_leave, search_rarely

COMMANDS = {
    "run": ("run_steps", "Images to a model, on this machine.", "run photos --minutes 10"),
    "tune": ("tune", "Search hyperparameters.", "tune photos --search learning_rate --trials 20"),
    "prepare": ("data", "Raw data to a dataset version.", "prepare photos"),
    "data": ("data", "Dataset versions: ls, show, verify, diff.", "data show photos"),
    "train": ("run_steps", "Train a model on a dataset version.", "train photos --processes 2"),
    "evaluate": ("run_steps", "Score a run's model on the test split.", "evaluate first"),
    "gate": ("run_steps", "Compare a run's model with the champion.", "gate first --gate-model photos"),
    "export": ("run_steps", "Export as safetensors and ONNX.", "export first"),
    "predict": ("serving", "Predict one image or tables of many.", "predict runs/first/model new.jpg"),
    "serve": ("serving", "Answer predictions over HTTP.", "serve runs/first/model"),
    "deploy": ("serving", "Serve a model on the cluster.", "deploy photos@champion --service photos"),
    "models": ("models", "Versions of models: ls, show, promote.", "models ls"),
    "compile": ("engine", "Write the pipelines' YAML packages.", "compile --output packages"),
    "submit": ("engine", "Run a package on Kubeflow Pipelines.", "submit training --wait"),
    "runs": ("runs", "Runs here and on a server: ls, show, stop.", "runs compare first second"),
    "doctor": ("engine", "Check what a package needs on a server.", "doctor training"),
    "schedule": ("engine", "Run a package regularly.", "schedule ls"),
    "launch": (
        "jobs",
        "Any image and command as a training job.",
        "launch --image mine:1 -- torchrun train.py",
    ),
    "jobs": ("jobs", "Jobs on the cluster: ls, scale, clean-up.", "jobs ls"),
}
"""Commands in the order in which a newcomer needs them: file, help of at most 45 characters, and an example.

A file is imported when one of its commands is called: `launch` does not load what `prepare` needs.
"""

BELOW: Mapping[str, Mapping[str, str]] = {
    "runs": {
        "ls": "--runs s3://mlpipeline/runs",
        "show": "first",
        "compare": "first second --page compared.html",
        "logs": "4f1c train",
        "stop": "4f1c",
        "retry": "4f1c --wait",
    },
    "data": {
        "ls": "",
        "show": "photos",
        "diff": "0cc726233b3c 802f9b7067ac",
        "verify": "photos",
        "rm": "0cc726233b3c",
        "clean-up": "",
    },
    "models": {
        "ls": "",
        "show": "photos",
        "promote": "photos@3f9c01",
        "rollback": "photos",
        "evaluate": "photos --dataset 3f9c01 --output checked",
        "register": "photos --registry http://registry:8080",
        "rm": "photos@3f9c01",
    },
    "jobs": {"ls": "-n team-a", "scale": "train-4f1c --nodes 4", "clean-up": "-n team-a"},
}
"""The arguments of an example for each command of a group."""

_INTERRUPTED = 128 + SIGINT  # exit code after Ctrl-C
# Commands whose end is a message, if one is wanted; in a pipeline, clean-up sends it.
_NOTIFIED = {"run", "tune", "train", "launch"}
_TERMINATION = Path("/dev/termination-log")  # where Kubernetes looks for the cause; it is there in pods only


class CommandLine(click.Group):
    """Commands whose expected errors are printed in four parts, with their exit code and no traceback."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """All names."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """The command of this name, imported now."""
        if name not in COMMANDS:
            return None
        file, _, example = COMMANDS[name]
        # Before numpy is imported, whose matrices here are small: OpenBLAS starts a thread for each CPU of
        # the node, however few the container may use, and they spin between two products.
        if name != "launch":  # whose program is the user's own
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        try:
            module = importlib.import_module(f"ddpipe.commands.{file}")
        except ModuleNotFoundError as error:
            return _not_installed(name, error_for_missing_package(f"ddpipe {name}", error))
        command: click.Command = getattr(module, f"{name}_command")
        command.epilog = f"Example: ddpipe {example}"
        for below, arguments in BELOW.get(name, {}).items():
            command.commands[below].epilog = f"Example: ddpipe {name} {below} {arguments}".rstrip()  # type: ignore[attr-defined]
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with their short help, which needs none of their imports."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short_help) for name, (_, short_help, _) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands without their imports, and the group's own options."""
        names = [
            CompletionItem(name, help=short_help)
            for name, (_, short_help, _) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of these arguments; for an unknown one, the most similar name is suggested."""
        close = get_close_matches(args[0], COMMANDS, n=1)
        if args[0] not in COMMANDS and close:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]}?")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and keep them for a message with the same command."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; print an expected error as text and, with --json, as an object."""
        try:
            result = self._invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)
        except DdpipeError as error:
            # As of any command that Ctrl-C ends; SIGTERM has the code of the error.
            by_keyboard = isinstance(error, Interrupted) and STOPS[-1:] == [SIGINT]
            exit_code = _INTERRUPTED if by_keyboard else error.exit_code
            text = _spelled(str(error), ctx.meta)
            click.secho(text, fg="red", err=True)
            with suppress(OSError), _TERMINATION.open("r+") as cause:  # clean-up reads it
                cause.write(text)
            if not by_keyboard:
                _notify(ctx, text, succeeded=False)
            if ctx.meta.get(JSON):
                texts = {part: _spelled(str(text), ctx.meta) for part, text in error.as_dict().items()}
                click.echo(json.dumps({**texts, "exit_code": exit_code}))
            ctx.exit(exit_code)
        _notify(ctx, ctx.meta.get(RESULT, ""), succeeded=True)
        return result

    def _invoke(self, ctx: click.Context) -> object:
        """Run the command, which imports its step's packages only now; some may not be installed."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise error_for_missing_package(f"ddpipe {ctx.invoked_subcommand}", error) from None
        except click.MissingParameter as error:  # the same error as for a declared parameter
            command = error.ctx.command_path if error.ctx else "ddpipe"
            raise ParameterError(
                what=f"{command} cannot start",
                which="parameters",
                seen=error.format_message().rstrip("."),
                do=f"See {command} --help.",
            ) from error


def _notify(ctx: click.Context, text: str, *, succeeded: bool) -> None:
    """Send how a command has ended, if that is wanted; imported only now."""
    if ctx.invoked_subcommand in _NOTIFIED:
        notices = importlib.import_module("ddpipe.processes.notices")
        title = f"ddpipe {ctx.invoked_subcommand} {'succeeded' if succeeded else 'failed'}"
        notices.notify(title, text, succeeded=succeeded)


def _spelled(text: str, meta: Mapping[str, Any]) -> str:
    return visible(spelled(text, meta.get(SPELLING, as_option)))


class _Formatter(logging.Formatter):
    """Log messages whose parameters are spelled as the caller does."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        super().__init__()
        self._meta = meta

    def format(self, record: logging.LogRecord) -> str:
        """The message alone."""
        return _spelled(super().format(record), self._meta)


def _not_installed(name: str, error: Exception) -> click.Command:
    """A command whose packages are not installed here, such as `prepare` in the launcher image."""

    @click.command(name, add_help_option=False)
    @click.argument("_arguments", nargs=-1, type=click.UNPROCESSED)
    def refuse(_arguments: tuple[str, ...]) -> None:
        raise error

    refuse.ignore_unknown_options = True
    return refuse


@click.group(
    cls=CommandLine,
    context_settings={"show_default": True, "help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="ddpipe")
def cli() -> None:
    """Train image classifiers, or your own script, here or as Kubeflow Pipelines components."""
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(_Formatter(click.get_current_context().meta))
    logging.basicConfig(level=logging.INFO, handlers=[shown])


def main() -> None:
    """Entry point of the console script."""
    search_rarely()
    try:
        cli(prog_name="ddpipe")
    except SystemExit as ended:
        clean_up_and_leave(int(ended.code or 0))


if __name__ == "__main__":
    main()
