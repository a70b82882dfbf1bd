"""What people read never makes the launcher wait, unless it is a log."""

from __future__ import annotations

import io
from threading import Event, Thread

from ddpipe.launching.output import Output


class Stuck(io.StringIO):
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.free = Event()

    def write(self, text: str) -> int:
        self.free.wait(10)
        return super().write(text)


def test_lines_come_in_order_and_ours_are_marked() -> None:
    out = io.StringIO()
    output = Output(out)
    output.log("[worker-0] a")
    output.say("b")
    output.log("[worker-0] c")
    output.finish()
    assert out.getvalue() == "[worker-0] a\n[launch] b\n[worker-0] c\n"


def test_a_line_that_nothing_follows_is_shown_at_once() -> None:
    shown = Event()

    class Terminal(io.StringIO):
        def flush(self) -> None:
            shown.set()

    Output(Terminal()).say("a")
    assert shown.wait(10)


def test_nobody_who_listens_is_no_error() -> None:
    out = io.StringIO()
    out.close()
    output = Output(out)
    output.say("a")
    output.finish()


def test_while_the_reader_is_stuck_ours_are_dropped_and_the_end_is_not_waited_for() -> None:
    out = Stuck()
    output = Output(out)
    for number in range(10_500):
        output.say(str(number))
    output.finish(silence=0.05)
    out.free.set()
    output.finish()
    lines = out.getvalue().splitlines()
    assert 10_000 <= len(lines) <= 10_001
    assert lines[9_999] == "[launch] 9999"


def test_a_log_waits_for_a_slow_reader_and_loses_no_line() -> None:
    out = Stuck()
    output = Output(out)
    writer = Thread(target=lambda: [output.log(str(number)) for number in range(10_500)], daemon=True)
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()
    out.free.set()
    writer.join(10)
    output.finish()
    assert out.getvalue().splitlines() == [str(number) for number in range(10_500)]
