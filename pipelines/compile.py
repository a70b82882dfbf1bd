"""Compile the pipelines to packages for the Kubeflow UI, and the steps to component files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kfp import compiler

from ddpipe import components
from ddpipe.pipelines.catalogue import TAGS, metadata
from ddpipe.pipelines.custom_job import CUSTOM_JOB
from ddpipe.pipelines.guide import guide
from ddpipe.pipelines.kfp_v2 import for_new_servers, pipeline_of
from ddpipe.pipelines.training import GATED, TRAINING, TUNED
from ddpipe.pipelines.wiring import Pipeline

HERE = Path(__file__).parent
COMPILED = HERE / "compiled"
PIPELINES: Mapping[str, Pipeline] = {
    "training": TRAINING,
    "training-gated": GATED,
    "training-tuned": TUNED,
    "custom-job": CUSTOM_JOB,
}

_V1_SCRIPT, _V1_LOCK = HERE / "kfp_v1.py", HERE / "requirements-v1.txt"


def compile_all(folder: Path = COMPILED, claim: str = "") -> list[Path]:
    """Write all packages and components, or none if one fails; a volume claim replaces the object store."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        fresh = Path(scratch)
        compile_v2(fresh, claim)
        compile_v1(fresh, claim)
        (fresh / "README.md").write_text(guide([replace(one, claim=claim) for one in PIPELINES.values()]))
        compile_components(fresh / "components")
        written = sorted([*fresh.rglob("*.yaml"), *fresh.glob("*.md")])
        return [_moved(path, folder / path.relative_to(fresh)) for path in written]


def compile_v2(folder: Path, claim: str = "") -> None:
    """Write the packages for KFP 2: for every server, and for those of 2.17 and later."""
    for pipeline in PIPELINES.values():
        graph = pipeline_of(replace(pipeline, claim=claim))
        plain = folder / f"{pipeline.name}.yaml"
        compiler.Compiler().compile(graph, str(plain))
        (folder / f"{pipeline.name}-dropdowns.yaml").write_text(for_new_servers(plain.read_text(), pipeline))


def compile_v1(folder: Path, claim: str = "") -> None:
    """Write the packages for KFP 1.x."""
    for pipeline in PIPELINES.values():
        described = folder / f"{pipeline.name}.json"
        described.write_text(json.dumps(replace(pipeline, claim=claim).describe()))
        _run(_python_v1(), str(_V1_SCRIPT), str(described), str(folder / f"{pipeline.name}-minikf.yaml"))


def compile_components(folder: Path) -> None:
    """Write a folder for each component: its file, and metadata for the official catalogue."""
    for step in TAGS:
        place = folder / step.name
        place.mkdir(parents=True)
        compiler.Compiler().compile(getattr(components, step.name), str(place / "component.yaml"))
        (place / "metadata.yaml").write_text(metadata(step))


def _moved(path: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return path.replace(target)


def _python_v1() -> str:
    """The Python of an environment with kfp 1.8, inside the current one; created on first use."""
    lock = hashlib.sha256(_V1_LOCK.read_bytes()).hexdigest()[:12]
    home = Path(sys.prefix) / f"kfp1-{lock}"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="kfp1-") as scratch:
            fresh = Path(scratch) / "environment"
            _run(sys.executable, "-m", "venv", str(fresh))
            pip = (str(fresh / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check")
            _run(*pip, "install", "--require-hashes", "--no-deps", "--requirement", str(_V1_LOCK))
            # It can be moved, as only its Python is run, which finds the packages by its own place.
            try:
                fresh.rename(home)
            except OSError:
                if not home.exists():  # it does if another process was faster
                    raise
    return str(home / "bin" / "python")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603 - our own commands
