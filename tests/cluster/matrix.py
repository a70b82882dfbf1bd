"""The matrix of faults as a page: what happens, whether it was right with each backend, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import pytest
from faults import FAULTS

from ddpipe.jobs import BACKENDS

HEAD = """# What happens when something goes wrong

`DDPIPE_EVERY_BACKEND=1 pytest tests/cluster/test_faults.py --matrix docs/faults.md` injects these faults on
a cluster; without the variable, those that are between the launcher and the API server alone happen with one
kind of job each. *Right*: the step succeeded or failed as the training did, the cause is named, and nothing
is left behind except what `tests/cluster/faults.py` and `reports.py` list. The seconds are those until the
launcher ended. Each launch is `ddpipe launch --backend … --nodes 2 --cpu 50m --memory 64Mi -- sh -c …`; rows
that are not run stay as they were.
"""
_REPORTS = """
## Public reports about other launchers

Each was repeated with every kind of job: repository and number of the report, and how our launcher ends, its
exit code first. By hand, also with every kind:

- An image with ENTRYPOINT, CMD, no USER and a WORKDIR that is root's alone (kubernetes 57079, reana 187).
  Without a command the image's own run, as user 1000; a command replaces both. What may not be written there
  is in the last lines.
- An API server at an IPv6 address (kubernetes-client/ruby 51, kube-rs 875, kubevious 90), with Jobs: it
  succeeds.
"""
_BEFORE = """
## What was wrong

Found with plain commands in small pods; the seconds of today are in the matrix.
"""
HANGS = "## Trainings that hang\n"
LOST_NODES = "## Nodes that are lost\n"
BEFORE = {
    "somebody scales the job to one pod": "exit code 0, though worker-1 was killed",
    "a pod fails again and again, and is replaced": "19 new pods in 60 s, no end (PyTorchJob)",
    "a sidecar never ends": "no end",
    "a rank fails beside a sidecar that never ends": "no end",
    "a sidecar fails": "another rule with each kind of job, no name",
    "a webhook puts a sidecar that never ends before the rank's container": "no end",
    "an init container fails": '"backoff limit" or "1 Worker replica(s) failed"',
    "a webhook adds an init container that fails": "without its last lines (TrainJob)",
    "a volume names a key that does not exist": '"not all images were ready in time" after 1,800 s',
    "a folder of the node that does not exist": "still waiting after 150 s",
    "a liveness probe fails, and the kubelet kills the container": '"killed … most often for memory"',
    "a webhook's sidecar is killed for memory": "named with the limit of the rank, advice to give that more",
    "values with dollar signs arrive as they are given": "`pa$$word` arrived as `pa$word`, exit code 0",
    "an object that the cluster cannot store": "retried as an outage for 600 s",
    "pods that the API refuses: a wrong operator": '"the Trainer does not answer"',
    "somebody asks for no pods": '"request less per pod"',
    "the login plugin of the kubeconfig fails": '"this account lacks a right"',
    "the kubeconfig names another server": "30 s, and another cause",
    "the launcher's clock is an hour ahead, and it adopts": 'stopped after 10 s, "still running after 600 s"',
    "a pod is deleted before it could start": "the kubelet's words were printed as lines of the rank",
}
"""How the faults that people found ended before they were corrected."""

_CASE = re.compile(r"::test_fault\[(\w+): (.+)\]$")
_ENDED = re.compile(r" \(exit code (-?\d+), (\d+) s\)$")
Row = tuple[str, ...]


def table(reports: Sequence[pytest.TestReport]) -> str:
    """The reports of `test_fault` as a table; empty if there are none."""
    rows = _cells(reports)
    lines = ((name, *(cells.get(backend, "") for backend in BACKENDS)) for name, cells in rows.items())
    return _as_text(("what happens", *BACKENDS), lines) if rows else ""


def page(reports: Sequence[pytest.TestReport], before: str) -> str:
    """The whole page; what did not run now is as in the page `before`."""
    cells, ends, known = _cells(reports), _ends(reports), _rows(before)
    matrix, ended = (
        known.get("what happens", {}),
        {**known.get("report", {}), **known.get("what happened", {})},
    )

    def whole(name: str) -> Row:
        old = dict(zip(BACKENDS, matrix.get(name, ("",) * len(BACKENDS))[-len(BACKENDS) :], strict=True))
        return (name, *(cells.get(name, {}).get(backend) or old[backend] for backend in BACKENDS))

    def end(name: str) -> str:
        return ends.get(name) or ended.get(name, ("",))[-1]

    names = [fault.name for fault in FAULTS]
    reported = ((fault.reports, fault.name, end(fault.name)) for fault in FAULTS if fault.reports)
    corrected = ((name, BEFORE[name], end(name)) for name in names if name in BEFORE)
    return "".join(
        [
            f"{HEAD}\n",
            _as_text(("what happens", *BACKENDS), map(whole, names)),
            f"{_REPORTS}\n",
            _as_text(("report", "what is done", "how it ends"), reported),
            f"{_BEFORE}\n",
            _as_text(("what happened", "before", "now"), corrected),
            *before.partition(f"\n{HANGS}")[1:],  # by hand; what follows is written by lost_nodes.py
        ]
    )


def _as_text(head: Row, rows: Iterator[Row]) -> str:
    return "".join("| " + " | ".join(row) + " |\n" for row in (head, ("---",) * len(head), *rows))


def _rows(text: str) -> dict[str, dict[str, Row]]:
    """The rows of a page's tables, by the first word of a table's head and the name of the fault."""
    tables: dict[str, dict[str, Row]] = {}
    head = ""
    names = {fault.name for fault in FAULTS}
    for line in text.splitlines():
        row = tuple(cell.strip() for cell in line.strip("|").split(" | ")) if line.startswith("| ") else ()
        if not row:
            head = ""
        elif not head:
            head = row[0]
        elif named := names.intersection(row):
            tables.setdefault(head, {})[named.pop()] = row
    return tables


def _cells(reports: Sequence[pytest.TestReport]) -> Mapping[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    for report in reports:
        counts = report.when == "call" or not report.passed
        if counts and (case := _CASE.search(report.nodeid)):
            rows.setdefault(case[2], {})[case[1]] = _cell(report)
    return rows


def _cell(report: pytest.TestReport) -> str:
    if report.skipped:
        return str(report.longrepr[2]).removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
    if report.failed:
        return "**wrong**"
    seconds = [found[2] for name, _ in report.user_properties if (found := _ENDED.search(str(name)))]
    return f"right, {seconds[0]} s" if seconds else "right"


def _ends(reports: Sequence[pytest.TestReport]) -> dict[str, str]:
    """The exit codes by backend, and the launcher's last words with one of them."""
    codes: dict[str, dict[str, str]] = {}
    words: dict[str, str] = {}
    for report in reports:
        case = _CASE.search(report.nodeid)
        for name, message in report.user_properties if case and report.when == "call" else ():
            if case and (found := _ENDED.search(str(name))):
                codes.setdefault(case[2], {})[case[1]] = found[1]
                words.setdefault(case[2], _plain(str(message)))
    return {
        name: f"{', '.join(dict.fromkeys(by_backend.values()))}: {words[name]}"
        for name, by_backend in codes.items()
    }


def _plain(message: str) -> str:
    """A message without names that differ from run to run, at most three lines of it."""
    text = " ".join(line.strip() for line in message.splitlines()[:3]).replace("|", "/")
    text = re.sub(r"/tmp/\w+/", "", text)  # noqa: S108 - of the test
    text = re.sub(r"ddpipe-test-[0-9a-f]{8}", "team", re.sub(r"\btrain-[0-9a-f]{10}\b", "train", text))
    return text if len(text) < 300 else f"{text[:300].rpartition(' ')[0]} …"
