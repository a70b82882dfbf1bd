"""`ddpipe predict MODEL IMAGE…`: image files -> classes with probabilities, without torch."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import click

from ddpipe.commands import JSON, json_option
from ddpipe.commands.model import model_argument
from ddpipe.commands.options import SectionedCommand, options
from ddpipe.errors import UnreadableImages, listed
from ddpipe.processes.progress import progress_bar
from ddpipe.serve.files import found
from ddpipe.serve.model import load_model
from ddpipe.serve.prediction import Prediction, header
from ddpipe.serve.spec import PredictOptions

SHOWN = 20
"""Unreadable images that the message lists; the output has all of them."""


@click.command("predict", cls=SectionedCommand)
@model_argument
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...")
@options(PredictOptions)
@click.option("--csv", "as_csv", is_flag=True, help="Print a CSV table with all probabilities.")
@json_option
def predict_command(model: str, images: tuple[str, ...], as_csv: bool, **given: Any) -> None:  # noqa: ANN401 - by their names
    """Print which classes a model sees in images, one line per image.

    MODEL is a model package (a folder or s3:// URI), the name of a run, or NAME@champion. IMAGE is a file, a
    folder, a CSV file of paths, or an s3:// URI of these. With --json each line is a JSON object. Images that
    cannot be read are listed and the others answered; the exit code is then 15.
    """
    chosen = PredictOptions.picked(given).validated()
    loaded = load_model(model)
    predictions = _counted(loaded.stream(found(images, chosen.image_column)))
    if as_csv:
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(header(loaded.signature.classes))
        for one in predictions:
            table.writerow(one.to_row(loaded.signature.classes))
    else:
        as_json = click.get_current_context().meta.get(JSON)
        for one in predictions:
            click.echo(json.dumps(one.to_dict(chosen.top)) if as_json else one.to_text(chosen.top))


def _counted(predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    """The same, under a progress bar; afterwards what was unusual, and an error if some were unreadable."""
    warnings: Counter[str] = Counter()
    problems: list[str] = []
    count = unreadable = 0
    with progress_bar("predicting", None) as progress:
        for one in predictions:
            yield one
            progress.update()
            count += 1
            warnings.update(one.warnings)
            if one.problem:
                unreadable += 1
                if len(problems) < SHOWN:
                    problems.append(f"{one.image}: {one.problem}")
    for text, times in warnings.items():
        click.secho(f"warning: {times:,} of {count:,} images are {text}", fg="yellow", err=True)
    if unreadable:
        more = [f"and {unreadable - SHOWN:,} more, in the output"] if unreadable > SHOWN else []
        raise UnreadableImages(
            what="some images cannot be predicted",
            which=f"{unreadable:,} of {count:,} images",
            seen=listed([*problems, *more], SHOWN + 1),
            do="The other images are answered. Repair these files or leave them out.",
        )
