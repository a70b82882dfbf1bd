"""`ddpipe doctor`: checks whether a package can run on a pipeline server, and what to fix if not."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import click

from ddpipe.commands import json_option, print_result
from ddpipe.commands.engine import named_package
from ddpipe.commands.options import SectionedCommand, options
from ddpipe.engine.client import connect
from ddpipe.engine.doctor import Check, Plan, State, examine
from ddpipe.engine.endpoint import EndpointOptions, resolve
from ddpipe.errors import EngineError
from ddpipe.kube import api as cluster
from ddpipe.pipelines.catalogue import LEAST_PIPELINES


@click.command("doctor", cls=SectionedCommand)
@click.argument("package", default="training")
@options(EndpointOptions)
@click.option(
    "--service-account",
    default="",
    show_default=False,
    help="Service account of the steps (default: the server's).",
)
@json_option
def doctor_command(package: str, service_account: str, **given: Any) -> None:  # noqa: ANN401
    """Check what PACKAGE needs: server, login, namespace, version, rights, images, secret, store.

    Each check is ok, unknown (cannot be seen from here), or fails with its fix. The exit code is 0 unless a
    check fails.
    """
    own = EndpointOptions.picked(given)
    plan = Plan(package=named_package(package), least=LEAST_PIPELINES, account=service_account)
    checks = list(examine(lambda: connect(resolve(own, os.environ)), cluster.connect, plan))
    print_result({"checks": [asdict(check) for check in checks]}, "\n".join(map(_line, checks)))
    if any(check.state is State.FAIL for check in checks):
        click.get_current_context().exit(EngineError.exit_code)


def _line(check: Check) -> str:
    fix = f"\n{'':<20}{check.fix}" if check.fix else ""
    return f"{check.name:<10}{check.state:<10}{check.seen}{fix}"
