"""`ddpipe serve MODEL`: a model behind HTTP, without torch."""

from __future__ import annotations

import logging
from socket import socket
from typing import Any

import click
import uvicorn

from ddpipe.commands.options import SectionedCommand, options
from ddpipe.errors import ParameterError
from ddpipe.serve.naming import package_uri
from ddpipe.serve.predictor import load_model
from ddpipe.serve.server import Server
from ddpipe.serve.settings import ServeOptions

BACKLOG = 2048
"""Connections that the system keeps until the server takes them."""

GRACE = 20
"""Seconds that requests under way get after SIGTERM."""

_log = logging.getLogger(__name__)


@click.command("serve", cls=SectionedCommand)
@click.argument("model")
@click.option("--runs", default="runs", help="URI of the folder that holds all runs.")
@click.option("--store", default="store", help="URI of the store with the versions of models.")
@options(ServeOptions)
def serve_command(model: str, runs: str, store: str, **given: Any) -> None:  # noqa: ANN401 - by their names
    """Answer requests for predictions over HTTP, until it is stopped.

    MODEL is a model package (a folder or s3:// URI), the name of a run, or NAME@champion. The server speaks
    the Open Inference Protocol v2, takes pixels or image files, and shows a page at / for dropping a picture.
    """
    chosen = ServeOptions.picked(given)
    server = Server(load_model(package_uri(model, runs, store)), chosen.name, chosen.queue)
    config = uvicorn.Config(
        server.app(),
        host=chosen.host,
        port=chosen.port,
        backlog=BACKLOG,
        log_level="warning",
        timeout_graceful_shutdown=GRACE,
    )
    made = _listening(config)
    host, port = made.getsockname()[:2]
    _log.info("serving %s at http://%s:%d", chosen.name, host, port)
    uvicorn.Server(config).run([made])


def _listening(config: uvicorn.Config) -> socket:
    """A socket to which clients can connect."""
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
    return made
