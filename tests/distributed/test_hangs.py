"""Trainings that hang: rank, host, calls and what the others wait in are named, and it is trained again.

With HANG_PATIENCE=60, `pytest -s` prints the seconds in docs/faults.md: here ranks wait for 5 s.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from training_runs import RECIPE, digits, record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PATIENCE = float(os.environ.get("HANG_PATIENCE", "5"))
MOST = 30
"""Seconds, on a machine with other work to do, from the end of patience until the cause is named."""

HOST = socket.gethostname()
WAITED = r"; this rank waited in .*(all_reduce|backward).*, last collective: number \d+, gloo:all_?reduce"


@pytest.fixture
def disk(tmp_path: Path, how: str) -> Iterator[Path]:
    """A folder; if it is to be filled, a small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    mounted = how == "fill_the_disk" and subprocess.run(mount, check=False).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("stop", rf"rank 1 does not answer any more: .* \(host {HOST}\)" + WAITED),
        ("skip_a_reduction", "Is there a distributed collective mismatch"),  # gloo's own words
        (
            "sleep_in_the_loader",
            rf"rank 1 on host {HOST} at .*hanging_rank.py:\d+ asleep.*last collective.*" + WAITED,
        ),
        ("fill_the_disk", "No space left on device"),
        ("read_from_a_dead_mount", rf"rank 1 on host {HOST} at .*read_from_a_dead_mount.*" + WAITED),
        ("touch_a_dead_mount", rf"rank 1 does not answer any more: .* \(host {HOST}\)" + WAITED),
    ],
)
def test_a_hang_is_named_and_costs_a_restart(
    tmp_path: Path, disk: Path, how: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "fill_the_disk" and not disk.is_mount():
        pytest.skip("a file system can be mounted by root only")
    dataset, output = digits(tmp_path / "store"), str(disk / "training")
    recipe = replace(RECIPE, epochs=3).to_json()
    paths = [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, paths)))
    given = {
        "HANG": how,
        "HANG_FOLDER": str(tmp_path),
        "HANG_PATIENCE": str(PATIENCE),
        "OMP_NUM_THREADS": "1",
    }
    torchrun = [sys.executable, "-m", "ddpipe.torchrun", "--standalone", "--nproc-per-node=2"]
    words = ["--max-restarts=1", "-m", "hanging_rank"]
    options = ["--dataset", dataset, "--output", output, "--recipe", recipe]
    found, said = None, ""
    with subprocess.Popen(
        [*torchrun, *words, *options],
        env={**os.environ, **given, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            said += line
            if found is None and re.search(named, line):
                found = time.time()
    assert found, said
    began = float((tmp_path / "began").read_text())
    took, ended = found - began, time.time() - began
    sys.stdout.write(f"{how}: named after {took:.0f} s, trained to its end after {ended:.0f} s\n{said}")
    assert process.returncode == 0, said
    assert took < PATIENCE + MOST
    assert record(output)["resumed_from"] > 0
    assert [attempt["world_size"] for attempt in record(output)["attempts"]] == [2, 2]
    if how == "touch_a_dead_mount" and PATIENCE > 45:
        assert re.search(r'hanging_rank.py", line \d+ in touch_a_dead_mount', said)


SCRIPT = Path(__file__).parents[1] / "support/plain_script.py"
ASLEEP = r"plain_script.py:\d+ asleep < plain_script.py:\d+ main"
IN_REDUCTION = r"rank 0 of 2: .* in .*all_reduce < plain_script.py:\d+ main.*number 21, gloo:all_reduce; "


@pytest.mark.parametrize(
    ("how", "named"),
    [
        (
            "sleep",
            rf"rank 1 answered but did not enter it: rank 1 on host {HOST} at {ASLEEP}.*number 20, gloo",
        ),
        ("stop", rf"rank 1 does not answer any more: .* \(host {HOST}\)"),
        (
            "skip",
            r".* wait in different collectives: rank 1 .* at .* broadcast < .*number 21, gloo:broadcast",
        ),
    ],
)
def test_a_hang_of_any_script_is_named(how: str, named: str) -> None:
    said, found = "", None
    with started("ddpipe.torchrun", how, PATIENCE) as process:
        assert process.stdout
        for line in process.stdout:
            said += line
            if re.search(IN_REDUCTION + named, line):
                found = time.time()
                process.terminate()
    began = re.search(r"began=([\d.]+)", said)
    assert began, said
    assert found, said
    sys.stdout.write(f"{how}: named after {found - float(began[1]):.0f} s\n{said}")
    assert found - float(began[1]) < PATIENCE + MOST


def test_a_script_that_hangs_starts_again_if_it_may() -> None:
    with started("ddpipe.torchrun", "sleep", 3, "--max-restarts=1") as process:
        said, _ = process.communicate()
    assert "In 30 s all ranks start again." in said
    assert said.count("rank 1 with") == 1
    assert process.returncode == 0, said


@pytest.mark.parametrize("how", ["work", "wait_for_a_child_that_works", "save_slowly"])
def test_a_script_where_one_rank_works_for_long_is_not_ended(how: str) -> None:
    with started("ddpipe.torchrun", how, 3, "--max-restarts=1") as process:
        said, _ = process.communicate()
    assert re.search(IN_REDUCTION + "rank 1 answered but did not enter it", said), said
    assert "start again" not in said
    assert process.returncode == 0, said


@pytest.mark.parametrize("how", ["slow", "raise"])
def test_a_script_that_does_not_hang_is_as_without_a_watch(how: str) -> None:
    """Its output, arguments, name, file and traceback."""
    seen = []
    for module in ("ddpipe.torchrun", "torch.distributed.run"):
        with started(module, how, 3) as process:
            said, _ = process.communicate()
        assert "keeps others waiting" not in said
        lines = [line for line in said.splitlines() if line.startswith(("rank ", "[rank1]:"))]
        seen.append((process.returncode, sorted(lines)))
    assert seen[0] == seen[1]
    assert seen[0][1], said


def started(module: str, how: str, patience: float, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, "--standalone", "--nproc-per-node=2", *options, str(SCRIPT), how],
        env={
            **os.environ,
            "DDPIPE_WATCH": str(patience if module == "ddpipe.torchrun" else 0),
            "OMP_NUM_THREADS": "1",
            # In the agent's own store, torch 2.15 finds the addresses of the ranks before a restart.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
