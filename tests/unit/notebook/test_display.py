"""The output of a cell: updated in place in a notebook, nothing elsewhere."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from ddpipe.notebook.handle import Display


class Shown:
    """Notes what an output shows, one text after the other."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def update(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What a notebook's only output shows."""
    found, display = Shown(), ModuleType("IPython.display")

    def show(text: str, *, display_id: bool) -> Shown:
        assert display_id, "it cannot be updated otherwise"
        found.texts.append(text)
        return found

    display.display, display.HTML = show, str  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


def in_shell(monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    module = ModuleType("IPython")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)


def test_a_notebook_has_one_output_that_is_updated(monkeypatch: pytest.MonkeyPatch, shown: Shown) -> None:
    in_shell(monkeypatch, SimpleNamespace(kernel=object()))
    display = Display()
    display.show(lambda: "begun")
    display.show(lambda: "too soon")
    display.show(lambda: "over", last=True)
    assert shown.texts == ["begun", "over"]


@pytest.mark.parametrize("shell", [None, SimpleNamespace()])
def test_nothing_is_shown_outside_a_notebook(
    shell: object, monkeypatch: pytest.MonkeyPatch, shown: Shown
) -> None:
    """A terminal's IPython has a shell, too, but no kernel."""
    in_shell(monkeypatch, shell)
    Display().show(lambda: "text", last=True)
    assert shown.texts == []
