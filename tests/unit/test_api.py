"""`import ddpipe`: a run and its steps as functions."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import ddpipe
from ddpipe import api, errors
from ddpipe.__main__ import cli

SMALL: dict[str, Any] = {"source": "digits", "epochs": 1, "model": "digits-cnn"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def places(folder: Path) -> dict[str, str]:
    return {"store": str(folder / "store"), "runs": str(folder / "runs")}


@pytest.fixture(scope="module")
def finished(places: dict[str, str]) -> api.Result:
    return ddpipe.run(run="first", **places, **SMALL)


def test_three_lines_give_scores_a_report_and_a_model(finished: api.Result) -> None:
    assert 0 < finished.metrics["accuracy"] <= 1
    assert finished.run == "first"
    assert Path(finished.report).is_file()
    assert finished.model.predict(np.zeros((8, 8), np.uint8)).answer
    assert "accuracy" in str(finished)


def test_a_notebook_shows_the_report_in_a_frame(finished: api.Result) -> None:
    shown = finished.report._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "<html" not in shown, "escaped: its styles stay in the frame"


@pytest.mark.slow
def test_a_run_is_made_step_by_step(places: dict[str, str]) -> None:
    prepared = ddpipe.prepare(source="digits", store=places["store"])
    trained = ddpipe.train(prepared.manifest_uri, epochs=1, model="digits-cnn", runs=places["runs"])
    assert trained.run.startswith("digits-"), "named after the dataset"
    assert ddpipe.evaluate(trained).metrics["accuracy"] > 0
    assert ddpipe.export(trained.run, runs=places["runs"]).model.predict(np.zeros((8, 8), np.uint8)).answer


def test_evaluate_and_export_take_the_dataset_from_the_run(finished: api.Result) -> None:
    for command in ("evaluate", "export"):
        ran = CliRunner().invoke(cli, [command, "--run", "first", "--runs", str(Path(finished.uri).parent)])
        assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize("command", ["evaluate", "export", "gate"])
def test_a_run_that_does_not_exist_is_named(command: str, tmp_path: Path) -> None:
    given = ["--run", "nothere", "--runs", str(tmp_path)]
    ran = CliRunner().invoke(cli, [command, *given, *(["--gate-model", "m"] if command == "gate" else [])])
    assert ran.exit_code == errors.ParameterError.exit_code
    assert "there is no such run" in ran.stderr
    assert not list(tmp_path.iterdir())


def test_all_wrong_parameters_are_reported_together() -> None:
    with pytest.raises(errors.ParameterError) as caught:
        ddpipe.run("photos", epochs=-3, learning_rate=-2)
    assert "2 problems" in caught.value.seen
    with pytest.raises(errors.ParameterError, match="did you mean learning_rate"):
        ddpipe.run("photos", lerning_rate=1)
    with pytest.raises(errors.SourceError):
        ddpipe.prepare("/nowhere")


def test_functions_have_the_parameters_of_their_commands() -> None:
    shared = {"store", "runs", "run", "epochs", "learning_rate"}
    assert shared <= inspect.signature(ddpipe.train).parameters.keys()
    assert shared <= inspect.signature(ddpipe.run).parameters.keys()
    assert "Number of epochs" in (api.run.__doc__ or "")


def test_a_package_of_the_same_name_stays_a_package() -> None:
    code = (
        "import ddpipe, ddpipe.train.recipe as recipe; from ddpipe.evaluate import spec;"
        "assert callable(ddpipe.train) and callable(ddpipe.evaluate) and callable(ddpipe.export);"
        "assert ddpipe.train.recipe is recipe and ddpipe.__version__"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_endpoint_of_the_store_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_ENDPOINT", "")
    monkeypatch.delenv("S3_ENDPOINT")
    given = ["--runs", str(tmp_path), "--s3-endpoint", "127.0.0.1:1"]
    assert CliRunner().invoke(cli, ["run", "/nowhere", *given]).exit_code == errors.SourceError.exit_code
    assert os.environ["S3_ENDPOINT"] == "127.0.0.1:1"


def test_runs_are_listed_with_what_they_found(finished: api.Result) -> None:
    folder = str(Path(finished.uri).parent)
    head, *lines = CliRunner().invoke(cli, ["runs", "ls", "--runs", folder]).stdout.splitlines()
    assert head.split() == ["RUN", "STATE", "BEGAN", "TOOK", "PROGRESS", "SCORE", "DATASET", "MODEL", "TITLE"]
    (line,) = [line for line in lines if line.startswith("first ")]
    assert f"accuracy {finished.metrics['accuracy']:.4f}  digits " in line


@pytest.mark.slow
def test_runs_are_compared(finished: api.Result, places: dict[str, str]) -> None:
    ddpipe.run(run="second", **places, **SMALL | {"epochs": 3})
    ran = CliRunner().invoke(cli, ["runs", "compare", "first", "second", "--runs", places["runs"]])
    rows = {line.split("  ")[0]: line for line in ran.stdout.splitlines()}
    assert f"{finished.metrics['accuracy']:.4f} (" in rows["accuracy"], "with its interval"
    assert rows["epochs"].split() == ["epochs", "1", "3"]
    assert "seed" not in rows, "what is the same in both"
    assert "▁" in rows["validation loss"]


def test_a_run_that_is_named_twice_is_one_column(finished: api.Result, places: dict[str, str]) -> None:
    page = Path(places["runs"]) / "compared.html"
    command = ["runs", "compare", "first", "first", "--runs", places["runs"], "--page", str(page)]
    ran = CliRunner().invoke(cli, command)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.splitlines()[0].split() == [finished.run]
    text = page.read_text()
    assert f"<td>{finished.metrics['accuracy']:.4f}<small>" in text, "with its interval"
    assert "What differs" not in text
    assert ">first</text>" in text, "the curve of its loss"


def test_a_dataset_is_given_by_its_name(finished: api.Result, places: dict[str, str]) -> None:
    shown = CliRunner().invoke(cli, ["data", "show", "digits", "--store", places["store"]])
    assert shown.stdout.startswith("digits ")
    assert finished.run == "first"


def test_a_missing_argument_is_one_kind_of_error() -> None:
    for command in (["models", "evaluate", "m"], ["jobs", "scale", "j"], ["train"], ["evaluate"]):
        ran = CliRunner().invoke(cli, command)
        assert ran.exit_code == errors.ParameterError.exit_code, command
        assert "issing" in ran.stderr
