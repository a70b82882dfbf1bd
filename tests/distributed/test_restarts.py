"""torchrun starts the ranks again after one was lost, and nothing else is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from processes import free_port, until
from training_runs import RECIPE, STEPS_PER_EPOCH, digits, final, record, same_bits, trained

from ddpipe.errors import ReplicaFailed
from ddpipe.processes.local import run_local

pytestmark = pytest.mark.slow

EVERY_STEP = replace(RECIPE, checkpoint_minutes=1e-9)


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, paths)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def arguments(dataset: str, output: str) -> list[str]:
    return ["--dataset", dataset, "--output", output, "--recipe", EVERY_STEP.to_json()]


def test_a_killed_rank_costs_a_restart_and_no_bit_of_the_result(tmp_path: Path) -> None:
    dataset, output = digits(tmp_path / "store"), str(tmp_path / "training")
    run_local("restarted_rank", arguments(dataset, output), processes=2, max_restarts=1)
    assert [attempt["world_size"] for attempt in record(output)["attempts"]] == [2, 2]
    assert record(output)["resumed_from"] > STEPS_PER_EPOCH
    assert same_bits(final(output), trained(dataset, str(tmp_path / "whole"), ranks=2))


def test_without_restarts_the_killed_rank_is_named(tmp_path: Path) -> None:
    dataset, output = digits(tmp_path / "store"), str(tmp_path / "training")
    with pytest.raises(ReplicaFailed, match=r"rank 1 .* SIGKILL"):
        run_local("restarted_rank", arguments(dataset, output), processes=2)


def test_the_error_is_written_into_the_file_that_is_there(tmp_path: Path) -> None:
    """A pod's termination log can be written to, but not removed and created again."""
    path = tmp_path / "termination-log"
    path.touch()
    (tmp_path / "as-the-kubelet-sees-it").hardlink_to(path)
    done = subprocess.run(
        [sys.executable, "-m", "ddpipe.torchrun", "--standalone", "-m", "faulty_rank", "crash"],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    content = (tmp_path / "as-the-kubelet-sees-it").read_text()
    assert json.loads(content)["message"]["extraInfo"]["error"] == "Diverged"


MEETS = """
import os, time, torch
from pathlib import Path
from ddpipe.distributed import process_group

began = Path("began-" + os.environ["RANK"])
began.with_suffix(".new").write_text(str(os.getpid()))
began.with_suffix(".new").rename(began)
while os.environ["RANK"] == "1" and not Path("may-join").exists():
    time.sleep(0.1)
with process_group() as world:
    print("ranks:", world.sum(torch.ones(1)).item())
"""


@contextmanager
def node(number: int, port: int) -> Iterator[subprocess.Popen[str]]:
    """torchrun with one rank of two nodes, as in a pod."""
    meeting = ("--nnodes=2", f"--node-rank={number}", "--master-addr=127.0.0.1", f"--master-port={port}")
    command = [sys.executable, "-m", "ddpipe.torchrun", *meeting, "--no-python", sys.executable, "-c", MEETS]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as torchrun:
        try:
            yield torchrun
        finally:
            with suppress(ProcessLookupError):
                os.killpg(torchrun.pid, signal.SIGKILL)


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_rank_of_a_node_that_joined_before_node_0_restarted_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would wait in the new agent's store for rank 0, and that agent in the same for its own."""
    monkeypatch.chdir(tmp_path)
    port = free_port()
    with node(0, port) as first, node(1, port) as second:
        until(lambda: Path("began-0").exists() and Path("began-1").exists())
        os.killpg(first.pid, signal.SIGKILL)
        os.kill(int(Path("began-0").read_text()), signal.SIGKILL)  # as all of a container ends
        first.wait()
        with node(0, port) as again:
            until(lambda: is_open(port))
            Path("may-join").touch()
            said, _ = second.communicate(timeout=300)
            assert second.returncode == 1, said
            assert "node 0 restarted after this rank's node had joined it" in said
            with node(1, port) as restarted:
                for process in (again, restarted):
                    said, _ = process.communicate(timeout=300)
                    assert (process.returncode, "ranks: 2.0" in said) == (0, True), said
