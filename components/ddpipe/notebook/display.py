"""The live picture of a launch in a notebook's cell."""

from __future__ import annotations

import html
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

_INTERVAL = 1.0
"""Seconds between two updates."""

_COLORS = {"succeeded": "#1a7f37", "failed": "#cf222e", "stopped": "#9a6700", "lost": "#9a6700"}


class Shown(Protocol):
    """The part of a status that is shown."""

    @property
    def phase(self) -> str:
        """In one word."""

    @property
    def remark(self) -> str:
        """The launcher's last message."""

    @property
    def metrics(self) -> Any:  # noqa: ANN401 - numbers by name
        """The last numbers, by name."""

    @property
    def error(self) -> Any:  # noqa: ANN401 - an error or none
        """Why it failed."""


def html_of(name: str, uri: str, status: Shown, lines: Sequence[str]) -> str:
    """A launch as HTML: its phase, its numbers, and its error or last lines; all text is escaped."""
    numbers = ", ".join(f"{key} {value:g}" for key, value in status.metrics.items())
    text = str(status.error) if status.error else "\n".join(lines)
    color = _COLORS.get(status.phase, "#0969da")
    return (
        f'<div style="font-family: system-ui, sans-serif"><b>{html.escape(name)}</b> '
        f'<b style="color: {color}">{html.escape(status.phase)}</b> '
        f"<small>{html.escape(status.remark)}</small><br>"
        f"<small>{html.escape(uri)}</small>"
        + (f"<br>{html.escape(numbers)}" if numbers else "")
        + f'<pre style="max-height: 20em; overflow: auto; font-size: 85%">{html.escape(text)}</pre></div>'
    )


class Display:
    """One output of a cell, updated in place; nothing is shown outside a notebook."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._next = 0.0

    def show(self, picture: Callable[[], str], *, last: bool = False) -> None:
        """Update the output, at most once a second."""
        if not _in_notebook() or (time.monotonic() < self._next and not last):
            return
        shell: Any = importlib.import_module("IPython.display")  # only notebooks have it
        self._next = time.monotonic() + _INTERVAL
        if self._shown is None:
            self._shown = shell.display(shell.HTML(picture()), display_id=True)
        else:
            self._shown.update(shell.HTML(picture()))


def _in_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")
