"""Compile the pipelines to the packages that are uploaded in the Kubeflow UI."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kfp import compiler

from ddpipe.pipelines.training import training

COMPILED = Path(__file__).parent / "compiled"
PACKAGES = {"training.yaml": training}


def compile_packages(folder: Path = COMPILED) -> list[Path]:
    """Write every package to `folder`, each whole or not at all.

    Returns:
        The files, in the order of PACKAGES.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name, pipeline in PACKAGES.items():
            fresh = Path(scratch) / name
            compiler.Compiler().compile(pipeline, str(fresh))
            written.append(fresh.replace(folder / name))
    return written
