"""`ddpipe serve MODEL`: a model behind HTTP, without torch."""

from __future__ import annotations

import logging
from typing import Any

import click
import uvicorn

from ddpipe.commands.model import model_argument
from ddpipe.commands.options import SectionedCommand, options
from ddpipe.errors import ParameterError
from ddpipe.serve.model import load_model
from ddpipe.serve.server import Server
from ddpipe.serve.spec import ServeOptions
from ddpipe.spelling import option

BACKLOG = 2048
"""Connections that the system keeps until the server takes them."""

GRACE = 20
"""Seconds that requests under way get after SIGTERM."""

_log = logging.getLogger(__name__)


@click.command("serve", cls=SectionedCommand)
@model_argument
@options(ServeOptions)
def serve_command(model: str, **given: Any) -> None:  # noqa: ANN401 - by their names
    """Answer requests for predictions over HTTP, until it is stopped.

    MODEL is a model package (a folder or s3:// URI), the name of a run, or NAME@champion. The server speaks
    the Open Inference Protocol v2, takes pixels or image files, and shows a page at / for dropping a picture.
    """
    chosen = ServeOptions.picked(given)
    app = Server(load_model(model), chosen.name, chosen.queue).app()
    config = uvicorn.Config(
        app,
        host=chosen.host,
        port=chosen.port,
        backlog=BACKLOG,
        log_level="warning",
        timeout_graceful_shutdown=GRACE,
    )
    try:
        socket = config.bind_socket()
    except SystemExit as error:  # how uvicorn ends where it cannot listen
        raise ParameterError(
            what=ServeOptions.what,
            which=f"{chosen.host}:{chosen.port}",
            seen="the server cannot listen there: the address is in use, or not one of this machine",
            do=f"Choose another {option('port')} or {option('host')}.",
        ) from error
    socket.listen(BACKLOG)  # from now on clients can connect
    host, port = socket.getsockname()[:2]
    _log.info("serving %s at http://%s:%d", chosen.name, host, port)
    uvicorn.Server(config).run([socket])
