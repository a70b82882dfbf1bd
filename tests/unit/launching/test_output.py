"""Lines are written in the background; only log lines wait for a slow reader."""

from __future__ import annotations

import io
from threading import Event, Thread

from ddpipe.launching.progress import MOST_LINES, Output


class Stuck(io.StringIO):
    """A stream that blocks until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.free = Event()

    def write(self, text: str) -> int:
        self.free.wait(60)
        return super().write(text)


def test_lines_are_in_order_and_the_launcher_s_are_marked() -> None:
    out = io.StringIO()
    output = Output(out)
    output.log("[worker-0] a")
    output.say("b")
    output.log("[worker-0] c")
    output.finish()
    assert out.getvalue() == "[worker-0] a\n[launch] b\n[worker-0] c\n"


def test_the_last_line_is_shown_at_once() -> None:
    shown = Event()

    class Terminal(io.StringIO):
        def flush(self) -> None:
            shown.set()

    Output(Terminal()).say("a")
    assert shown.wait(60)


def test_a_closed_stream_is_no_error() -> None:
    out = io.StringIO()
    out.close()
    output = Output(out)
    output.say("a")
    output.finish()


def test_a_stuck_reader_costs_the_launcher_s_own_lines() -> None:
    out = Stuck()
    output = Output(out)
    for number in range(MOST_LINES + 500):
        output.say(str(number))
    output.finish(silence=0.05)
    out.free.set()
    output.finish()
    lines = out.getvalue().splitlines()
    assert MOST_LINES <= len(lines) <= MOST_LINES + 1
    assert lines[MOST_LINES - 1] == f"[launch] {MOST_LINES - 1}"


def test_a_log_waits_for_a_slow_reader() -> None:
    out = Stuck()
    output = Output(out)
    writer = Thread(
        target=lambda: [output.log(str(number)) for number in range(MOST_LINES + 500)], daemon=True
    )
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()
    out.free.set()
    writer.join(60)
    output.finish()
    assert out.getvalue().splitlines() == [str(number) for number in range(MOST_LINES + 500)]
