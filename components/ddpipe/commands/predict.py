"""`ddpipe predict MODEL IMAGE…`: images -> classes with probabilities, printed or as a table."""

from __future__ import annotations

import json
from typing import Any

import click

from ddpipe.commands import JSON
from ddpipe.commands.results import CommandOutcome, called_by_engine
from ddpipe.commands.shown import Page, Scores
from ddpipe.commands.step import step_command
from ddpipe.errors import ParameterError
from ddpipe.serve.inputs import images_at
from ddpipe.serve.naming import package_uri
from ddpipe.serve.predictor import load_model
from ddpipe.serve.settings import PredictOptions
from ddpipe.serve.tables import Tally, write_tables
from ddpipe.steps import PREDICT
from ddpipe.storage import open_store


@step_command(PREDICT)
@click.argument("places", nargs=-1, metavar="[IMAGE]...")
def predict_command(
    model: str,
    runs: str,
    store: str,
    places: tuple[str, ...],
    **given: Any,  # noqa: ANN401 - the step's parameters
) -> CommandOutcome | None:
    """Run the step; its declaration describes it."""
    chosen = PredictOptions.picked({**given, "images": [*given["images"], *places]})
    if called_by_engine() and not chosen.table:
        raise ParameterError(
            what=PredictOptions.what,
            which="`table`",
            seen="it is empty, and a pipeline has nobody to print to",
            do="Give a folder that outlives the step, such as s3://bucket/predictions.",
        )
    table = open_store(chosen.table) if chosen.table else None
    if table:
        table.check_writable()
    loaded, tally = load_model(package_uri(model, runs, store)), Tally()
    predictions = tally.watched(loaded.stream(images_at(chosen.images, chosen.image_column)))
    outcome = None
    if table:
        facts, page = write_tables(loaded, predictions, tally, table)
        counts = {"images": tally.images, "unreadable": tally.unreadable}
        summary = f"{tally.images:,} images, {tally.unreadable:,} of them unreadable"
        outcome = CommandOutcome(
            {"predictions": table.uri, **counts, "shares": facts["shares"]},
            f"{summary}\n{table.uri}/predictions.html",
            summary,
            values={"predicted": table.uri},
            shown={
                "prediction_metrics": Scores({name: float(value) for name, value in counts.items()}),
                "predictions_page": Page(page),
            },
        )
    else:
        as_json = click.get_current_context().meta.get(JSON)
        for one in predictions:
            click.echo(json.dumps(one.to_dict(chosen.top)) if as_json else one.to_text(chosen.top))
    for text, times in tally.warnings.items():
        click.secho(f"warning: {times:,} of {tally.images:,} images are {text}", fg="yellow", err=True)
    tally.check_readable(chosen)
    return outcome
