"""Whether a run with a budget of minutes ends in time, and what more minutes give.

    python benchmarks/bench_budgets.py FOLDER [--minutes 1 3 10]

FOLDER has raw data, such as CIFAR-10's images in <train|test>/<class>. It is prepared before, as from the
second run on, and then `ddpipe run FOLDER --minutes M` is timed as a whole, from its start to its end as a
process. On an idle machine; writes benchmarks/results/budgets.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "budgets.md"
HEAD = "| minutes | ended after | of the budget | test accuracy |\n|---|---|---|---|\n"


def ddpipe(work: str, *arguments: str) -> tuple[float, str]:
    """Run a command in a folder.

    Args:
        work: The folder.
        arguments: Of the command.

    Returns:
        Seconds, and what it printed.
    """
    began = time.monotonic()
    command = [sys.executable, "-m", "ddpipe", *arguments]
    done = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, text=True, check=True)
    return time.monotonic() - began, done.stdout


def row(minutes: float, seconds: float, accuracy: float) -> str:
    """A line of the table."""
    return f"| {minutes:g} | {seconds:.1f} s | {seconds / minutes / 60:.3f} | {accuracy:.4f} |\n"


def main() -> None:
    """Run each budget once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", nargs="+", type=float, default=[1, 3, 10])
    given = parser.parse_args()
    folder, rows = str(given.folder.resolve()), []
    with tempfile.TemporaryDirectory() as work:
        ddpipe(work, "prepare", "--source-path", folder, "--dataset-name", "images")
        for minutes in given.minutes:
            options = ("--dataset-name", "images", "--minutes", f"{minutes:g}", "--json")
            seconds, printed = ddpipe(work, "run", folder, *options)
            found = json.loads(printed)["metrics"]["test"]["accuracy"]["value"]
            rows.append(row(minutes, seconds, found))
    RESULTS.write_text(f"# Time budgets\n\n{HEAD}{''.join(rows)}")


if __name__ == "__main__":
    main()
