"""The command line as a person and a script meet it."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from ddpipe.__main__ import COMMANDS, cli
from ddpipe.errors import DatasetError, NotWritable, ParameterError, SourceError
from ddpipe.storage import open_store


def ddpipe(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, catch_exceptions=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_what_it_does_and_what_each_option_means(command: str) -> None:
    told = ddpipe(command, "--help")
    assert told.exit_code == 0
    command_object = cli.get_command(click.Context(cli), command)
    assert command_object
    options = [parameter for parameter in command_object.params if isinstance(parameter, click.Option)]
    for option in options:
        assert option.help, option.name
        assert option.opts[-1] in told.output


def test_help_of_the_whole_needs_no_torch() -> None:
    code = (
        "import sys; from ddpipe.__main__ import cli; cli(['run', '-h'], standalone_mode=False);"
        "print(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'ddpipe" in done.stdout
    assert "'torch'" not in done.stdout


def test_the_small_image_says_what_it_is_too_small_for() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None; from ddpipe.__main__ import main; sys.argv[1:] = {}; main()"
    )

    def without_numpy(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code.format(list(arguments))]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "prepare   (Not installed here: needs numpy.)" in without_numpy("--help").stdout
    refused = without_numpy("prepare", "--source", "digits")
    assert refused.returncode == ParameterError.exit_code
    assert "numpy is not installed" in refused.stderr
    assert without_numpy("launch", "--help").returncode == 0


def test_an_unknown_command_is_refused() -> None:
    assert ddpipe("fly").exit_code == 2


def test_a_prepared_dataset_is_told_as_one_json_object(tmp_path: Path) -> None:
    arguments = ("prepare", "--source", "digits", "--store", str(tmp_path), "--json")
    first, second = (json.loads(ddpipe(*arguments).stdout) for _ in range(2))
    assert not first["reused"]
    assert second["reused"]
    assert first["dataset_id"] == second["dataset_id"]
    assert sum(first["samples"].values()) == 1797


def test_people_get_the_address_on_standard_output(tmp_path: Path) -> None:
    told = ddpipe("prepare", "--source", "digits", "--store", str(tmp_path))
    assert Path(told.stdout.strip()).is_file()


def test_wrong_parameters_end_with_their_exit_code_and_all_problems_at_once(tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    told = ddpipe("run", "--runs", runs, "--learning-rate", "-1", "--model", "gpt", "--json")
    assert told.exit_code == ParameterError.exit_code
    assert json.loads(told.stdout)["error"] == "ParameterError"
    assert "learning_rate" in told.stderr
    assert "gpt" in told.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--source", "sound"), ParameterError),
        (("--source", "folder", "--source-path", "/nowhere"), SourceError),
        (("--validation-fraction", "0.6", "--test-fraction", "0.5"), ParameterError),
        (("--store", "/proc/store"), NotWritable),
    ],
)
def test_wrong_input_to_prepare_is_refused(
    arguments: tuple[str, ...], error: type[ParameterError], tmp_path: Path
) -> None:
    told = ddpipe("prepare", "--store", str(tmp_path / "store"), *arguments)
    assert told.exit_code == error.exit_code, told.output
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("command", ["run", "train", "evaluate", "export"])
@pytest.mark.parametrize(("short", "seen"), [("abcd", "no version does"), ("0000", "several versions do: ")])
def test_a_short_id_that_names_no_single_version_is_refused(
    command: str, short: str, seen: str, tmp_path: Path
) -> None:
    store = open_store(str(tmp_path))
    for end in "ab":
        store.write(f"datasets/toys/{'0' * 63}{end}/manifest.json", b"")
    told = ddpipe(command, "--dataset", short, "--store", str(tmp_path), "--run", "first", "--json")
    assert told.exit_code == DatasetError.exit_code
    error = json.loads(told.stdout)
    assert error["which"] == f"{short} in {tmp_path}"
    assert error["seen"].startswith(seen)
    assert "ddpipe data ls" in error["do"]


def test_a_run_takes_a_dataset_or_prepares_one_but_not_both(tmp_path: Path) -> None:
    given = ("--dataset", "abcd", "--store", str(tmp_path), "--source", "mnist", "--run", "first")
    told = ddpipe("run", *given, "--json")
    assert told.exit_code == ParameterError.exit_code
    assert "options for preparing" in json.loads(told.stdout)["seen"]
