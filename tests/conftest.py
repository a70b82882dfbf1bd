"""A place of its own for every test, the guard of the checkout, and the servers that several files need."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import time
import uuid
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import s3_server

from ddpipe.processes.machine import search_rarely

# What a person, a pipeline's pod, torchrun or a Git hook sets; a test that needs one of them sets it itself.
_PERSONAL = re.compile(
    "(AWS|DDPIPE|GIT|HF|JUPYTER|KFP?|KUBERNETES|MINIO|MLFLOW|PET|POD|S3|TORCH|TORCHELASTIC|XDG)_.*"
    "|KUBECONFIG|IPYTHONDIR|MPL(BACKEND|CONFIGDIR)|MODEL_REGISTRY|NAMESPACE|OMP_NUM_THREADS"
    "|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
    "|COLUMNS|LINES|(NO|FORCE)_COLOR|PYTHON(STARTUP|WARNINGS)"
)
_CACHES = {
    ".cache",
    ".grimp_cache",  # of the import contracts
    ".hypothesis",
    ".import_linter_cache",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    "__pycache__",
    "build",  # the site, which a test builds as `make docs` does
}
_FOUND = pytest.StashKey[AbstractSet[str]]()

# Few examples, the same ones each time; --hypothesis-profile=default explores.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, max_examples=40
)
hypothesis.settings.load_profile("repeatable")
# Threads that spin while they wait slow down the other tests; set before torch and numpy are imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Seconds since 1970, from .ci/run.
_END = float(os.environ.get("DDPIPE_TESTS_END", "inf"))


class _Loggers(dict[str, Any]):
    """May grow while pytest goes through them before a test: a thread of an earlier one imports modules."""

    def values(self) -> Any:
        return list(super().values())


logging.Logger.manager.loggerDict = _Loggers(logging.Logger.manager.loggerDict)
search_rarely()  # a test runner with torch, too, spends a third of its time on garbage that is none


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note what is in the checkout before the first test."""
    if not hasattr(session.config, "workerinput"):
        session.config.stash[_FOUND] = _untracked(session.config.rootpath)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip a test that would begin too late: on a slow machine CI ends in time and says what it left out."""
    if time.time() > _END:
        pytest.skip("not run, the time that CI has for such tests is over")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if a test has left a file in the checkout."""
    config = session.config
    left = _untracked(config.rootpath) - config.stash[_FOUND] if _FOUND in config.stash else None
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if left and terminal:
        text = "\n  ".join(["files appeared in the checkout while the tests ran:", *sorted(left)[:20]])
        report = pytest.TestReport("checkout", ("", None, "the checkout"), {}, "failed", text, "teardown")
        terminal.stats.setdefault("error", []).append(report)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _untracked(checkout: Path) -> set[str]:
    """Files that Git does not track, ignored ones, too, but for caches; none if this is no checkout."""
    options = ("--porcelain", "-z", "--ignored", "--untracked-files=all")
    command = ["git", "--no-optional-locks", "status", *options, "--", ":!.venv"]
    try:
        listed = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return set()
    paths = (entry[3:] for entry in listed.split("\0") if entry.startswith(("??", "!!")))
    return {path for path in paths if not _CACHES.intersection(Path(path).parts)}


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What all tests start from, and the servers and processes they start: nobody's home and settings."""
    with pytest.MonkeyPatch.context() as patch:
        home, caches = Path.home(), os.environ.get("XDG_CACHE_HOME")
        for name in filter(_PERSONAL.fullmatch, list(os.environ)):
            patch.delenv(name)
        # Not settings: what was downloaded is not downloaded again, and the list of fonts is made once.
        patch.setenv("UV_CACHE_DIR", os.environ.get("UV_CACHE_DIR") or f"{caches or home / '.cache'}/uv")
        patch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("fonts")))
        for name in ("no_proxy", "NO_PROXY"):
            patch.setenv(name, "localhost,127.0.0.1")  # where the tests' own servers listen
        place = tmp_path_factory.mktemp("place")
        patch.setenv("HOME", str(place))
        patch.chdir(place)
        yield place


@pytest.fixture(autouse=True)
def _own_place(surroundings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a working directory, a home and a cache of its own, empty."""
    place = surroundings / uuid.uuid4().hex
    for name in ("here", "home", "cache"):
        (place / name).mkdir(parents=True)
    monkeypatch.chdir(place / "here")
    monkeypatch.setenv("HOME", str(place / "home"))
    monkeypatch.setenv("DDPIPE_CACHE", str(place / "cache"))


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
