"""Progress of long work: a bar on a terminal and in a notebook with widgets, lines in a log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from threading import Event, Thread
from typing import Any, NoReturn

from tqdm import tqdm

from ddpipe.processes.reports import metrics_of

log = logging.getLogger(__name__)

LOG_EVERY = 15.0  # seconds between two log lines
# Formats of log lines: with a total, without one.
LINES = ("{desc} {n} of {total}: {rate_fmt}, {remaining} left", "{desc} {n}: {rate_fmt}")
TRAINING_BAR = "{percentage:3.0f}%|{bar}| {elapsed}<{left}{postfix}"


def progress_bar(verb: str, total: int | None) -> tqdm[NoReturn]:
    """A bar with rate and time left; where nobody looks, a log line every `LOG_EVERY` seconds."""
    widget = widget_bar()
    is_seen = widget is not None or sys.stderr.isatty()
    bar: tqdm[NoReturn] = (widget or tqdm)(
        desc=verb,
        total=total,
        unit="img",
        leave=False,
        disable=total == 0,
        file=sys.stderr if is_seen else _Lines(),
        mininterval=0.1 if is_seen else LOG_EVERY,
        delay=0 if is_seen else LOG_EVERY,
        bar_format=None if is_seen else LINES[total is None],
    )
    return bar


class TimeLeft:
    """Of a bar that is given the time left: what tqdm makes of the first steps is far from it."""

    seconds_left: float | None = None

    @property
    def format_dict(self) -> MutableMapping[str, Any]:
        """With the time left, which is unknown at first."""
        left = "?" if self.seconds_left is None else tqdm.format_interval(self.seconds_left)
        return {**super().format_dict, "left": left}  # type: ignore[misc]  # tqdm's


@contextmanager
def followed(read: Callable[[], bytes]) -> Iterator[None]:
    """In a notebook, a bar of what a training in other processes last reported, one line of `name=value`."""
    if not (widget := widget_bar()):
        yield
        return
    bar = type("Bar", (TimeLeft, widget), {})(total=1, bar_format=TRAINING_BAR)
    ended = Event()

    def follow() -> None:
        while not ended.wait(1):
            # There may be no report yet, or it cannot be read: the training does not depend on it.
            with suppress(Exception):
                said = metrics_of(read().decode())
                bar.seconds_left = said.pop("seconds_left", None)
                scores = {name: value for name, value in said.items() if name not in {"progress", "step"}}
                bar.set_postfix(scores, refresh=False)
                bar.update(said["progress"] - bar.n)

    thread = Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
        ended.set()
        thread.join()
        bar.seconds_left = 0.0
        bar.update(1 - bar.n)
    finally:
        ended.set()
        thread.join()
        bar.close()


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    # Another thread, such as the tracker's, may be in the middle of importing it.
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    python = get_ipython()
    return hasattr(python, "kernel")


def widget_bar() -> Any:  # noqa: ANN401 - one of tqdm's classes
    """The class of a notebook's bars; None elsewhere, and without ipywidgets: a bar of text would be torn."""
    if not is_notebook() or not find_spec("ipywidgets"):
        return None
    from tqdm.auto import tqdm as auto  # noqa: PLC0415 - imports what only notebooks have

    return auto


class _Lines:
    """Turns what tqdm writes into log lines."""

    def write(self, text: str) -> None:
        if line := text.strip():
            log.info("%s", line)

    def flush(self) -> None:
        """Nothing is buffered."""
