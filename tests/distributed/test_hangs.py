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

pytestmark = pytest.mark.slow

PATIENCE = float(os.environ.get("HANG_PATIENCE", "5"))

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
    assert record(output)["resumed_from"] > 0
    assert [attempt["world_size"] for attempt in record(output)["attempts"]] == [2, 2]
    if how == "touch_a_dead_mount" and PATIENCE > 45:
        assert re.search(r'hanging_rank.py", line \d+ in touch_a_dead_mount', said)
