"""Kill launchers at random moments, on the cluster of KUBECONFIG: is each job right, once, and nothing left?

    python benchmarks/random_kills.py [--backends pytorchjob trainjob indexedjob] [--times 100] [--seed 1]

Writes benchmarks/results/kills.md. An hour for 100 kills of each backend on two busy cores.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from kills import WAYS, Kill, Outcome, drawn, series  # noqa: E402

from ddpipe.jobs import BACKENDS  # noqa: E402
from ddpipe.kube.api import ApiServer, connect  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "kills.md"
AT_ONCE = 2
"""Namespaces of a backend."""


def done(admin: ApiServer, backend: str, kills: Sequence[Kill]) -> list[Outcome]:
    """Do the kills of one backend in a few namespaces, and print each as it ends."""

    def some(share: Sequence[Kill]) -> list[Outcome]:
        outcomes = []
        for outcome in series(admin, backend, share):
            kill = outcome.kill
            state = f"WRONG: {outcome.problem}\n{outcome.text}" if outcome.problem else "right"
            codes = f"{outcome.stage}, {outcome.codes}, {outcome.jobs_ever} jobs"
            print(f"{backend} {kill.number} {kill.way}: {codes}: {state}", flush=True)  # noqa: T201
            outcomes.append(outcome)
        return outcomes

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [one for share in pool.map(some, [kills[n::AT_ONCE] for n in range(AT_ONCE)]) for one in share]


def table(found: dict[str, list[Outcome]], seed: int) -> Iterator[str]:
    """The outcomes, by backend and way."""
    stages = ("no job yet", "job exists", "job removed", "ended")
    yield f"Seed {seed}. The four columns before the last ones: what had happened when the signal was sent."
    yield ""
    yield f"| backend | signals | kills | {' | '.join(stages)} | right | jobs or pods left |"
    yield "|---" * (5 + len(stages)) + "|"
    for backend, outcomes in found.items():
        for way in WAYS:
            mine = [one for one in outcomes if one.kill.way == way]
            counts = Counter(one.stage for one in mine)
            right, left = sum(not one.problem for one in mine), sum(one.left for one in mine)
            cells = " | ".join(str(counts[stage]) for stage in stages)
            yield f"| {backend} | {way} | {len(mine)} | {cells} | {right} | {left} |"


def main() -> None:
    """Kill, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    admin = connect()
    with ThreadPoolExecutor(len(given.backends)) as pool:
        running = {
            backend: pool.submit(done, admin, backend, list(drawn(given.seed + number, given.times)))
            for number, backend in enumerate(given.backends)
        }
        found = {backend: one.result() for backend, one in running.items()}
    RESULTS.write_text("\n".join(table(found, given.seed)) + "\n")


if __name__ == "__main__":
    main()
