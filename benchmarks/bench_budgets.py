"""Whether a run with a budget of minutes ends in time, what more minutes give, and what a busy machine costs.

    python benchmarks/bench_budgets.py FOLDER [--minutes 1 3 10]
    python benchmarks/bench_budgets.py FOLDER --minutes 2 --busy never "first half" "last half" always

FOLDER has raw data, such as CIFAR-10's images in <train|test>/<class>. It is prepared before, as from the
second run on, and then `ddpipe run FOLDER --minutes M` is timed as a whole, from its start to its end as a
process: alone, and beside processes that only count, in the first half of the budget, in the last, and in all
of it. On an otherwise idle machine; writes benchmarks/results/budgets.md, or budgets-busy.md.

More steps would have fit in the time that was left, at the pace of the last epoch. The load is that of the
last five minutes, the run included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
BUSY = {"never": (0.0, 0.0), "first half": (0.0, 0.5), "last half": (0.5, 9.0), "always": (0.0, 9.0)}
"""From when to when the others run, as shares of the budget."""
HEAD = """\
| minutes | others busy | ended after | of the budget | steps | more would have fit | test accuracy | load |
|---|---|---|---|---|---|---|---|
"""


@contextmanager
def counting() -> Iterator[None]:
    """A process that only counts."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def ddpipe(
    work: str, *arguments: str, others: int = 0, since: float = 0.0, until: float = 0.0
) -> tuple[float, dict[str, Any]]:
    """Run a command in a folder.

    Args:
        work: The folder.
        arguments: Of the command.
        others: How many processes run beside it.
        since: The second in which they start.
        until: The second in which they end.

    Returns:
        Seconds, and what it printed.
    """
    began, command = time.monotonic(), [sys.executable, "-m", "ddpipe", *arguments, "--json"]
    with (
        ExitStack() as running,
        subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, text=True) as process,
    ):
        there = False
        while True:
            if (since <= time.monotonic() - began < until) != there:
                there = not there
                running.close()
                for _ in range(others if there else 0):
                    running.enter_context(counting())
            try:
                printed = process.communicate(timeout=0.1)[0]
                break
            except subprocess.TimeoutExpired:
                pass
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return time.monotonic() - began, json.loads(printed)


def row(minutes: float, busy: str, seconds: float, accuracy: float, training: dict[str, Any]) -> str:
    """A line of the table.

    Args:
        minutes: The budget.
        busy: When others were.
        seconds: The whole run.
        accuracy: On the test split.
        training: Its record.
    """
    history, budget = training["history"], 60 * minutes
    last = history[-1]["step"] - (history[-2]["step"] if history[1:] else 0)
    more = max(0.0, budget - seconds) * last / history[-1]["seconds"] / training["steps"]
    return (
        f"| {minutes:g} | {busy} | {seconds:.1f} s | {seconds / budget:.3f} | {training['steps']:,} "
        f"| {more:.0%} | {accuracy:.4f} | {os.getloadavg()[1]:.1f} |\n"
    )


def main() -> None:
    """Run each budget once in each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", nargs="+", type=float, default=[1, 3, 10])
    parser.add_argument("--others", type=int, default=2)
    parser.add_argument("--busy", nargs="+", default=["never"], choices=BUSY)
    given = parser.parse_args()
    folder, rows = str(given.folder.resolve()), []
    with tempfile.TemporaryDirectory() as work:
        ddpipe(work, "prepare", "--source-path", folder, "--dataset-name", "images")
        for number, (minutes, busy) in enumerate((m, b) for m in given.minutes for b in given.busy):
            since, until = (60 * minutes * share for share in BUSY[busy])
            options = ("--dataset-name", "images", "--minutes", f"{minutes:g}", "--run", f"run-{number}")
            seconds, printed = ddpipe(
                work, "run", folder, *options, others=given.others, since=since, until=until
            )
            record = json.loads(Path(work, "runs", f"run-{number}", "training", "training.json").read_text())
            when = busy if busy == "never" else f"{given.others}, {busy}"
            rows.append(row(minutes, when, seconds, printed["metrics"]["test"]["accuracy"]["value"], record))
            sys.stdout.write(rows[-1])
            sys.stdout.flush()
    name = "budgets.md" if given.busy == ["never"] else "budgets-busy.md"
    (RESULTS / name).write_text(f"# Time budgets\n\n{HEAD}{''.join(rows)}")


if __name__ == "__main__":
    main()
