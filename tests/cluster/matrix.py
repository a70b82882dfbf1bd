"""The matrix of faults as one table: what happens, and whether it was right with each backend."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from ddpipe.jobs import BACKENDS

MATRIX_HEAD = """# What happens when something goes wrong

`pytest tests/cluster/test_faults.py --matrix docs/faults.md` injects these faults on a cluster. *Right*: the
step succeeded or failed as the training did, the cause is named, and nothing is left behind except what
`tests/cluster/faults.py` lists. The seconds are those until the launcher ended.

Public reports about other launchers that rows of the matrix, or of `faults.py`, repeat with each kind of job:

| report | repeated by | outcome |
| --- | --- | --- |
| argo-workflows 1186, 2936, 4065, flyte 363 | an object that the cluster cannot store | refused in 3 s |
| trainer 707, 2363 | pods that the API refuses: a wrong operator | refused with the field, nothing created |
| trainer 1509, 1593 | somebody scales the job to one pod | failed, and the change is named |
| airflow 39625, 39693 | a sidecar never ends | succeeds 60 s after its ranks |
"""

_CASE = re.compile(r"::test_fault\[(\w+): (.+)\]$")
_SECONDS = re.compile(r", (\d+) s\)$")


def table(reports: Sequence[pytest.TestReport]) -> str:
    """The reports of `test_fault` as a table; empty if there are none."""
    rows: dict[str, dict[str, str]] = {}
    for report in reports:
        counts = report.when == "call" or not report.passed
        if counts and (case := _CASE.search(report.nodeid)):
            rows.setdefault(case[2], {})[case[1]] = _cell(report)
    lines = [("what happens", *BACKENDS), ("---",) * (1 + len(BACKENDS))]
    lines += [(name, *(cells.get(backend, "") for backend in BACKENDS)) for name, cells in rows.items()]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines) if rows else ""


def _cell(report: pytest.TestReport) -> str:
    if report.skipped:
        return str(report.longrepr[2]).removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
    if report.failed:
        return "**wrong**"
    seconds = [found[1] for name, _ in report.user_properties if (found := _SECONDS.search(str(name)))]
    return f"right, {seconds[0]} s" if seconds else "right"
