"""Kill launchers at random moments, on the cluster of KUBECONFIG: is each job right, once, and nothing left?

    python benchmarks/random_kills.py [--backends pytorchjob trainjob indexedjob] [--times 100] [--grace 0.5]

Writes benchmarks/results/kills.md. An hour for 100 kills of each backend on two busy cores.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from kills import WAYS, Kill, Outcome, drawn, series  # noqa: E402

from ddpipe.jobs import BACKENDS  # noqa: E402
from ddpipe.kube.api import ApiServer, connect  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "kills.md"
AT_ONCE = 3
"""Namespaces of a backend."""

EVERY_SECONDS = 30.0
"""Between two tables."""


def done(admin: ApiServer, backend: str, kills: Sequence[Kill], found: list[Outcome]) -> None:
    """Do the kills of one backend in a few namespaces; each outcome is printed, and added to `found`."""

    def some(share: Sequence[Kill]) -> None:
        for outcome in series(admin, backend, share):
            state = f"WRONG: {outcome.problem}\n{outcome.text}" if outcome.problem else "right"
            codes = f"{outcome.stage}, {outcome.codes}, {outcome.jobs_ever} jobs"
            print(f"{backend} {outcome.kill.number} {outcome.kill.way}: {codes}: {state}", flush=True)  # noqa: T201
            found.append(outcome)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(some, [kills[number::AT_ONCE] for number in range(AT_ONCE)]))


def table(found: dict[str, list[Outcome]], seed: int, grace: float) -> Iterator[str]:
    """The outcomes, by backend and way."""
    stages = ("no job yet", "job exists", "job removed", "ended")
    yield f"Seed {seed}; SIGKILL comes {grace:g} s after SIGTERM."
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
    """Kill, and write the table now and then."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--grace", type=float, default=0.5, help="seconds from SIGTERM to SIGKILL")
    given = parser.parse_args()
    admin, found = connect(), {backend: list[Outcome]() for backend in given.backends}
    with ThreadPoolExecutor(len(found)) as pool:
        running = {
            pool.submit(done, admin, backend, list(drawn(given.seed + n, given.times, given.grace)), outcomes)
            for n, (backend, outcomes) in enumerate(found.items())
        }
        while running:
            ended, running = wait(running, timeout=EVERY_SECONDS)
            RESULTS.write_text("\n".join(table(found, given.seed, given.grace)) + "\n")
            for one in ended:
                one.result()


if __name__ == "__main__":
    main()
