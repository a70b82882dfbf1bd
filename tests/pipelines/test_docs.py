"""The documentation is true: its commands, its code, its links, its generated pages."""

import ast
import contextlib
import functools
import os
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
from commands_here import ddpipe
from PIL import Image

from ddpipe.__main__ import cli
from ddpipe.errors import DdpipeError
from ddpipe.pipelines.compile import COMPILED

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "components/ddpipe"
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
GENERATED = runpy.run_path(str(ROOT / "tools/reference.py"))["pages"]()
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [README, CONTRIBUTING, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path not in GENERATED
}
RUN = "<!-- test: run -->\n"
"""Above a block of commands that a test executes one after the other."""


def blocks(text: str, language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def commands(program: str) -> list[object]:
    return [
        pytest.param(line, id=f"{page}: {line[:60]}")
        for page, text in PAGES.items()
        for block in blocks(text, "sh")
        for line in (each.partition("  #")[0].strip() for each in block.replace("\\\n", " ").splitlines())
        if line.startswith(f"{program} ")
    ]


def photos(folder: Path) -> None:
    """Two classes of images that are easy to distinguish."""
    numbers = np.random.default_rng(0)
    for label in range(2):
        for number in range(20):
            pixels = numbers.integers(0, 128, (16, 16), dtype=np.uint8) + 127 * label
            path = folder / f"class-{label}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)


def test_the_readme_is_one_page() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 200


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_generated_pages_are_current(path: Path) -> None:
    """If this fails: `make reference`, and commit the result."""
    assert path.read_text() == GENERATED[path]


def test_every_result_of_a_benchmark_is_on_the_page() -> None:
    named = runpy.run_path(str(ROOT / "tools/reference.py"))["BENCHMARKS"]
    assert set(named) == {path.name for path in (ROOT / "benchmarks/results").glob("*.md")}


def test_the_layout_is_the_tree() -> None:
    layout = PAGES["CONTRIBUTING.md"].partition("## Layout")[2].partition("```text\n")[2].partition("```")[0]
    named = re.findall(r"^( *)([\w./-]+)  ", layout, re.MULTILINE)
    packages = {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and path.name[0].islower()}
    assert all((ROOT / name).exists() for indent, name in named if not indent)
    assert {name for indent, name in named if indent} == packages - {"pipelines/"}


def test_every_top_level_folder_is_in_the_layout() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    folders = {line.partition("/")[0] for line in listed.stdout.splitlines() if "/" in line}
    assert not {name for name in folders if name[0] != "." and f"{name}/" not in PAGES["CONTRIBUTING.md"]}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_outside_of_the_site_exist(page: str) -> None:
    """Links between pages of docs/ are checked by the site's generator."""
    links = re.findall(r"\]\(([^)#]+)", PAGES[page])
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    """Python files, and what is in a folder of the repository; the package's own without its prefix."""
    folders = "benchmarks|components|docs|examples|images|pipelines|tests|tools"
    named = re.findall(rf"[`|] ?((?:{folders})/[\w./-]+|[\w/]+/\w+\.py)[`, |]", PAGES[page])
    assert not [name for name in named if not (ROOT / name).exists() and not (PACKAGE / name).exists()]


@pytest.mark.slow
def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert built.returncode == 0, built.stdout + built.stderr


def test_troubleshooting_has_every_exit_code() -> None:
    """Those of errors that are raised: of classes without subclasses."""
    table = re.findall(r"^\| ([\d, ]+) \|", PAGES["docs/guides/troubleshooting.md"], re.MULTILINE)
    listed = {int(code) for row in table for code in row.split(",")}
    assert {kind.exit_code for kind in leaves(DdpipeError)} <= listed


def leaves(kind: type[DdpipeError]) -> list[type[DdpipeError]]:
    below = [found for found in kind.__subclasses__() if found.__module__ == "ddpipe.errors"]
    return [leaf for found in below for leaf in leaves(found)] if below else [kind]


@pytest.mark.parametrize("command", commands("make"))
def test_every_make_target_exists(command: str) -> None:
    target = shlex.split(command)[1]
    assert re.search(rf"^{target}:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", commands("kubectl"))
def test_files_that_are_applied_exist(command: str) -> None:
    words = shlex.split(command)
    assert "-f" not in words or (ROOT / words[words.index("-f") + 1]).is_file()


@pytest.mark.parametrize("command", commands("ddpipe"))
def test_every_command_has_the_options_that_are_shown(command: str) -> None:
    _, name, *arguments = shlex.split(command)
    context = click.Context(cli, info_name="ddpipe")
    found = cli.get_command(context, name)
    assert found
    while isinstance(found, click.Group):
        found, arguments = found.get_command(context, arguments[0]), arguments[1:]
        assert found
    # An option that prints and exits, such as --help-all, ends the parsing.
    with contextlib.suppress(click.exceptions.Exit):
        found.make_context(name, arguments, parent=context)


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if "`--" in text])
def test_options_in_the_text_exist(page: str) -> None:
    text = re.sub(r"^### Removed$.*?^##", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(--[a-z0-9-]+)", text)) - {"--build-arg", "--standalone"}  # of other programs
    assert named <= every_option()


@functools.cache
def every_option() -> set[str]:
    found: set[str] = set()
    groups: list[tuple[click.Command, click.Context]] = [(cli, click.Context(cli))]
    while groups:
        command, context = groups.pop()
        found |= {name for item in command.get_params(context) for name in item.opts}
        if isinstance(command, click.Group):
            children = [command.get_command(context, name) for name in command.list_commands(context)]
            groups += [(child, click.Context(child, parent=context)) for child in children if child]
    return found


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks(text, "py")])
def test_code_that_needs_a_cluster_is_valid_python(page: str) -> None:
    for block in blocks(PAGES[page], "py"):
        ast.parse(block)


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks(text, "python")])
def test_code_runs_with_the_fields_of_the_packages(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Executes the page's code; a server is replaced by a client with the SDK's signatures."""
    client = create_autospec(kfp.Client, instance=True)
    monkeypatch.setattr(kfp, "Client", lambda: client)
    shown = tmp_path / "shown.py"
    shown.write_text("\n".join(blocks(PAGES[page], "python")))
    names = runpy.run_path(str(shown))
    if "mine" in names:
        assert {"prepare", "approve", "train", "evaluate"} == set(names["mine"].pipeline_spec.root.dag.tasks)
    for call in client.create_run_from_pipeline_package.call_args_list:
        assert call.kwargs["arguments"].keys() <= parameters_of(call.args[0])
    for call in client.create_recurring_run.call_args_list:
        assert call.kwargs["params"].keys() <= parameters_of(call.kwargs["pipeline_package_path"])


def parameters_of(package: str) -> set[str]:
    spec = next(yaml.safe_load_all((COMPILED / package).read_text()))
    return set(spec["root"]["inputDefinitions"]["parameters"])


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if RUN in text])
def test_commands_run_as_they_are_shown(page: str, tmp_path: Path) -> None:
    """On a folder of images."""
    photos(tmp_path / "photos")
    lines = blocks(PAGES[page].partition(RUN)[2], "sh")[0].splitlines()
    for line in [line for line in lines if not line.startswith("#")]:
        arguments = shlex.split(line.partition("  #")[0])[1:]
        done = ddpipe(tmp_path, *arguments)
        assert done.exit_code == 0, done.stderr
    assert (tmp_path / "runs/first/model/model.onnx").is_file()
    assert (tmp_path / "runs/first/report.html").is_file()


@pytest.mark.slow
def test_the_first_run_ends_as_the_readme_shows(tmp_path: Path) -> None:
    """The same lines and scores; times and the name of the run differ."""
    (command,) = (line for line in blocks(PAGES["README.md"], "sh") if line == "ddpipe run --processes 2\n")
    shown = PAGES["README.md"].partition(command)[2].partition("```\n")[2].partition("```\n")[2]
    done = ddpipe(tmp_path, *shlex.split(command)[1:])
    assert done.exit_code == 0, done.stderr
    assert words(done.stdout) == words(shown.partition("```")[0])


def words(text: str) -> list[list[str]]:
    """Lines without what differs: times, and what depends on the processor, scores and mistakes.

    A score of 1 has no interval.
    """
    varying = r"[\d.]+(?= s\b)|\d{8}-\d{6}|\d\.\d{4}(?: +(?:95 % interval|constant answer) .*)?"
    lines = (line for line in text.splitlines() if not re.match(r"worst mistakes|.*, predicted ", line))
    return [re.sub(varying, "N", line).split() for line in lines]
