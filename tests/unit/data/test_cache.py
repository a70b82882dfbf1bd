"""The folder of this machine for what was fetched: where it is, and how much more fits."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddpipe.data.cache import default_cache, locked, room

LIMIT = "DDPIPE_CACHE_GB"


def _disk(monkeypatch: pytest.MonkeyPatch, *, total: int, free: int) -> list[Path]:
    """The disk's bytes; where they were asked for."""
    asked = []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(total=total, used=total - free, free=free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return asked


def _file(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))


@pytest.mark.parametrize("given", [None, ""])
def test_it_is_below_the_home_folder_by_default(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDPIPE_CACHE", raising=False)
    if given is not None:
        monkeypatch.setenv("DDPIPE_CACHE", given)
    assert default_cache() == Path.home() / ".cache" / "ddpipe"


def test_it_is_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPIPE_CACHE", str(tmp_path / "here"))
    assert default_cache() == tmp_path / "here"


@pytest.mark.parametrize(("free", "expected"), [(300, 250), (50, 0), (20, 0)])
def test_a_twentieth_of_the_disk_stays_free(
    free: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _disk(monkeypatch, total=1000, free=free)
    assert room(tmp_path) == expected


def test_the_disk_of_a_cache_that_is_not_there_yet_is_that_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _disk(monkeypatch, total=1000, free=1000)
    room(tmp_path / "not" / "yet")
    assert asked == [tmp_path]


@pytest.mark.parametrize(("used", "expected"), [(0, 100), (30, 70), (100, 0), (170, 0)])
def test_copies_count_towards_the_limit_and_other_files_do_not(
    used: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _disk(monkeypatch, total=1000, free=1000)
    monkeypatch.setenv(LIMIT, "1e-7")
    _file(tmp_path / "shards" / "one", used // 2)
    _file(tmp_path / "columns" / "two", used - used // 2)
    _file(tmp_path / "proofs" / "three", 500)
    assert room(tmp_path) == expected


def test_the_disk_limits_more_than_a_large_allowance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _disk(monkeypatch, total=1000, free=500)
    monkeypatch.setenv(LIMIT, "1")
    assert room(tmp_path) == 450


def test_an_allowance_of_nothing_leaves_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _disk(monkeypatch, total=1000, free=500)
    monkeypatch.setenv(LIMIT, "0")
    assert room(tmp_path) == 0


def test_a_gigabyte_has_ten_to_the_ninth_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _disk(monkeypatch, total=10**12, free=10**12)
    monkeypatch.setenv(LIMIT, "2.5")
    assert room(tmp_path) == 2_500_000_000


def test_nobody_else_has_a_lock_before_it_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "one.lock"
    with locked(path), path.open("w") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
