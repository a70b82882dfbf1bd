"""Compile the pipelines to the packages that are uploaded in the Kubeflow UI."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kfp import compiler

from ddpipe.pipelines.custom_job import custom_job
from ddpipe.pipelines.training import training

HERE = Path(__file__).parent
COMPILED = HERE / "compiled"
PACKAGES = {"training.yaml": training, "custom-job.yaml": custom_job}
V1_SCRIPT, V1_LOCK, V1_PACKAGE = HERE / "training_v1.py", HERE / "requirements-v1.txt", "training-v1.yaml"


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


def compile_v1(folder: Path = COMPILED, claim: str = "") -> Path:
    """Write the package for KFP 1.x to `folder`, from the training pipeline's package there.

    Args:
        folder: Where to.
        claim: A volume claim that holds datasets and runs in place of an object store.

    Returns:
        The file.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        fresh = Path(scratch) / V1_PACKAGE
        _run(_python_v1(), str(V1_SCRIPT), str(folder / "training.yaml"), str(fresh), *filter(None, [claim]))
        return fresh.replace(folder / V1_PACKAGE)


def _python_v1() -> str:
    """The Python of an environment with kfp 1.8, inside the running one; made on first use."""
    lock = hashlib.sha256(V1_LOCK.read_bytes()).hexdigest()[:12]
    home = Path(sys.prefix) / f"kfp-v1-{lock}"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(home))
        pip = (str(python), "-m", "pip", "--quiet", "--disable-pip-version-check")
        _run(*pip, "install", "--require-hashes", "--no-deps", "--requirement", str(V1_LOCK))
        (home / "complete").touch()
    return str(python)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603 - our own commands
