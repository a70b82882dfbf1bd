"""The notebooks: executed from the first cell to the last, and committed with what they show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).parents[2] / "pipelines"
NOTEBOOK = NOTEBOOKS / "training.ipynb"
MOST_CELLS = 10
MOST_BYTES = 250_000


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
    outputs = [output for cell in executed.cells for output in cell.get("outputs", ())]
    (report,) = [one["data"]["text/html"] for one in outputs if "text/html" in one.get("data", {})]
    answers, scores = [
        one["data"]["text/plain"] for one in outputs if one.get("data", {}).keys() == {"text/plain"}
    ]
    assert report.startswith("<iframe srcdoc=")
    assert answers.startswith("[(('0',), ")
    assert "'first': 0.9" in scores
    assert "'second': 0.9" in scores
    # A kernel sends what one print prints in one part or in several.
    assert "No Kubeflow Pipelines server" in "".join(one.get("text", "") for one in outputs)
    assert (tmp_path / "packages/ddpipe-training.yaml").is_file()


@pytest.mark.parametrize("name", ["training.ipynb", "launching.ipynb"])
def test_it_is_short_and_committed_with_its_outputs(name: str) -> None:
    text = (NOTEBOOKS / name).read_text()
    cells = nbformat.reads(text, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert len(cells) <= MOST_CELLS
    assert len(text) < MOST_BYTES
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert outputs
    assert "error" not in {output.output_type for output in outputs}


@pytest.mark.parametrize("name", ["training.ipynb", "launching.ipynb"])
def test_its_outputs_do_not_name_the_machine_that_ran_it(name: str) -> None:
    cells = nbformat.read(NOTEBOOKS / name, as_version=4).cells
    shown = json.dumps([cell.get("outputs") for cell in cells])
    assert not re.findall(r"/(?:tmp|root|var|Users|home/(?!user/))[^ \"]*", shown)
