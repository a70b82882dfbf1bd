"""What preparing and reading cost on many machines, on paper: the tables of two pages of the documentation.

    python benchmarks/cost_at_scale.py

prepare    one process lists the source; pods read and encode their shares, until CPUs, network or store are
           the limit; one process copies what they encoded into the shards that it would have written alone
read       a split that fits into the cache is copied once by each node; of a larger one, a node reads its own
           share in each epoch, one request for an image
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

MEASURED = Path(__file__).parent / "results" / "data.md"

IMAGES, SHARDS, SOURCE_BYTES, SPLIT_BYTES = 1_300_000, 2236, 650 * 10**9, 150 * 10**9

REQUESTS = 5500
"""GET requests per second that S3 publishes for each partition of a bucket's keys."""

BANDWIDTH = 10e9 / 8
"""Bytes per second of a machine's network."""

PAGE, PAGE_SECONDS = 1000, 0.1
"""Keys in an answer of S3, and how long one takes."""

CACHES = {"200 GB": 200 * 10**9, "50 GB": 50 * 10**9}


@dataclass(frozen=True, slots=True)
class Preparing:
    """The least number of seconds that each part of preparing takes, and what bounds the encoding."""

    survey: float
    encode: float
    publish: float
    bound: str


def preparing(pods: int, cpus: int, encode: float, copy: float) -> Preparing:
    """What preparing costs, if encoding and copying an image take so many seconds of one CPU."""
    bounds = {
        "CPUs": IMAGES * encode / cpus / pods,
        "network": (SOURCE_BYTES + SPLIT_BYTES) / BANDWIDTH / pods,
        "store": IMAGES / REQUESTS,
    }
    bound = max(bounds, key=bounds.__getitem__)
    publish = max(IMAGES * copy / cpus, 2 * SPLIT_BYTES / BANDWIDTH, SHARDS / REQUESTS)
    survey = math.ceil(IMAGES / PAGE) * PAGE_SECONDS
    return Preparing(survey, bounds[bound], publish if pods > 1 else 0.0, bound)


def measured(part: str) -> float:
    """Seconds of one CPU for a photograph, from the benchmark."""
    found = re.search(rf"^\| {re.escape(part)} \| ([\d.]+) \|$", MEASURED.read_text(), re.MULTILINE)
    if not found:
        raise LookupError(part)
    return float(found[1]) / 1000


def preparing_table() -> str:
    """The table of docs/guides/sources.md."""
    copy = measured("reading the file") + measured("its hash, size and orientation")
    rows = [
        "| pods | CPUs of each | survey s | encode s | bound by | publish s | in all s |",
        "|" + "---|" * 7,
    ]
    for cpus in (2, 8):
        for pods in (1, 8, 64):
            found = preparing(pods, cpus, measured("prepare as a whole"), copy)
            parts = f"{found.survey:,.0f} | {found.encode:,.0f} | {found.bound} | {found.publish:,.0f}"
            total = found.survey + found.encode + found.publish
            rows.append(f"| {pods} | {cpus} | {parts} | {total:,.0f} |")
    return "\n".join(rows)


def reading(nodes: int, room: int) -> list[tuple[int, int, float]]:
    """Bytes of a node, requests of all nodes and least seconds: before the first step, and of an epoch."""

    def cost(size: int, requests: int) -> tuple[int, int, float]:
        return size, requests, max(requests / REQUESTS, size / BANDWIDTH)

    if room >= SPLIT_BYTES:
        return [cost(SPLIT_BYTES, nodes * SHARDS), cost(0, 0)]
    # At the start a node reads the head of each shard, which lists its images: a few KB.
    return [cost(0, nodes * SHARDS), cost(-(-SPLIT_BYTES // nodes), IMAGES)]


def reading_table() -> str:
    """The table of docs/explanation/reading.md."""
    columns = "GB a node | requests | requests/s | s"
    rows = [f"| nodes | cache | start: {columns} | epoch: {columns} |", "|" + "---|" * 10]
    for cache, room in CACHES.items():
        for nodes in (8, 64, 512):
            cells = " | ".join(_cells(*cost) for cost in reading(nodes, room))
            rows.append(f"| {nodes} | {cache} | {cells} |")
    return "\n".join(rows)


def _cells(size: int, requests: int, seconds: float) -> str:
    rate = requests / seconds if seconds else 0
    return f"{size / 1e9:,.1f} | {requests:,} | {rate:,.0f} | {seconds:,.0f}"


if __name__ == "__main__":
    sys.stdout.write(f"{preparing_table()}\n\n{reading_table()}\n")
