"""`ddpipe deploy MODEL`: a model behind a service on the cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ddpipe.commands import json_option, print_result
from ddpipe.commands.model import model_argument
from ddpipe.commands.options import SectionedCommand, options
from ddpipe.kube.api import connect
from ddpipe.serve.deploy import deploy
from ddpipe.serve.manifests import DeployOptions


@click.command("deploy", cls=SectionedCommand)
@model_argument
@options(DeployOptions)
@json_option
def deploy_command(model: str, **given: Any) -> None:  # noqa: ANN401 - by their names
    """Serve a model on the cluster, and wait until its pods answer.

    MODEL is an s3:// URI, or NAME@champion with a --store in a bucket. With KServe it becomes an
    InferenceService, otherwise a Deployment and a Service. If the pods do not become ready, the previous
    model is restored, and the exit code is 39.
    """
    found = deploy(DeployOptions.picked(given), model, connect())
    print_result(asdict(found), f"{found.service} serves {found.model}\n{found.url}")
