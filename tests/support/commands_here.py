"""Commands in this process, which has imported torch already: a process of its own takes seconds for that."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner, Result

from ddpipe.__main__ import cli


def ddpipe(folder: Path, *arguments: str) -> Result:
    """What `ddpipe` does with these arguments in a folder."""
    with chdir(folder):
        return CliRunner().invoke(cli, arguments, catch_exceptions=False)
