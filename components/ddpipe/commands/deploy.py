"""`ddpipe deploy MODEL`: a model behind a service on the cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ddpipe.commands.results import CommandOutcome
from ddpipe.commands.step import step_command
from ddpipe.kube.api import connect
from ddpipe.serve.deploy import deploy
from ddpipe.serve.naming import package_uri
from ddpipe.serve.settings import DeployOptions
from ddpipe.steps import DEPLOY


@step_command(DEPLOY)
def deploy_command(model: str, runs: str, store: str, **given: Any) -> CommandOutcome:  # noqa: ANN401 - the step's parameters
    """Run the step; its declaration describes it."""
    found = deploy(DeployOptions.picked(given), package_uri(model, runs, store), connect())
    return CommandOutcome(
        asdict(found),
        f"{found.service} serves {found.model}\n{found.url}\n{found.tested}",
        f"{found.service} serves {found.model}",
        values={"url": found.url, "previous": found.previous},
    )
