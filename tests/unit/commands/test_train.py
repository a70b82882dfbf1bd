"""`ddpipe train` on this machine: only one process may work on a run at a time."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from samples import published, some_images

from ddpipe.__main__ import cli
from ddpipe.errors import ParameterError
from ddpipe.storage import open_store
from ddpipe.storage.lease import lease


def test_a_second_training_of_a_run_is_rejected_while_the_first_works(tmp_path: Path) -> None:
    splits = {name: [some_images(4, (8, 8, 1))] for name in ("train", "validation", "test")}
    dataset = published(open_store(str(tmp_path / "data")), splits)
    given = ("--dataset", dataset, "--runs", str(tmp_path / "runs"), "--run", "first")
    with lease(open_store(str(tmp_path / "runs" / "first")), renewal=0.05):
        ended = CliRunner().invoke(cli, ("train", *given), catch_exceptions=False)
    assert ended.exit_code == ParameterError.exit_code
    assert "another process is working on the run" in ended.output
    assert not (tmp_path / "runs" / "first" / "training").exists()
