"""All values of a run are validated together, wherever they are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ddpipe import validation
from ddpipe.__main__ import cli
from ddpipe.errors import ParameterError
from ddpipe.form import as_option, spelled
from ddpipe.jobs.options import s3_environment
from ddpipe.pipelines.compile import PIPELINES
from ddpipe.pipelines.wiring import Task
from ddpipe.steps import TrainOptions
from ddpipe.train.recipe import Recipe


def problems_of(**values: Any) -> list[str]:
    return validation.problems((Recipe, TrainOptions), values, values)


def rejected(*arguments: str) -> str:
    """What the command line reports about wrong parameters."""
    ended = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert ended.exit_code == ParameterError.exit_code, ended.output
    return ended.stderr


def test_valid_values_have_no_problems() -> None:
    assert problems_of() == []
    assert problems_of(nodes=8, backend="auto", image="mine:1") == []


def test_options_are_spelled_as_the_command_line_does() -> None:
    (problem,) = problems_of(learning_rate=-2.0)
    assert problem.startswith("`learning_rate` is -2.0, not")
    assert spelled(problem, as_option).startswith("--learning-rate is -2.0, not")
    assert spelled("see `dmesg`", as_option) == "see `dmesg`"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"search_space": ["learning_rate=1..0.1"]}, "lower limit 1 is not below the upper limit 0.1"),
        ({"search_space": ["momentum"], "train_options": {"momentum": 0.5}}, "momentum is searched and set"),
        ({"search_space": ["momentum=0.5..1.5"]}, "momentum is 1.5"),
        ({"search_space": []}, "nothing is searched"),
    ],
)
def test_a_wrong_space_is_rejected_before_any_work(fields: dict[str, Any], problem: str) -> None:
    tuned = PIPELINES["training-tuned"]
    assert tuned.problems({}) == []
    (found,) = tuned.problems(fields)
    assert problem in found
    checks = [
        part
        for name, value in fields.items()
        for part in ("--check", name.removesuffix("_space"), json.dumps(value))
    ]
    assert problem in rejected("prepare", "--run", "a", "--check", "epochs", "3", *checks)


@pytest.mark.parametrize(
    ("command", "option"), [("train", "--dataset"), ("evaluate", "--run"), ("export", "--run")]
)
def test_a_missing_option_is_named(command: str, option: str) -> None:
    assert f"{option} is missing" in rejected(command)


WRONG = {
    "muon with fsdp": ({"strategy": "fsdp", "optimizer": "muon"}, "optimizer muon cannot be used"),
    "fractions": ({"validation_fraction": 0.6, "test_fraction": 0.6}, "leave nothing for training"),
    "an umlaut": ({"dataset_name": "bäume"}, "data_name is 'bäume'"),
}


@pytest.mark.parametrize(("values", "problem"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("command", [("submit",), ("schedule", "set", "nightly", "--cron", "0 2 * * *")])
def test_a_package_is_not_sent_with_wrong_values(
    command: tuple[str, ...], values: dict[str, Any], problem: str
) -> None:
    """Before a server is asked for: there is none here."""
    assigned = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    assert problem in rejected(*command, *assigned)


def test_a_parameter_is_not_given_by_two_names() -> None:
    ended = rejected("submit", "--set", "nodes=2", "--set", "cluster_nodes=3")
    assert "nodes and cluster_nodes are the same parameter" in ended


@pytest.mark.parametrize(("values", "problem"), WRONG.values(), ids=WRONG)
def test_the_first_step_of_a_form_rejects_the_same(
    values: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    pipeline = PIPELINES["training"]
    fields = {item.name: item.default for item in pipeline.parameters} | pipeline.filled(values)
    first = pipeline.tasks[0]
    given = _own(first, fields)
    checks = [part for item in pipeline.checked for part in ("--check", item.name, _text(fields[item.form]))]
    store = ("--store", str(tmp_path / "store"), "--runs", str(tmp_path / "runs"), "--run", "a")
    assert first.step.name == "prepare"
    assert problem in rejected("prepare", *store, *given, *checks)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", [name for name in PIPELINES if PIPELINES[name].tasks[0].step.name == "prepare"]
)
def test_the_first_step_of_a_package_accepts_its_defaults(name: str, tmp_path: Path) -> None:
    pipeline = PIPELINES[name]
    fields = {item.name: item.default for item in pipeline.parameters}
    given = _own(pipeline.tasks[0], fields)
    checks = [part for item in pipeline.checked for part in ("--check", item.name, _text(fields[item.form]))]
    store = ("--store", str(tmp_path / "store"), "--runs", str(tmp_path / "runs"), "--run", "a")
    ended = CliRunner().invoke(cli, ["prepare", *store, *given, *checks], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output


def _own(first: Task, fields: dict[str, Any]) -> list[str]:
    """The options of the first step about data and jobs, as the engine passes them."""
    names = ("dataset_name", "image", "cpu", "memory", "s3_secret")
    own = [item for item in first.own if item.name in names]
    given = [part for item in own for part in (f"--{item.name.replace('_', '-')}", _text(fields[item.form]))]
    return [*given, *(part for item in first.objects for part in ("--options", _text(fields[item.name])))]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize("name", ["", "none"])
def test_no_secret_is_given_by_an_empty_name_or_none(name: str) -> None:
    assert s3_environment(name, "minio:9000") == [{"name": "S3_ENDPOINT", "value": "minio:9000"}]
