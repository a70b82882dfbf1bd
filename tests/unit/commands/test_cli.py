"""The command line as a person and a script meet it."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from ddpipe import steps
from ddpipe.__main__ import BELOW, COMMANDS, cli
from ddpipe.errors import DatasetError, NotWritable, ParameterError, SourceError
from ddpipe.storage import open_store


def ddpipe(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, catch_exceptions=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_every_option(command: str) -> None:
    """--help-all does, where --help shows the common options only."""
    command_object = cli.get_command(click.Context(cli), command)
    assert command_object
    options = [parameter for parameter in command_object.params if isinstance(parameter, click.Option)]
    brief = any(not getattr(option, "common", True) for option in options)
    shown = ddpipe(command, "--help-all" if brief else "--help")
    assert shown.exit_code == 0
    for option in options:
        assert option.help, option.name
        assert option.opts[-1] in shown.output


def test_the_list_of_commands_fits_80_columns() -> None:
    helps = [text for _, text, _ in COMMANDS.values()]
    assert max(map(len, helps)) <= 45
    listed = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    assert "..." not in listed.partition("Commands:")[2]
    assert all(text in listed for text in helps)


def test_a_similar_command_is_suggested() -> None:
    assert "Did you mean run?" in ddpipe("rnu").stderr
    assert "Did you mean" not in ddpipe("nonsense").stderr


def test_help_shows_common_options_first() -> None:
    """What a pipeline's form offers as fields of their own; not what only engines use."""
    shown = ddpipe("train", "--help").output
    assert len(shown.splitlines()) < 80
    for name in ("--dataset", "--run", "--epochs", "--nodes", "--help-all"):
        assert name in shown
    for name in ("--momentum", "--check", "--write", "--executor-input", "--run-id"):
        assert name not in shown
    everything = ddpipe("train", "--help-all").output
    engines = everything[everything.index("For pipeline engines:") :]
    assert all(name in engines for name in ("--check", "--write", "--executor-input"))


def test_help_of_a_local_run_has_no_cluster_options() -> None:
    shown = ddpipe("run", "--help-all").output
    assert "Cluster job" not in shown
    assert "per pod" not in shown
    assert "Training processes on this machine" in shown


@pytest.mark.parametrize(
    ("names", "imported"),
    [
        ([""], ["click"]),
        # Those that need numpy decode images or compute; Kubernetes and Pipelines are asked over HTTP.
        (list(COMMANDS), ["click", "numpy"]),
    ],
    ids=["of all", "of each"],
)
def test_help_imports_little(names: list[str], imported: list[str]) -> None:
    """The short help of all commands imports none of them, and the help of one not what its work needs."""
    heavy = ("click", "numpy", "torch", "sklearn", "optuna", "onnxruntime", "kfp", "kubernetes", "minio")
    code = (
        "import sys\nfrom ddpipe.__main__ import cli\n"
        f"for name in {names}:\n    cli([*name.split(), '-h'], standalone_mode=False)\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(done.stdout.splitlines()[-1])) <= set(imported)


@pytest.mark.parametrize(
    ("command", "imported"),
    [
        ("--version", []),
        ("--help", []),
        ("runs ls", []),
        ("runs show first", []),
        ("data ls", []),
        ("data show digits", []),
        ("models ls", []),
        ("schedule ls --endpoint http://127.0.0.1:1", []),
        ("jobs ls", ["kubernetes"]),
        ("launch --image mine:1 -- true", ["kubernetes"]),
    ],
)
def test_a_command_imports_what_it_needs(
    command: str, imported: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (tmp_path / "runs/first").mkdir(parents=True)
    (tmp_path / "store").mkdir()
    _, there = modules_after(command.split())
    assert there & {"torch", "kfp", "kubernetes"} <= set(imported)


def test_completion_imports_click_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_DDPIPE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "ddpipe ru")
    monkeypatch.setenv("COMP_CWORD", "1")
    shown, there = modules_after([])
    assert "plain,run" in shown
    assert not there & {"torch", "kfp", "kubernetes", "numpy"}


def modules_after(words: list[str]) -> tuple[str, set[str]]:
    """What a command prints in a process of its own, and the modules that are there at its end."""
    code = (
        "import atexit, sys\nfrom ddpipe.__main__ import main\n"
        "atexit.register(lambda: print('\\n', list(sys.modules)))\nmain()"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    shown, _, modules = done.stdout.rstrip().rpartition("\n")
    assert modules, done.stderr
    return shown, set(ast.literal_eval(modules.strip()))


@pytest.mark.parametrize("group", BELOW)
def test_each_command_of_a_group_has_an_example_that_can_be_typed(group: str) -> None:
    found = cli.get_command(click.Context(cli), group)
    assert isinstance(found, click.Group)
    assert set(found.commands) == set(BELOW[group])
    for name, command in found.commands.items():
        words = f"{group} {name} {BELOW[group][name]}".split()
        assert ddpipe(group, name, "--help").output.rstrip().endswith("Example: ddpipe " + " ".join(words))
        command.make_context(name, words[2:])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example_that_can_be_typed(name: str) -> None:
    example = COMMANDS[name][2]
    assert ddpipe(name, "--help").output.rstrip().endswith(f"Example: ddpipe {example}")
    first, *words = example.partition(" -- ")[0].split()
    command = cli.commands.get(first) or cli.get_command(click.Context(cli), first)
    assert command
    known = {option for one in command.get_params(click.Context(command)) for option in one.opts}
    assert first == name
    assert {word for word in words if word.startswith("--")} <= known


def test_names_of_commands_are_completed() -> None:
    words = {"_DDPIPE_COMPLETE": "bash_complete", "COMP_WORDS": "ddpipe pr", "COMP_CWORD": "1"}
    done = CliRunner().invoke(cli, prog_name="ddpipe", env=words)
    assert done.output.split() == ["plain,prepare", "plain,predict"]


def test_missing_packages_are_named() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None; from ddpipe.__main__ import main; sys.argv[1:] = {}; main()"
    )

    def without_numpy(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code.format(list(arguments))]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert without_numpy("--help").returncode == 0
    refused = without_numpy("prepare", "--source", "digits")
    assert refused.returncode == ParameterError.exit_code
    assert "numpy is not installed" in refused.stderr
    assert without_numpy("launch", "--help").returncode == 0


@pytest.mark.parametrize(
    ("package", "call"), [("numpy", "open('toys')"), ("numpy", "run()"), ("scipy", "run(source='digits')")]
)
def test_missing_packages_are_named_to_python(package: str, call: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules['{package}'] = None; import ddpipe; ddpipe.{call}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    name = call.partition("(")[0]
    expected = (
        f"ddpipe.{name}: the package {package} is not installed. Use the trainer image, or: pip install"
    )
    assert expected in done.stderr
    assert "During handling" not in done.stderr


def test_unknown_commands_are_rejected() -> None:
    assert ddpipe("fly").exit_code == 2


def test_json_output_of_prepare(tmp_path: Path) -> None:
    arguments = ("prepare", "--source", "digits", "--store", str(tmp_path), "--json")
    first, second = (json.loads(ddpipe(*arguments).stdout) for _ in range(2))
    assert not first["reused"]
    assert second["reused"]
    assert first["dataset_id"] == second["dataset_id"]
    assert sum(first["samples"].values()) == 1797


def test_standard_output_of_prepare_is_the_manifest(tmp_path: Path) -> None:
    ended = ddpipe("prepare", "--source", "digits", "--store", str(tmp_path))
    assert Path(ended.stdout.strip()).is_file()


def test_all_wrong_parameters_are_reported_together(tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    ended = ddpipe("run", "--runs", runs, "--learning-rate", "-2", "--model", "gpt", "--json")
    assert ended.exit_code == ParameterError.exit_code
    assert json.loads(ended.stdout)["error"] == "ParameterError"
    assert "--learning-rate is -2.0" in ended.stderr
    assert "gpt" in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_text_that_is_no_number_is_reported_with_the_other_wrong_values() -> None:
    ended = ddpipe("train", "--dataset", "none", "--epochs", "ten", "--compile", "maybe", "--seed", "-1")
    assert ended.exit_code == ParameterError.exit_code
    assert "3 problems" in ended.stderr
    assert "--epochs is 'ten', not a whole number" in ended.stderr
    assert "--compile is 'maybe', not true or false" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--source", "sound"), ParameterError),
        (("--source", "folder", "--source-path", "/nowhere"), SourceError),
        (("--validation-fraction", "0.6", "--test-fraction", "0.5"), ParameterError),
        (("--store", "/proc/store"), NotWritable),
    ],
)
def test_wrong_input_to_prepare_is_rejected(
    arguments: tuple[str, ...], error: type[ParameterError], tmp_path: Path
) -> None:
    ended = ddpipe("prepare", "--store", str(tmp_path / "store"), *arguments)
    assert ended.exit_code == error.exit_code, ended.output
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("command", ["run", "train", "evaluate", "export"])
@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("abcd", "no dataset has the name abcd, and no version starts with it,"),
        ("fotos", "no dataset has the name fotos, and no version starts with it,"),
        ("0000", "more than one version starts with 0000"),
    ],
)
def test_ambiguous_and_unknown_ids_are_rejected(command: str, given: str, seen: str, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for end in "ab":
        store.write(f"datasets/toys/{'0' * 63}{end}/manifest.json", b"")
    ended = ddpipe(command, "--dataset", given, "--store", str(tmp_path), "--run", "first", "--json")
    assert ended.exit_code == DatasetError.exit_code
    error = json.loads(ended.stdout)
    assert error["what"] == f"{seen} in {tmp_path}"
    assert "ddpipe data ls" in error["do"]


def test_what_is_given_as_an_argument_is_not_given_as_an_option_too(tmp_path: Path) -> None:
    ended = ddpipe("evaluate", "first", "--run", "second", "--runs", str(tmp_path))
    assert ended.exit_code == ParameterError.exit_code
    assert "run is given twice" in ended.stderr
    assert f"{tmp_path}/first" in ddpipe("evaluate", "first", "--runs", str(tmp_path)).stderr


def test_a_path_that_is_no_manifest_of_a_store_is_rejected(tmp_path: Path) -> None:
    ended = ddpipe("train", str(tmp_path / "photos"), "--runs", str(tmp_path / "runs"))
    assert ended.exit_code == DatasetError.exit_code
    assert f"{tmp_path}/photos: this is not where a store keeps a manifest" in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_a_dataset_excludes_options_for_preparing(tmp_path: Path) -> None:
    given = ("--dataset", "abcd", "--store", str(tmp_path), "--source", "mnist", "--run", "first")
    ended = ddpipe("run", *given, "--json")
    assert ended.exit_code == ParameterError.exit_code
    assert "options for preparing" in json.loads(ended.stdout)["seen"]


WITHOUT = """
import importlib, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split():
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
for name in sys.argv[2:]:
    importlib.import_module(f"ddpipe.{name}")
"""
NOT_IN_THE_LAUNCHER = "torch PIL scipy sklearn onnx onnxruntime jinja2 pydicom safetensors simplejpeg"


def test_commands_of_the_launcher_need_no_arrays() -> None:
    """The launcher image has no torch, and `ddpipe train` in it only launches."""
    commands = ("run_steps", "jobs", "runs", "engine")
    others = ("reuse", "workflow", "launching.launcher", "notebook.background")
    modules = [*(f"commands.{name}" for name in commands), *others]
    subprocess.run([sys.executable, "-c", WITHOUT, f"numpy {NOT_IN_THE_LAUNCHER}", *modules], check=True)


def test_steps_of_the_launcher_image_find_their_packages() -> None:
    modules = [
        f"commands.{COMMANDS[step.command[0]][0]}"
        for step in vars(steps).values()
        if isinstance(step, steps.Step) and step.image is steps.Image.LAUNCHER
    ]
    assert {"commands.serving", "commands.models"} <= set(modules)
    subprocess.run([sys.executable, "-c", WITHOUT, NOT_IN_THE_LAUNCHER, *modules], check=True)


@pytest.mark.parametrize(("command", "threads"), [("prepare", "1"), ("launch", "None")])
def test_a_program_of_the_users_own_has_the_threads_that_it_would_have(
    command: str, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    code = (
        "import os, sys, ddpipe.__main__ as main; assert 'numpy' not in sys.modules;"
        "main.cli.get_command(None, sys.argv[1]); print(os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    words = [sys.executable, "-c", code, command]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == threads
