"""Promotions on the cluster's own object store: of concurrent processes, one wins each round."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from promotions import one_wins

from ddpipe.model.history import NamedModel
from ddpipe.storage import open_store

pytestmark = pytest.mark.cluster

ROUNDS, PROCESSES = 50, 3

SWAPPER = """
import sys
from ddpipe.storage import open_store
store, me = open_store(sys.argv[1]), sys.argv[2].encode()
store.exists("imports and connections do not decide who is first")
print("ready", flush=True)
for turn in sys.stdin:
    print(store.swap("state-" + turn.strip(), None, me), flush=True)
"""


@pytest.fixture
def root() -> Iterator[str]:
    """A folder in the bucket of the cluster's object store; needs no pods."""
    if not {"S3_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= os.environ.keys():
        pytest.skip("no object store: set S3_ENDPOINT, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    uri = f"s3://{os.environ.get('S3_BUCKET', 'mlpipeline')}/swap-{uuid4().hex}"
    yield uri
    store = open_store(uri)
    for info in list(store.list()):
        store.delete(info.key)


def test_one_of_concurrent_processes_wins_each_round(root: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SWAPPER, root, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    pipes = [(one.stdin, one.stdout) for one in processes]
    answers: list[list[str]] = []
    for _, answer in pipes:
        assert answer
        assert answer.readline() == "ready\n"
    for turn in range(ROUNDS):
        for ask, _ in pipes:
            assert ask
            ask.write(f"{turn}\n")
            ask.flush()
        answers.append([answer.readline().strip() for _, answer in pipes if answer])
    for process in processes:
        process.communicate(timeout=60)
    assert [one.count("True") for one in answers] == [1] * ROUNDS
    assert len({one.index("True") for one in answers}) > 1, "they did not compete"


def test_the_store_replaces_only_what_was_read(root: str) -> None:
    store = open_store(root)
    store.write("state", b"first")
    assert store.swap("state", b"first", b"second")
    assert not store.swap("state", b"first", b"third")
    assert store.read("state") == b"second"


def test_one_of_two_concurrent_promotions_wins_each_round(root: str, tmp_path: Path) -> None:
    for turn in range(3):
        one_wins(NamedModel(open_store(root), f"toys-{turn}"), tmp_path / str(turn))
