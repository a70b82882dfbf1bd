"""`ddpipe tune --on katib` before it contacts a cluster; and the example of an Experiment of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from ddpipe.__main__ import cli
from ddpipe.errors import ParameterError

EXAMPLE = Path(__file__).parents[3] / "examples/experiment.yaml"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--search", "learning_rate=1..0.1"], "lower limit 1 is not below"),
        (["--search", "momentum", "--momentum", "0.5"], "searched and set to one value"),
        ([], "nothing is searched"),
        (["--search", "epochs=1..3"], "--pruning none"),
        (["--search", "momentum", "--trials", "0"], "--trials is 0"),
    ],
)
def test_a_wrong_search_is_rejected(options: list[str], message: str) -> None:
    given = ["tune", "--on", "katib", "--dataset", "store/manifest.json", "--run", "a", "--image", "trainer"]
    rejected = CliRunner().invoke(cli, [*given, *options])
    assert rejected.exit_code == ParameterError.exit_code, rejected.output
    assert message in rejected.output


def test_the_example_runs_a_command_that_exists() -> None:
    spec: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["spec"]
    template = spec["trialTemplate"]
    (container,) = template["trialSpec"]["spec"]["template"]["spec"]["containers"]
    samples = {
        item["name"]: item["feasibleSpace"].get("min") or item["feasibleSpace"]["list"][0]
        for item in spec["parameters"]
    }
    arguments = [*container["command"], *container["args"]]
    for item in template["trialParameters"]:
        placeholder = f"${{trialParameters.{item['name']}}}"
        assert any(placeholder in argument for argument in arguments)
        arguments = [part.replace(placeholder, samples[item["reference"]]) for part in arguments]
    assert not any("$" in argument for argument in arguments)
    program, name, *options = arguments
    command = cli.get_command(click.Context(cli), name)
    assert command
    given = command.make_context(name, options).params
    assert (program, given["optimizer"], given["learning_rate"]) == ("ddpipe", "sgd", 0.01)
    assert container["name"] == template["primaryContainerName"]
