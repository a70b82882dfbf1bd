"""The notebook, executed from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOK = Path(__file__).parents[2] / "pipelines" / "training.ipynb"


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NotebookNode:
    monkeypatch.delenv("KFP_ENDPOINT", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}).execute()
    return notebook


@pytest.mark.slow
def test_without_a_server_it_trains_here_and_shows_what_came_out(
    executed: NotebookNode, tmp_path: Path
) -> None:
    shown = [
        output["data"]["text/html"]
        for cell in executed.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    report, table = shown
    assert report.startswith("<iframe srcdoc=")
    assert "runs/first" in table
    assert "runs/second" in table
    assert (tmp_path / "packages/ddpipe-training.yaml").is_file()


def test_it_is_committed_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
