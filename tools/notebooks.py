"""Execute the notebooks of pipelines/ on this machine, and keep their outputs in them: `make notebooks`.

Each runs in a folder of its own, whose path is shown as that of a user's; times of execution are left out.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = sorted((Path(__file__).parents[1] / "pipelines").glob("*.ipynb"))


def executed(path: Path, folder: Path) -> NotebookNode:
    """The notebook, run from its first cell to its last with this folder as its working directory."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, resources={"metadata": {"path": folder}}, record_timing=False).execute()
    return notebook


def main() -> None:
    """Execute each, and write it with its outputs."""
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            text = nbformat.writes(executed(path, Path(folder))).replace(folder, "/home/user")
            path.write_text(text + "\n")


if __name__ == "__main__":
    main()
