"""`ddpipe compile`: packages to upload in the Kubeflow UI, and component files."""

from __future__ import annotations

from pathlib import Path

import click

from ddpipe.commands import json_option, print_result
from ddpipe.pipelines.compile import COMPILED, compile_all


@click.command("compile")
@click.option("--output", help="Folder for the packages (default: pipelines/compiled).")
@click.option("--claim", default="", help="Volume claim for all data, instead of an object store.")
@json_option
def compile_command(output: str | None, claim: str) -> None:
    """Compile the pipelines and components for KFP 2 and KFP 1.x."""
    written = [str(path) for path in compile_all(Path(output) if output else COMPILED, claim)]
    print_result({"packages": written}, "\n".join(written))
