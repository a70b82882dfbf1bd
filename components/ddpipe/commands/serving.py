"""`ddpipe predict|serve|deploy MODEL`: what a model is for.

Each command imports its own packages: an image has those of some, and predicting starts at once.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from typing import Any

import click

from ddpipe.commands import JSON, SectionedCommand, say
from ddpipe.commands.options import options
from ddpipe.commands.results import CommandOutcome, Page, Scores, called_by_engine
from ddpipe.commands.step import step_command
from ddpipe.errors import ParameterError
from ddpipe.serve.naming import package_uri
from ddpipe.serve.settings import DeployOptions, ModelOptions, PredictOptions, ServeOptions
from ddpipe.steps import DEPLOY, PREDICT
from ddpipe.storage import open_store
from ddpipe.validation import RunSettings

BACKLOG = 2048  # connections that the system keeps until the server takes them
GRACE = 20  # seconds that requests under way get after SIGTERM
_log = logging.getLogger(__name__)


@step_command(PREDICT)
@click.argument("places", nargs=-1, metavar="[IMAGE]...")
def predict_command(given: RunSettings, places: tuple[str, ...]) -> CommandOutcome | None:
    """Run the step; its declaration describes it."""
    from ddpipe.serve.naming import images_at
    from ddpipe.serve.predictor import load_model
    from ddpipe.serve.tables import Tally, write_tables

    chosen = replace(given.of(PredictOptions), images=[*given["images"], *places])
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
    loaded, tally = load_model(package_uri(given["model"], given["runs"], given["store"])), Tally()
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
            say(json.dumps(one.to_dict(chosen.top)) if as_json else one.to_text(chosen.top))
    for text, times in tally.warnings.items():
        click.secho(f"warning: {times:,} of {tally.images:,} images are {text}", fg="yellow", err=True)
    tally.check_readable(chosen)
    return outcome


@click.command("serve", cls=SectionedCommand)
@click.argument("model")
@options(ModelOptions, ServeOptions, without=("model",))
def serve_command(model: str, runs: str, store: str, **given: Any) -> None:
    """Answer requests for predictions over HTTP, until it is stopped.

    MODEL is a model package (a folder or s3:// URI), the name of a run, or NAME@champion. The server speaks
    the Open Inference Protocol v2, takes pixels or image files, and shows a page at / for dropping a picture.
    """
    import uvicorn

    from ddpipe.processes.machine import return_memory
    from ddpipe.serve.predictor import load_model
    from ddpipe.serve.server import HttpConnection, Server

    return_memory()  # otherwise each thread keeps that of the largest image that it has decoded
    chosen = ServeOptions.from_run_values(given).validated()
    server = Server(load_model(package_uri(model, runs, store)), chosen.name, chosen.queue)
    config = uvicorn.Config(
        server.app(),
        host=chosen.host,
        port=chosen.port,
        http=HttpConnection,
        backlog=BACKLOG,
        log_level="warning",
        timeout_graceful_shutdown=GRACE,
    )
    try:
        made = config.bind_socket()
        made.listen(BACKLOG)
    except (OSError, SystemExit) as error:  # SystemExit: how uvicorn ends where it cannot listen
        raise ParameterError(
            what=ServeOptions.what,
            which=f"{config.host}:{config.port}",
            seen="the server cannot listen there: the address is in use, or not one of this machine",
            do="Choose another `port` or `host`.",
        ) from error
    host, port = made.getsockname()[:2]
    _log.info("serving %s at http://%s:%d", chosen.name, host, port)
    uvicorn.Server(config).run([made])


@step_command(DEPLOY)
def deploy_command(given: RunSettings) -> CommandOutcome:
    """Run the step; its declaration describes it."""
    from ddpipe.kube.api import connect
    from ddpipe.serve.deploy import deploy

    found = deploy(
        given.of(DeployOptions), package_uri(given["model"], given["runs"], given["store"]), connect()
    )
    return CommandOutcome(
        asdict(found),
        f"{found.service} serves {found.model}\n{found.url}\n{found.tested}",
        f"{found.service} serves {found.model}",
        values={"url": found.url, "previous": found.previous},
    )
