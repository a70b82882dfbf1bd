"""Lines of a log: bounded, each once, for any text and any cut of the stream."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from itertools import count, pairwise
from types import FrameType

import pytest
from processes import in_proportion

from ddpipe.launching.loglines import (
    LONGEST,
    STATE_SECONDS,
    Line,
    Mark,
    instant,
    lines_of,
    unread,
)

STAMP = b"2026-01-01T00:00:00.000000001Z "


def line(second: str, text: str) -> bytes:
    return f"2026-01-01T00:00:{second}Z {text}\n".encode()


def texts(lines: Iterable[Line]) -> list[str]:
    return [line.text for line in lines]


def read(lines: Iterable[bytes], mark: Mark, earlier: tuple[Mark, ...] = (), **options: bool) -> list[str]:
    """What is new in these lines."""
    return texts(unread(lines_of(lines), mark, earlier, **options))


# --- bytes to lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 30, 31, 32, 1000])
def test_lines_are_the_same_however_the_stream_is_cut(size: int) -> None:
    log = line("01", "a b") + line("02", "") + line("03", "\r 1%\r 2%") + b"no time\n" + line("04.5", " c\r")
    pieces = [log[start : start + size] for start in range(0, len(log), size)]
    found = list(lines_of(pieces))
    assert texts(found) == ["a b", "", " 2%", "no time", " c"]
    assert [line.time is None for line in found] == [False, False, False, True, False]


def test_a_line_without_an_end_is_cut_until_the_container_ends() -> None:
    pieces = [line("01", "a"), STAMP + b"Segmentation fault"]
    assert texts(lines_of(pieces)) == ["a"]
    assert texts(lines_of(pieces, complete=True)) == ["a", "Segmentation fault"]
    assert texts(lines_of([line("01", "a")], complete=True)) == ["a"]


def test_bytes_that_are_no_utf_8_are_marked() -> None:
    """A script in another encoding, or a character that a pod's end cut in two."""
    assert texts(lines_of([STAMP + b"caf\xe9 \xe2\x82\n"])) == ["caf\ufffd \ufffd"]
    long = b"\xe9" * (3 * LONGEST) + b"\n"
    (shown,) = texts(lines_of([STAMP + long]))
    assert set(shown) == set(f"\ufffd [{2 * LONGEST} bytes]")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"\r 1%|#  |\r 2%|#  |\r100%|###|", "100%|###|"),
        (b"\r 50%|#  |\r           \rsaved", "saved"),
        (b"\r 50%|#  |\r           \r", " 50%|#  |"),
        (b"as Windows ends lines\r", "as Windows ends lines"),
        (b"   indented", "   indented"),
    ],
)
def test_a_rewritten_line_is_what_a_terminal_shows(written: bytes, shown: str) -> None:
    assert texts(lines_of([STAMP + written + b"\n"])) == [shown]


def test_a_bar_shows_its_latest_state_now_and_then() -> None:
    """The pieces come a second apart; states come often at first, then as rarely as is set."""
    pieces = [STAMP, *(b"00\r%d/2" % number for number in range(200)), b"00\n"]
    seconds = count()
    found = list(lines_of(pieces, clock=lambda: next(seconds)))
    assert [line.finished for line in found] == [False] * (len(found) - 1) + [True]
    states = [int(line.text.partition("/")[0]) for line in found[1:-1]]
    pauses = [later - earlier for earlier, later in pairwise(states)]
    assert pauses[0] <= 4, "something is seen of a bar that stops early"
    assert pauses == sorted(pauses)
    assert all(STATE_SECONDS - 2 <= pause <= STATE_SECONDS for pause in pauses[-3:])
    assert found[-1].text == "199/200"
    assert all(line.text.endswith("/200") for line in found[1:]), "no state that has come by half"


def test_states_come_after_ever_longer_pauses() -> None:
    now, shown = 0.0, list[float]()

    def pieces() -> Iterator[bytes]:
        nonlocal now
        yield STAMP + b"\r0/2"
        for number in range(1, 200):
            now = number / 2
            yield b"00\r%d/2" % number

    for found in lines_of(pieces(), clock=lambda: now):
        assert not found.finished
        shown.append(now)
    assert shown == [1, 3, 7, 15, 31, 61, 91]


def test_a_plain_line_in_pieces_shows_no_state() -> None:
    seconds = count(step=1000)
    pieces = [STAMP, b"half of", b" a line", b"\n"]
    assert texts(lines_of(pieces, clock=lambda: next(seconds))) == ["half of a line"]


def test_a_line_of_four_kibibytes_is_shown_whole() -> None:
    (found,) = lines_of([STAMP + b"x" * 4096 + b"\n"])
    assert found.text == "x" * 4096


@pytest.mark.parametrize("middle", [1, LONGEST - 1, LONGEST, LONGEST + 1, 10_000_000])
def test_a_long_line_keeps_its_beginning_and_end(middle: int) -> None:
    text = b"begin".ljust(LONGEST // 2) + b"x" * middle + b"end".rjust(LONGEST // 2)
    (found,) = lines_of([STAMP + text + b"\n"])
    assert found.text == f"{'begin':{LONGEST // 2}} [{middle} bytes] {'end':>{LONGEST // 2}}"


def test_a_line_without_an_end_takes_bounded_memory() -> None:
    """A bar that never ends its line, read in small pieces, as from 32 pods for a day."""
    tracemalloc.start()
    (found,) = lines_of((STAMP, *[b"#" * 2**16] * 200), complete=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.text) < LONGEST + 100
    assert peak < 2**20


def calls(function: Callable[[], object]) -> int:
    """How many calls of functions, Python's and built-in ones, a function takes."""
    made = 0

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal made
        made += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return made


@pytest.mark.parametrize("text", [b"\r 10%|#  | 10/100 loss=0.5", b"x" * 26])
def test_four_times_as_long_a_line_takes_four_times_the_work(text: bytes) -> None:
    def pieces(repeats: int) -> list[bytes]:
        data = STAMP + text * repeats
        return [data[start : start + 1024] for start in range(0, len(data), 1024)]

    def made(repeats: int) -> int:
        line = pieces(repeats)
        return calls(lambda: list(lines_of(line)))

    def seconds(repeats: int) -> float:
        line = pieces(repeats)
        began = time.process_time()
        list(lines_of(line))
        return time.process_time() - began

    assert made(160_000) < 5 * made(40_000)
    assert in_proportion(seconds, 40_000), "bytes may not be copied again for each piece either"


# --- what was read before -----------------------------------------------------------------------------------


def test_the_first_and_the_last_line_are_among_those_that_were_read() -> None:
    mark = Mark()
    for moment in ((5, 1), (6, 0), (7, 2)):
        mark.move(moment)
    assert [mark.spans(moment) for moment in ((5, 0), (5, 1), (7, 2), (7, 3))] == [False, True, True, False]


def test_lines_seen_before_a_cut_are_skipped_after_it() -> None:
    mark = Mark()
    assert read([line("01", "a"), line("02.5", "b")], mark) == ["a", "b"]
    assert mark.since == {"sinceTime": "2026-01-01T00:00:02Z"}
    assert read([line("02.5", "b"), line("02.6", "c")], mark) == ["c"]


def test_lines_of_one_instant_are_counted() -> None:
    mark = Mark()
    read([line("01.5", "a"), line("01.5", "b")], mark)
    assert read([line("01.5", "a"), line("01.5", "b"), line("01.5", "c")], mark) == ["c"]
    assert read([line("01.5", text) for text in "abcd"], mark) == ["d"]


def test_only_lines_of_one_instant_are_counted() -> None:
    mark = Mark()
    read([line("01", "a"), line("02.5", "b")], mark)
    assert read([line("02.5", "b"), line("02.5", "c")], mark) == ["c"]


def test_times_without_their_last_zeros_are_in_order() -> None:
    lines = [line("05", "a"), line("05.09", "b"), line("05.1", "c")]
    mark = Mark()
    assert read(lines, mark) == ["a", "b", "c"]
    assert read(lines, mark) == []


def test_times_of_a_node_s_own_zone_are_asked_for_as_such() -> None:
    """containerd writes local time; without its zone, two hours of a log were skipped after a cut."""
    mark = Mark()
    read([b"2026-01-01T02:00:05.5+02:00 a\n"], mark)
    assert mark.since == {"sinceTime": "2026-01-01T00:00:05Z"}
    assert instant("2026-01-01T02:00:05.5+02:00") == instant("2026-01-01T00:00:05.500000000Z")


@pytest.mark.parametrize("stamp", ["unable", "", "2026-13-01T00:00:00Z", "2026-01-01"])
def test_text_that_is_no_time_is_none(stamp: str) -> None:
    assert instant(stamp) is None


def test_the_kubelet_s_own_errors_are_no_lines_of_a_rank_and_move_no_mark() -> None:
    mark = Mark()
    message = b"unable to retrieve container logs for containerd://1\n"
    assert read([line("01", "a"), message], mark) == ["a"]
    assert mark.since == {"sinceTime": "2026-01-01T00:00:01Z"}


def test_the_rest_of_a_line_that_was_read_is_skipped() -> None:
    """A runtime stores a long line in parts, and the API leaves out old ones, with its time."""
    mark = Mark()
    assert read([line("46.8", "\r1%\r2%"), line("50.7", "a")], mark) == ["2%", "a"]
    assert read([b"5%\r2%\n", line("50.7", "a"), line("51", "b")], mark) == ["b"]


def test_a_clock_that_is_set_back_costs_no_line() -> None:
    mark = Mark()
    assert read([line("50", "a"), line("51", "b"), line("10", "c"), line("11", "d")], mark) == list("abcd")
    assert mark.since == {"sinceTime": "2026-01-01T00:00:11Z"}
    after = [line("50", "a"), line("51", "b"), line("11", "d"), line("12", "e"), line("50.5", "f")]
    assert read(after, mark) == ["e", "f"]


def test_a_clock_set_back_and_a_rotated_log_cost_no_line() -> None:
    """The lines from before are gone from the answer: the last one that was read shows where it is."""
    mark = Mark()
    read([line("50", "a"), line("51", "b"), line("10", "c")], mark)
    assert read([line("10", "c"), line("50.5", "d")], mark) == ["d"]


def test_a_log_read_before_is_known_by_its_first_line() -> None:
    earlier, mark = Mark(), Mark()
    read([line("01", "a"), line("02", "b")], earlier)
    assert read([line("01", "a"), line("02", "b"), line("03", "c")], mark, (earlier,)) == ["c"]


def test_another_log_within_the_times_of_an_earlier_one_is_new() -> None:
    """The node's clock was set back between two runs of the container."""
    earlier = Mark()
    read([line("01", "a"), line("50", "b")], earlier)
    assert read([line("10", "c"), line("11", "d")], Mark(), (earlier,)) == ["c", "d"]


def test_a_rotated_log_continues_after_what_was_read_of_it() -> None:
    earlier = Mark()
    read([line("01", "a"), line("02", "b"), line("03", "c")], earlier)
    assert read(
        [line("02", "b"), line("03", "c"), line("04", "d")], Mark(), (earlier,), was_rotated=True
    ) == ["d"]


def test_the_first_line_identifies_a_log_before_its_times_do() -> None:
    longer, same = Mark(), Mark()
    read([line("01", "a"), line("50", "z")], longer)
    read([line("10", "b")], same)
    assert read([line("10", "b"), line("11", "c")], Mark(), (longer, same), was_rotated=True) == ["c"]


def test_the_state_of_an_unfinished_line_moves_no_mark() -> None:
    def states() -> Iterator[Line]:
        yield Line((1, 0), "1%", finished=False)
        yield Line((1, 0), "2%", finished=False)

    mark = Mark()
    assert texts(unread(states(), mark)) == ["1%", "2%"]
    assert mark == Mark()
