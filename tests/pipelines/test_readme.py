"""What the README says is so: its layout, its targets, its commands."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import create_autospec

import click
import kfp
import numpy as np
import pytest
import yaml
from PIL import Image

from ddpipe.__main__ import cli
from ddpipe.errors import DdpipeError
from ddpipe.pipelines.compile import COMPILED

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.partition("  #")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]


def test_the_layout_is_the_tree() -> None:
    block = README.partition("## Layout")[2].partition("```\n")[2].partition("```")[0]
    told = re.findall(r"^( *)([\w./-]+)  ", block, re.MULTILINE)
    top = {name for indent, name in told if not indent}
    rooms = {name for indent, name in told if indent}
    package = ROOT / "components/ddpipe"
    assert all((ROOT / name).exists() for name in top)
    assert rooms == {
        f"{path.name}/" for path in package.iterdir() if path.is_dir() and path.name[0].islower()
    } - {"pipelines/"}


def test_every_top_level_folder_is_told() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    folders = {line.partition("/")[0] for line in listed.stdout.splitlines() if "/" in line}
    untold = {name for name in folders if not name.startswith(".") and f"{name}/" not in README}
    assert not untold


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("make ")])
def test_every_make_target_exists(command: str) -> None:
    target = shlex.split(command)[1]
    assert re.search(rf"^{target}:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("ddpipe ")])
def test_every_command_has_the_options_that_are_shown(command: str) -> None:
    _, name, *arguments = shlex.split(command)
    context = click.Context(cli, info_name="ddpipe")
    found = cli.get_command(context, name)
    assert found
    while isinstance(found, click.Group):
        found, arguments = found.get_command(context, arguments[0]), arguments[1:]
        assert found
    try:
        found.make_context(name, arguments, parent=context)
    except DdpipeError as error:
        pytest.fail(str(error))


def test_a_notebook_can_say_what_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client = create_autospec(kfp.Client, instance=True)
    monkeypatch.setattr(kfp, "Client", lambda: client)
    shown = tmp_path / "shown.py"
    shown.write_text("\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL)))
    names = runpy.run_path(str(shown))
    assert {"prepare", "enough", "train", "evaluate"} == set(names["mine"].pipeline_spec.root.dag.tasks)
    once = client.create_run_from_pipeline_package.call_args
    nightly = client.create_recurring_run.call_args
    for package, given in (
        (once.args[0], once.kwargs["arguments"]),
        (nightly.kwargs["pipeline_package_path"], nightly.kwargs["params"]),
    ):
        assert given.keys() <= parameters_of(package)


def parameters_of(package: str) -> set[str]:
    spec = next(yaml.safe_load_all((COMPILED / package).read_text()))
    return set(spec["root"]["inputDefinitions"]["parameters"])


@pytest.mark.slow
def test_the_steps_alone_run_as_they_are_shown(tmp_path: Path) -> None:
    """The block of the four steps, on a folder of images, with the address that the first one prints."""
    numbers = np.random.default_rng(0)
    for place in range(2):
        for number in range(20):
            pixels = numbers.integers(0, 128, (16, 16), dtype=np.uint8) + 127 * place
            path = tmp_path / "photos" / f"class-{place}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    alone = README.partition("Each step alone")[2].partition("```console\n")[2].partition("```")[0]
    manifest = ""
    for line in alone.splitlines():
        arguments = shlex.split(line.partition("  #")[0].replace("MANIFEST", manifest))[1:]
        done = subprocess.run(
            [sys.executable, "-m", "ddpipe", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        manifest = manifest or done.stdout.strip()
    assert (tmp_path / "runs/first/model/model.onnx").is_file()
    assert (tmp_path / "runs/first/report.html").is_file()
