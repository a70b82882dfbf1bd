"""What preparing costs on many machines: the numbers of docs/guides/sources.md, and their limits."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ddpipe.data.at_scale import Limits
from ddpipe.prepare.at_scale import Source, Work, cost

ROOT = Path(__file__).parents[3]
PAGE, MEASURED = ROOT / "docs" / "guides" / "sources.md", ROOT / "benchmarks" / "results" / "data.md"
SOURCE = Source(images=1_300_000, bytes=650 * 10**9, encoded=150 * 10**9, shards=2236)
NODES = (1, 8, 64)


def measured(part: str) -> float:
    """Seconds of one CPU for a photograph, from the benchmark."""
    found = re.search(rf"^\| {re.escape(part)} \| ([\d.]+) \|$", MEASURED.read_text(), re.MULTILINE)
    assert found, part
    return float(found[1]) / 1000


def work(cpus: int = 8) -> Work:
    copied = measured("reading the file") + measured("its hash, size and orientation")
    return Work(encode=measured("prepare as a whole"), copy=copied, cpus=cpus)


def table() -> str:
    """The costs as the documentation shows them."""
    head = "| pods | CPUs of each | survey s | encode s | bound by | publish s | in all s |"
    rows = [_row(nodes, cpus) for cpus in (2, 8) for nodes in NODES]
    return "\n".join([head, "|" + "---|" * 7, *rows])


def _row(nodes: int, cpus: int) -> str:
    found = cost(SOURCE, nodes, work(cpus))
    parts = f"{found.survey:,.0f} | {found.encode:,.0f} | {found.bound} | {found.publish:,.0f}"
    return f"| {nodes} | {cpus} | {parts} | {found.total:,.0f} |"


def test_the_table_of_the_guide_is_computed() -> None:
    assert table() in PAGE.read_text(), table()


def test_pods_share_the_encoding_until_the_store_is_the_limit() -> None:
    plain = Work(encode=0.01, copy=0.0, cpus=1)
    source = replace(SOURCE, images=5500, bytes=0, encoded=0)
    assert [cost(source, nodes, plain).encode for nodes in (1, 5, 50, 55, 500)] == [55, 11, 1.1, 1, 1]
    assert cost(source, 54, plain).bound == "CPUs"
    assert cost(source, 56, plain).bound == "store"


def test_large_files_are_bound_by_the_network() -> None:
    found = cost(SOURCE, 4, Work(encode=0.0, copy=0.0, cpus=1), Limits(requests=1e9, bandwidth=1e9))
    assert found.bound == "network"
    assert found.encode == pytest.approx(200)
    assert found.publish == pytest.approx(300), "read and written by one process"


def test_one_process_writes_its_shards_only_once() -> None:
    assert cost(SOURCE, 1, work()).publish == 0


def test_copying_small_images_is_bound_by_the_cpus() -> None:
    source = replace(SOURCE, encoded=0)
    assert cost(source, 2, Work(encode=0.0, copy=0.008, cpus=8)).publish == pytest.approx(1300)


def test_a_page_of_keys_is_an_answer() -> None:
    pages = [cost(replace(SOURCE, images=images), 1, work()).survey for images in (1, 1000, 1001)]
    assert pages == pytest.approx([0.1, 0.1, 0.2])
