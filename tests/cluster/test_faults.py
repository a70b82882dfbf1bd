"""The fault matrix on a real cluster: true colour, the exact cause, and nothing left behind."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from faults import FAULTS, Fault, Seen
from place import a_place

from ddpipe.launch.cluster import ApiServer

KILLED = -9
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def happening(request: pytest.FixtureRequest, admin: ApiServer) -> Iterator[dict[str, Future[Seen]]]:
    """All chosen faults, several at once: most of their time is waiting."""
    chosen = {
        item.callspec.params["fault"].name: item.callspec.params["fault"]
        for item in request.session.items
        if "fault" in getattr(getattr(item, "callspec", None), "params", {})
    }
    with ThreadPoolExecutor(request.config.getoption("--side-by-side")) as pool:
        yield {name: pool.submit(_happen, fault, admin) for name, fault in chosen.items()}


def _happen(fault: Fault, admin: ApiServer) -> Seen:
    with (
        tempfile.TemporaryDirectory() as folder,
        a_place(admin, Path(folder), level=fault.level, sees_nodes=fault.sees_nodes) as place,
    ):
        return fault.happen(place)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(
    fault: Fault,
    happening: dict[str, Future[Seen]],
    record_property: Callable[[str, object], None],
) -> None:
    seen = happening[fault.name].result()
    text = seen.ended.text
    record_property(
        f"{fault.name} (exit code {seen.ended.code}, {seen.ended.seconds:.0f} s)", seen.ended.message
    )
    assert seen.ended.code == fault.code or (fault.may_be_killed and seen.ended.code == KILLED), text
    for words in fault.words:
        assert re.search(words, text, re.DOTALL), f"{words!r} is not told:\n{text}"
    assert "Traceback" not in text
    assert (seen.jobs, seen.pods) == (fault.jobs, fault.pods), f"jobs and pods left\n{text}"
    assert fault.jobs_ever is None or seen.jobs_ever == fault.jobs_ever, (
        f"jobs ever: {seen.jobs_ever}\n{text}"
    )
