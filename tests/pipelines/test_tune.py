"""A search from the command line, with trainings of digits."""

from __future__ import annotations

import json
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import commands_here
import pytest
from click.testing import CliRunner, Result
from processes import until

from ddpipe.__main__ import cli
from ddpipe.errors import Interrupted, ParameterError, SourceError

TUNE = (
    *("tune", "--source", "digits", "--study", "digits", "--epochs", "2", "--seed", "1", "--trials", "4"),
    *("--search", "learning_rate=log(0.01,0.5)", "--search", "optimizer=sgd,adamw", "--json"),
)


def ddpipe(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, catch_exceptions=False)


def command(*arguments: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ddpipe", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def result(folder: Path) -> dict[str, Any]:
    done = commands_here.ddpipe(folder, *TUNE)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def decided(found: dict[str, Any]) -> list[Any]:
    """What must not depend on time, place or interruptions."""
    return [
        [one[name] for name in ("number", "state", "values", "score", "curve")] for one in found["trials"]
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--search", "learning_rate=1..0.1"], "lower limit 1 is not below"),
        (["--search", "lerning_rate"], "did you mean learning_rate"),
        ([], "nothing is searched"),
        (["--search", "learning_rate", "--learning-rate", "0.1"], "searched and set to one value"),
        (["--search", "epochs=1..3"], "--pruning none"),
        (["--search", "momentum", "--parallel-trials", "64"], "CPUs of this machine"),
        (["--search", "momentum", "--trials", "0"], "--trials is 0"),
        (["--search", "momentum", "--sampler", "sobol"], "--sampler is 'sobol'"),
    ],
)
def test_a_wrong_search_is_rejected(
    wrong: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rejected = ddpipe("tune", "--source", "digits", *wrong)
    assert rejected.exit_code == ParameterError.exit_code, rejected.stderr
    assert message in rejected.stderr
    assert not (tmp_path / "studies").exists()


def test_a_path_is_the_source_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    search = ("--search", "momentum", "--study", "a")
    missing = ddpipe("tune", "photos", *search)
    assert missing.exit_code == SourceError.exit_code, missing.stderr
    assert "photos" in missing.stderr
    twice = ddpipe("tune", "photos", "--source-path", "others", *search)
    assert twice.exit_code == ParameterError.exit_code
    assert "--source-path names other data: others" in twice.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A study that nothing happens to: its folder, and its result."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, result(folder)


@pytest.mark.slow
def test_a_search_ends_with_the_run_of_its_winner(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, found = whole
    best = found["best"]
    assert best["score"] == max(one["score"] for one in found["trials"] if one["state"] == "complete")
    assert found["run"]["run"].endswith(f"trials/{best['number']:04}")
    assert Path(folder, found["run"]["model"], "model.onnx").exists()
    assert "<svg" in Path(found["report"]).read_text()
    reused = commands_here.ddpipe(folder, "run", "--recipe", "studies/digits", "--source", "digits", "--json")
    run = json.loads(reused.stdout)
    record = json.loads(Path(folder, run["run"], "training/training.json").read_text())
    assert record["recipe"] == found["recipe"]
    assert record["final"]["validation_accuracy"] == best["score"]


@pytest.mark.slow
def test_a_killed_study_continues_to_the_same_result(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Killed three times at random moments, now alone, now with the processes that train."""
    numbers = random.Random(2)
    for number in range(3):
        process = command(*TUNE, folder=tmp_path)
        until((tmp_path / "studies/digits/journal.log").exists)
        time.sleep(numbers.uniform(0, 4))
        assert process.poll() is None, "it ended before it could be killed"
        process.kill()
        process.communicate()
        if number % 2:
            kill_trainings(tmp_path)
    assert decided(result(tmp_path)) == decided(whole[1])


def kill_trainings(folder: Path) -> None:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = (path / "cwd").readlink() == folder and b"ddpipe" in (path / "cmdline").read_bytes()
        except OSError:
            continue
        if is_ours:
            subprocess.run(["kill", "-9", path.name], check=False)


@pytest.mark.slow
def test_the_commands_of_the_guide_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/tuning.md").read_text()
    lines = page.partition("```sh\n")[2].partition("```")[0].splitlines()
    for line in [line for line in lines if not line.startswith("#")]:
        fewer = ("--trials", "2") if " tune " in line else ()
        done = commands_here.ddpipe(tmp_path, *shlex.split(line, comments=True)[1:], *fewer)
        assert done.stdout
        assert done.exit_code == 0, done.stderr


@pytest.mark.slow
def test_a_stopped_study_says_how_to_continue(tmp_path: Path) -> None:
    process = command(*TUNE, folder=tmp_path)
    until((tmp_path / "studies/digits/trials/0000/steps/prepare.json").exists)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate()
    assert process.returncode == Interrupted.exit_code
    resume = json.loads(printed)["do"]
    assert resume.startswith("To resume: ddpipe tune ")
    again = commands_here.ddpipe(tmp_path, *shlex.split(resume)[3:], "--trials", "1")
    assert [one["state"] for one in json.loads(again.stdout)["trials"]] == ["complete"]
