"""Commands that talk to a pipeline server, called as a person and a script call them."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from ddpipe.__main__ import cli
from ddpipe.errors import DdpipeError

SECRET = "s3cr3t-token"  # noqa: S105
"""Whatever is told must not have it."""


def ddpipe(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def facts(*arguments: str) -> Any:
    """What a command that succeeds tells a script."""
    told = ddpipe(*arguments, "--json")
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def refusal(kind: type[DdpipeError], *arguments: str) -> dict[str, str]:
    """The four parts of the error that a command ends with."""
    told = ddpipe(*arguments, "--json")
    assert told.stdout, told.output
    parts: dict[str, str] = json.loads(told.stdout)
    assert parts["error"] == kind.__name__, told.output
    assert told.exit_code == kind.exit_code
    assert SECRET not in told.output
    return parts
