"""A process group that does not come about, or breaks: everybody says who is the cause, and soon."""

from __future__ import annotations

import json
import multiprocessing
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from group_ranks import come_as_rank, join_twice
from processes import PATIENCE, free_port, until
from torch.distributed import TCPStore
from training_runs import PROCESSES, environment_of_rank

from ddpipe.distributed.roll_call import _each_connection, _notice_silence
from ddpipe.errors import ParameterError, TrainingError

HOST = socket.gethostname()
Process = multiprocessing.context.ForkServerProcess


@contextmanager
def ranks(
    folder: Path,
    acts: Sequence[str],
    *,
    sizes: Sequence[int] = (),
    cards: Sequence[dict[str, str]] = (),
    join: float = 600,
    stall: float = 600,
) -> Iterator[list[Process]]:
    """One process per act; each believes in its own group size, and carries its own card."""
    port, sizes = free_port(), sizes or [len(acts)] * len(acts)
    processes = [
        PROCESSES.Process(
            target=come_as_rank,
            args=(
                environment_of_rank(rank, sizes[rank], port, folder / f"error-{rank}.json"),
                cards[rank] if cards else {},
                (join, stall),
                act,
            ),
        )
        for rank, act in enumerate(acts)
    ]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def error_of(folder: Path, processes: Sequence[Process], rank: int) -> dict[str, Any]:
    """What a rank says when it has ended, which it soon does."""
    processes[rank].join(PATIENCE)
    assert processes[rank].exitcode is not None, f"rank {rank} hangs"
    content: dict[str, Any] = json.loads((folder / f"error-{rank}.json").read_text())
    details: dict[str, Any] = content["message"]["extraInfo"]
    assert details["error"] == TrainingError.__name__, details
    return details


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "stall", "said"),
    [
        ("die", 600, "rank 1 does not answer any more: it ended, was killed, or its machine is gone"),
        (
            "stall",
            2,
            f"rank 1 answered but did not keep up: rank 1 on host {socket.gethostname()} at group_ranks.py:",
        ),
        ("freeze", 2, "rank 1 does not answer any more"),
    ],
)
def test_the_rank_that_is_missing_is_named_and_nobody_hangs(
    tmp_path: Path, act: str, stall: float, said: str
) -> None:
    with ranks(tmp_path, ["come along", act, "come along"], stall=stall) as processes:
        for rank in (0, 2):
            assert said in error_of(tmp_path, processes, rank)["seen"]


@pytest.mark.slow
def test_a_stuck_rank_is_shown_where_it_is_stuck(tmp_path: Path) -> None:
    with ranks(tmp_path, ["come along", "stall"], stall=2) as processes:
        seen = error_of(tmp_path, processes, 0)["seen"]
    assert "stall_here < group_ranks.py" in seen
    assert re.search(r"this rank waited in .* all_reduce < group.py:\d+ max < group.py:\d+ barrier", seen)


@pytest.mark.slow
def test_a_rank_that_is_stuck_ends_when_the_others_have(tmp_path: Path) -> None:
    """Only then can it be started again: in a pod of its own, nobody else ends it."""
    with ranks(tmp_path, ["come along", "stall"], stall=2) as processes:
        processes[1].join(PATIENCE)
        assert processes[1].exitcode == TrainingError.exit_code


def test_a_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    with ranks(tmp_path, ["come along"] * 2, sizes=[4, 4], join=8) as processes:
        assert "ranks 2, 3 did not join" in error_of(tmp_path, processes, 0)["seen"]
        assert "ranks 2, 3 did not join" in error_of(tmp_path, processes, 1)["seen"]


def test_without_rank_0_the_others_say_so(tmp_path: Path) -> None:
    with ranks(tmp_path, ["come along"] * 2, join=2) as processes:
        processes[0].kill()
        assert "rank 0" in error_of(tmp_path, processes, 1)["seen"]


@pytest.mark.parametrize(
    ("sizes", "cards", "said"),
    [
        ([2, 3], [{}, {}], "number of processes: 3 on rank 1, 2 on rank 0"),
        (
            [2, 2],
            [{"dataset version": "a1"}, {"dataset version": "b2"}],
            "dataset version: b2 on rank 1, a1 on rank 0",
        ),
        ([2, 2], [{"epochs of the recipe": "3"}, {}], "epochs of the recipe: None on rank 1, 3 on rank 0"),
    ],
)
def test_differences_between_ranks_are_named_before_they_begin(
    tmp_path: Path, sizes: list[int], cards: list[dict[str, str]], said: str
) -> None:
    with ranks(tmp_path, ["come along"] * 2, sizes=sizes, cards=cards) as processes:
        assert said in error_of(tmp_path, processes, 0)["seen"]
        assert error_of(tmp_path, processes, 1)["what"] == "the processes do not match"


def test_ranks_of_different_code_do_not_train_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = {"code": "ddpipe 0.0 (older)"}
    with ranks(tmp_path, ["come along"] * 2, cards=[{}, card]) as processes:
        assert "code: ddpipe 0.0 (older) on rank 1, ddpipe" in error_of(tmp_path, processes, 0)["seen"]


def test_what_rank_0_refuses_all_refuse(tmp_path: Path) -> None:
    with ranks(tmp_path, ["decide"] * 3) as processes:
        for process in processes:
            process.join(PATIENCE)
        assert [process.exitcode for process in processes] == [ParameterError.exit_code] * 3


@pytest.mark.slow
def test_a_rank_that_begins_again_ends_the_one_that_waits_for_its_former_self(tmp_path: Path) -> None:
    """As after a power loss of its machine: nobody has closed its connections."""
    port = free_port()
    with ExitStack() as stack:

        def started(rank: int, act: str, name: str) -> Process:
            environment = environment_of_rank(rank, 2, port, tmp_path / name)
            process = PROCESSES.Process(target=come_as_rank, args=(environment, {}, (600, 600), act))
            process.start()
            stack.callback(process.kill)
            return process

        waiting, former = started(0, "come along", "error-0.json"), started(1, "freeze", "former")
        until(lambda: "(stopped)" in Path(f"/proc/{former.pid}/status").read_text())
        started(1, "come along", "error-1.json")
        assert "a rank has begun again" in error_of(tmp_path, [waiting], 0)["seen"]


@pytest.mark.slow
def test_a_process_may_open_another_group_before_the_others_have_left_theirs(tmp_path: Path) -> None:
    port = free_port()
    agents = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    both = [environment_of_rank(rank, 2, port, tmp_path / f"error-{rank}.json") for rank in range(2)]
    environments = [{**one, "TORCHELASTIC_USE_AGENT_STORE": "True"} for one in both]
    processes = [PROCESSES.Process(target=join_twice, args=(one,)) for one in environments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0, 0]
    del agents


def test_connections_of_a_rank_notice_a_silent_peer() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as one:
        _each_connection(_notice_silence)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
