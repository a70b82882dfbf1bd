"""Compare-and-swap: of several processes that expect the same content, one succeeds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from s3_server import BUCKET, Proxy, Server

from ddpipe.errors import NoSuchBucket
from ddpipe.storage import open_store
from ddpipe.storage import s3 as bucket_store
from ddpipe.storage.connection import client_of


def test_an_object_is_made_once(store_uri: str) -> None:
    store = open_store(store_uri)
    assert store.swap("a/state", None, b"first")
    assert not store.swap("a/state", None, b"second")
    assert store.read("a/state") == b"first"


def test_an_object_is_replaced_if_it_is_what_was_read(store_uri: str) -> None:
    store = open_store(store_uri)
    store.write("state", b"first")
    assert not store.swap("state", b"another", b"second")
    assert store.swap("state", b"first", b"second")
    assert not store.swap("state", b"first", b"third")
    assert not store.swap("missing", b"first", b"second")
    assert store.read("state") == b"second"


def test_a_swap_leaves_nothing_else_behind(store_uri: str) -> None:
    store = open_store(store_uri)
    store.swap("state", None, b"first")
    assert [info.key for info in store.list()] == ["state"]


SWAPPER = """
import sys
from ddpipe.storage import open_store
store, me = open_store(sys.argv[1]), sys.argv[2].encode()
store.swap("warm-" + sys.argv[2], None, me)  # imports and connections do not decide who is first
for turn in sys.stdin:
    print(store.swap("state-" + turn.strip(), None, me), flush=True)
"""


def test_one_of_concurrent_processes_succeeds(store_uri: str) -> None:
    turns = 5
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SWAPPER, store_uri, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    for process in processes:
        assert process.stdin
        process.stdin.write("".join(f"{turn}\n" for turn in range(turns)))
        process.stdin.flush()
    answers = [process.communicate()[0].split() for process in processes]
    assert [sorted(pair) for pair in zip(*answers, strict=True)] == [["False", "True"]] * turns


@pytest.fixture
def _forgetful() -> Iterator[None]:
    """What the server can do is tried again."""
    bucket_store.decides.cache_clear()
    client_of.cache_clear()
    yield
    bucket_store.decides.cache_clear()


def test_a_swap_whose_answer_was_lost_has_succeeded(proxy: Proxy, s3: Server) -> None:
    store = open_store(f"s3://{BUCKET}/team")
    assert store.swap("state", None, b"first")

    def landed() -> None:
        open_direct = bucket_store.S3Store(s3.client, store._connection, BUCKET, "team")  # type: ignore[attr-defined]
        open_direct.write("state", b"second")

    proxy.faults.extend(["", landed])  # the read passes; the write lands before this one arrives
    assert store.swap("state", b"first", b"second")
    proxy.faults.extend(["", lambda: s3.client.remove_object(BUCKET, "team/state")])
    assert not store.swap("state", b"second", b"third")


@pytest.mark.usefixtures("_forgetful")
def test_a_server_without_conditions_gets_a_lease(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    real = bucket_store._put_if
    monkeypatch.setattr(bucket_store, "_put_if", lambda *given: real(*given[:4], {}))  # as if it ignored them
    store = open_store(f"s3://{BUCKET}/team")
    assert store.swap("state", None, b"first")
    assert not store.swap("state", None, b"second")
    assert store.swap("state", b"first", b"third")
    assert store.read("state") == b"third"


def test_a_swap_in_a_missing_bucket_is_an_error(s3: Server) -> None:
    with pytest.raises(NoSuchBucket):
        open_store("s3://nowhere/team").swap("state", None, b"first")
