"""What reading costs on many nodes: the numbers of docs/explanation/reading.md, and their limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpipe.data.at_scale import Cost, Limits, Size, Way, cost, fetch_order, way

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "reading.md"
SPLIT = Size(bytes=150 * 10**9, shards=2236, images=1_300_000)
CACHES = {"200 GB": 200 * 10**9, "50 GB": 50 * 10**9}
NODES = (8, 64, 512)


def table() -> str:
    """The costs as the documentation shows them."""
    columns = "GB a node | requests | requests/s | s"
    head = f"| nodes | cache | start: {columns} | epoch: {columns} |"
    rows = [_row(nodes, name, cost(SPLIT, nodes, room)) for name, room in CACHES.items() for nodes in NODES]
    return "\n".join([head, "|" + "---|" * 10, *rows])


def _row(nodes: int, cache: str, found: Cost) -> str:
    start = _cells(found.start_bytes, found.start_requests, found.start_seconds)
    epoch = _cells(found.epoch_bytes, found.epoch_requests, found.epoch_seconds)
    return f"| {nodes} | {cache} | {start} | {epoch} |"


def _cells(size: int, requests: int, seconds: float) -> str:
    rate = requests / seconds if seconds else 0
    return f"{size / 1e9:,.1f} | {requests:,} | {rate:,.0f} | {seconds:,.0f}"


def test_the_table_of_the_documentation_is_computed() -> None:
    assert table() in PAGE.read_text(), table()


@pytest.mark.parametrize("nodes", NODES)
def test_a_split_that_fits_is_read_once_by_each_node(nodes: int) -> None:
    found = cost(SPLIT, nodes, SPLIT.bytes)
    assert found.way is Way.COPIED
    assert (found.start_bytes, found.start_requests) == (SPLIT.bytes, nodes * SPLIT.shards)
    assert (found.epoch_bytes, found.epoch_requests, found.epoch_seconds) == (0, 0, 0)


@pytest.mark.parametrize("nodes", NODES)
def test_of_a_larger_split_a_node_reads_its_share(nodes: int) -> None:
    found = cost(SPLIT, nodes, SPLIT.bytes - 1)
    assert found.way is Way.PARTS
    assert found.start_bytes == 0
    assert found.epoch_bytes * nodes == pytest.approx(SPLIT.bytes, rel=1e-6)
    assert found.epoch_requests == SPLIT.images


def test_the_slower_limit_decides() -> None:
    """10 GB at 1 GB/s take 10 s; 100 requests at 5 per second take 20 s."""
    split = Size(bytes=10 * 10**9, shards=100, images=1000)
    assert cost(split, 1, split.bytes, Limits(requests=1e9, bandwidth=1e9)).start_seconds == 10
    assert cost(split, 1, split.bytes, Limits(requests=5, bandwidth=1e9)).start_seconds == 20
    assert cost(split, 2, split.bytes, Limits(requests=5, bandwidth=1e9)).start_seconds == 40
    assert cost(split, 2, 0, Limits(requests=1e9, bandwidth=1e9)).epoch_seconds == 5
    assert cost(split, 2, 0, Limits(requests=5, bandwidth=1e9)).epoch_seconds == 200


def test_what_fits_exactly_is_copied() -> None:
    assert (way(5, 5), way(6, 5)) == (Way.COPIED, Way.PARTS)


def test_nodes_begin_at_different_shards_and_fetch_all() -> None:
    orders = [fetch_order(2236, f"node-{number}") for number in range(64)]
    assert all(sorted(order) == list(range(2236)) for order in orders)
    assert len({order[0] for order in orders}) > 55
    assert fetch_order(2236, "node-1") == orders[1]
    assert fetch_order(0, "node") == []
