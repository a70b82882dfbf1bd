"""The notebook that launches a function: executed, and its kernel restarted in the middle.

On this machine; in a cluster where DDPIPE_IMAGE and the others that its first cell reads say so.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

NOTEBOOK = Path(__file__).parents[2] / "pipelines" / "launching.ipynb"


def executed(notebook: NotebookNode, folder: Path) -> list[NotebookNode]:
    """What each code cell showed, in a kernel of its own, which then is gone."""
    NotebookClient(notebook, resources={"metadata": {"path": folder}}).execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[NotebookNode]:
    return executed(nbformat.read(NOTEBOOK, as_version=4), tmp_path_factory.mktemp("launching"))


@pytest.mark.slow
def test_function_runs_as_two_ranks_and_learns(shown: list[NotebookNode]) -> None:
    launch, (result, *plot), files = shown[2:5]
    (live,) = launch
    assert ">succeeded</b>" in live.data["text/html"], "the live picture has come to its end"
    assert "epoch=8 loss=" in live.data["text/html"]
    ranks, accuracy = result.text.split(" ranks, accuracy ")
    assert (ranks, float(accuracy) > 0.85) == ("2", True)
    assert "image/png" in plot[0].data
    assert files[0].data["text/plain"] != "[0]"


@pytest.mark.slow
def test_it_is_found_again_by_its_name(shown: list[NotebookNode]) -> None:
    lines, again = shown[5]
    assert "loss=" in lines.text
    assert ">succeeded</b>" in again.data["text/html"]


@pytest.mark.slow
def test_variable_that_cannot_be_shipped_is_named(shown: list[NotebookNode]) -> None:
    assert "the variable 'lock', a lock" in shown[6][0].text


@pytest.mark.slow
def test_restarted_kernel_attaches_to_the_running_job(tmp_path: Path) -> None:
    cells = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    settings, functions, launching = cells[:3]
    launching = launching.replace("status = handle.wait()", "").replace("runs=runs", "runs=runs, name='kept'")
    before = [settings, functions, launching]
    after = [settings, "ddpipe.attach('kept', runs=runs).result()['ranks']"]
    executed(new_notebook(cells=[new_code_cell(cell) for cell in before]), tmp_path)
    (result,) = executed(new_notebook(cells=[new_code_cell(cell) for cell in after]), tmp_path)[1:]
    assert result[-1].data["text/plain"] == "2"
