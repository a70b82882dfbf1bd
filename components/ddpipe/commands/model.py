"""The argument MODEL of commands that use a model, and where its name is looked up."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from ddpipe.serve.naming import package_uri

Command = Callable[..., None]


def model_argument(command: Command) -> Command:
    """Add MODEL, --runs and --store; the command receives the URI of the package as `model`."""

    @click.argument("model")
    @click.option("--runs", default="runs", help="URI of the folder that holds all runs.")
    @click.option(
        "--store",
        default="store",
        help="URI of the store with the versions of models.",
    )
    @functools.wraps(command)
    def named(model: str, runs: str, store: str, **given: Any) -> None:  # noqa: ANN401 - by their names
        command(model=package_uri(model, runs, store), **given)

    return named
