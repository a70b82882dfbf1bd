"""Fixtures that more than one file of tests needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import s3_server

from ddpipe.processes.process import search_rarely

# Few examples, the same ones each time; --hypothesis-profile=default explores.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, max_examples=40
)
hypothesis.settings.load_profile("repeatable")
# Threads that spin while they wait slow down the other test processes; set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
search_rarely()  # a test runner with torch, too, spends a third of its time on garbage that is none


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees what another one, or the person at this machine, has in the cache."""
    monkeypatch.setenv("DDPIPE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def _server() -> Iterator[s3_server.Server]:
    with s3_server.running() as server:
        yield server


@pytest.fixture
def s3(_server: s3_server.Server, monkeypatch: pytest.MonkeyPatch) -> s3_server.Server:
    """A real S3 server with one empty bucket, `s3_server.BUCKET`; the environment points to it."""
    _server.reset()
    monkeypatch.setenv("S3_ENDPOINT", _server.endpoint)
    monkeypatch.setenv("S3_RETRIES", "1")
    monkeypatch.delenv("S3_CREDENTIALS_DIR", raising=False)
    for name, value in s3_server.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return _server


@pytest.fixture
def proxy(s3: s3_server.Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_server.Proxy]:
    """The same server behind a proxy that misbehaves on request."""
    with s3_server.proxying(s3) as proxy:
        monkeypatch.setenv("S3_ENDPOINT", proxy.endpoint)
        yield proxy


@pytest.fixture(params=["folder", "bucket"])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store, on disk and in a bucket: what holds for one has to hold for the other."""
    if request.param == "folder":
        return str(tmp_path / "store")
    request.getfixturevalue("s3")
    return f"s3://{s3_server.BUCKET}/team"
