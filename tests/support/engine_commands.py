"""Commands that talk to a pipeline server, called as a person and a script call them."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from ddpipe.__main__ import cli
from ddpipe.errors import DdpipeError

SECRET = "s3cr3t-token"  # noqa: S105
"""No output may contain it."""


def ddpipe(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def facts(*arguments: str) -> Any:
    """The JSON object that a successful command prints."""
    result = ddpipe(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(kind: type[DdpipeError], *arguments: str) -> dict[str, str]:
    """The four parts of the error that a command ends with."""
    result = ddpipe(*arguments, "--json")
    assert result.stdout, result.output
    parts: dict[str, str] = json.loads(result.stdout)
    assert parts["error"] == kind.__name__, result.output
    assert result.exit_code == kind.exit_code
    assert SECRET not in result.output
    return parts
