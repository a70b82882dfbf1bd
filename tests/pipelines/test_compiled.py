"""The committed packages are what the code compiles to, and their parameters are fit for the Kubeflow UI."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpipe.pipelines.compile import COMPILED, PACKAGES, compile_packages
from ddpipe.train.recipe import Recipe


def root(package: str) -> dict[str, Any]:
    found: dict[str, Any] = next(yaml.safe_load_all((COMPILED / package).read_text()))["root"]
    return found


def parameters(package: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = root(package)["inputDefinitions"]["parameters"]
    return found


def test_the_committed_packages_are_current(tmp_path: Path) -> None:
    for fresh in compile_packages(tmp_path):
        assert fresh.read_text() == (COMPILED / fresh.name).read_text(), f"run `make compile`: {fresh.name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_parameter_is_described(package: str) -> None:
    for name, parameter in parameters(package).items():
        assert parameter.get("description"), name


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_left_is_cleaned_up_however_the_steps_end(package: str) -> None:
    cleaned = root(package)["dag"]["tasks"]["clean-up"]
    assert cleaned["dependentTasks"] == ["exit-handler-1"]
    assert cleaned["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"


def test_the_training_pipeline_runs_without_a_single_parameter() -> None:
    assert all(parameter.get("isOptional") for parameter in parameters("training.yaml").values())


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_carries_a_credential(package: str) -> None:
    """What a package names is secrets; a value can only come from the cluster."""
    text = (COMPILED / package).read_text()
    assert "AWS_SECRET_ACCESS_KEY" not in text or "secretAsEnv" in text
    assert "minio123" not in text


def test_the_pipeline_offers_every_hyperparameter_with_the_recipes_default_and_text() -> None:
    offered = parameters("training.yaml")
    for field in fields(Recipe):
        assert offered[field.name]["defaultValue"] == field.default, field.name
        words = offered[field.name]["description"].split()
        assert words == field.metadata["help"].split() or field.name == "model"


def test_a_failed_compilation_leaves_the_old_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_packages(tmp_path)
    before = (tmp_path / "training.yaml").read_text()

    def die(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("kfp.compiler.Compiler.compile", die)
    with pytest.raises(OSError, match="disk full"):
        compile_packages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(PACKAGES)
    assert (tmp_path / "training.yaml").read_text() == before
