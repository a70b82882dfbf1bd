"""What a rank leaves in the folder of its launch."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ddpipe.errors import ReplicaFailed
from ddpipe.notebook.call import _run, _uploaded
from ddpipe.notebook.folder import CALL, KEY, OUTPUTS, check_ranks, publish, verified
from ddpipe.processes.packing import packed, unpacked_value
from ddpipe.storage import open_store


def squared(number: int) -> int:
    Path(os.environ["DDPIPE_OUTPUTS"], "number.txt").write_text(str(number))
    return number**2


def failing() -> float:
    return 1 / 0


def test_outputs_are_uploaded_with_their_hashes(tmp_path: Path) -> None:
    contents = {"model.bin": b"\r\n\0\xff", "plots/loss.svg": b"<svg/>"}
    for name, content in contents.items():
        path = tmp_path / "outputs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    store = open_store(str(tmp_path / "launch"))
    hashes = _uploaded(tmp_path / "outputs", store)
    assert hashes == {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    assert {name: store.read(OUTPUTS + name) for name in contents} == contents


def test_rank_0_publishes_what_the_function_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, call = open_store(str(tmp_path)), packed(squared, {"number": 3})
    store.write(CALL, call.content)
    monkeypatch.setenv(KEY, "ab" * 32)
    monkeypatch.setenv("WORLD_SIZE", "1")
    _run(store, call.sha256)
    assert KEY not in os.environ, "the function could read it"
    result = verified(store, "ab" * 32, call.sha256)
    assert unpacked_value(result.packed_value()) == 9
    assert list(result.outputs) == ["number.txt"]
    result.fetch("number.txt", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_text() == "3"
    check_ranks(store)


@pytest.mark.parametrize(("returned", "missing"), [((0, 2), "rank 1 of 3"), ((1, 2), "rank 0 of 3")])
def test_a_rank_that_did_not_return_is_named(returned: tuple[int, ...], missing: str, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    publish(store, "ab" * 32, "5" * 64, b"", {}, 3)
    for rank in returned:
        store.write(f"ranks/{rank}", b"")
    with pytest.raises(ReplicaFailed, match=missing):
        check_ranks(store)


def test_other_ranks_only_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, call = open_store(str(tmp_path)), packed(squared, {"number": 3})
    store.write(CALL, call.content)
    monkeypatch.setenv(KEY, "ab" * 32)
    monkeypatch.setenv("RANK", "1")
    _run(store, call.sha256)
    assert store.exists("ranks/1")
    assert not store.exists("result.json")


def test_an_earlier_attempt_s_return_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, call = open_store(str(tmp_path)), packed(failing, {})
    store.write(CALL, call.content)
    store.write("ranks/0", b"")
    monkeypatch.setenv(KEY, "ab" * 32)
    with pytest.raises(ZeroDivisionError):
        _run(store, call.sha256)
    assert not store.exists("ranks/0")
