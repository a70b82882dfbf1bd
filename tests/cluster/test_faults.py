"""The fault matrix on a real cluster, for each backend: true color, the exact cause, nothing left behind."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import reports  # noqa: F401 - enters its rows into the matrix
from faults import FAULTS, Fault, Seen
from place import a_place

from ddpipe.jobs import BACKENDS
from ddpipe.jobs.backend import backend as backend_of
from ddpipe.kube.api import ApiServer
from ddpipe.kube.cluster import is_served, spec_schema

KILLED = -9
pytestmark = pytest.mark.cluster


EVERY_BACKEND = "DDPIPE_EVERY_BACKEND" in os.environ
"""Whether faults that no kind of job changes happen with each kind, or with one kind each."""


def _cases() -> Iterator[Any]:
    turns = dict(zip((fault.name for fault in FAULTS if fault.is_alike), cycle(BACKENDS), strict=False))
    for backend in BACKENDS:
        for fault in FAULTS:
            if not EVERY_BACKEND and turns.get(fault.name, backend) != backend:
                continue
            reason = "" if fault.playable_with else fault.unplayable.get(backend)
            marks = [pytest.mark.skip(reason=reason)] if reason else []
            yield pytest.param(backend, fault.on(backend), marks=marks, id=f"{backend}: {fault.name}")


@pytest.fixture(scope="module")
def happening(
    request: pytest.FixtureRequest, admin: ApiServer
) -> Iterator[dict[tuple[str, str], Future[Seen]]]:
    """All chosen faults, several at once: most of their time is waiting."""
    served = {name for name in BACKENDS if is_served(admin, backend_of(name).resource)}
    chosen: dict[tuple[str, str], Fault] = {}
    for item in request.session.items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        if "fault" not in given or given["backend"] not in served or item.get_closest_marker("skip"):
            continue
        if _is_playable(given["fault"], given["backend"], admin):
            chosen[given["backend"], given["fault"].name] = given["fault"]
    with ThreadPoolExecutor(request.config.getoption("--side-by-side")) as pool:
        yield {key: pool.submit(_happen, fault, key[0], admin) for key, fault in chosen.items()}
        # Who stops at the first failure does not wait for those that have not begun.
        pool.shutdown(wait=False, cancel_futures=True)


def _is_playable(fault: Fault, backend: str, admin: ApiServer) -> bool:
    """Whether it can happen with the release that this cluster has."""
    if backend not in fault.unplayable:
        return True
    return fault.playable_with in (spec_schema(admin, backend_of(backend).resource) or {})


def _happen(fault: Fault, backend: str, admin: ApiServer) -> Seen:
    with (
        tempfile.TemporaryDirectory() as folder,
        a_place(
            admin, Path(folder), level=fault.level, sees_nodes=fault.sees_nodes, backend=backend
        ) as place,
    ):
        # The command itself is started in the first row, and in all other tests.
        place.forks = fault.name != FAULTS[0].name
        return fault.happen(place)


@pytest.mark.parametrize(("backend", "fault"), list(_cases()))
def test_fault(
    backend: str,
    fault: Fault,
    happening: dict[tuple[str, str], Future[Seen]],
    record_property: Callable[[str, object], None],
) -> None:
    if (backend, fault.name) not in happening:
        pytest.skip(
            fault.unplayable.get(backend, f"this cluster has no {backend_of(backend).resource.kind}s")
        )
    seen = happening[backend, fault.name].result()
    text = seen.ended.text
    record_property(
        f"{backend}: {fault.name} (exit code {seen.ended.code}, {seen.ended.seconds:.0f} s)",
        seen.ended.message,
    )
    assert seen.ended.code == fault.code or (fault.may_be_killed and seen.ended.code == KILLED), text
    for words in fault.words:
        assert re.search(words, text, re.DOTALL), f"{words!r} was not printed:\n{text}"
    assert "Traceback" not in text
    assert (seen.jobs, seen.pods) == (fault.jobs, fault.pods), f"jobs and pods left\n{text}"
    assert fault.jobs_ever is None or seen.jobs_ever == fault.jobs_ever, (
        f"jobs ever: {seen.jobs_ever}\n{text}"
    )
