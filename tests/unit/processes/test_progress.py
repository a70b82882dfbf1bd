"""What a notebook shows of a training in other processes: one bar, from its last report."""

from __future__ import annotations

import sys
from threading import Event
from types import ModuleType, SimpleNamespace

import pytest

from ddpipe.processes import progress
from ddpipe.processes.progress import followed, is_notebook


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("IPython")
    module.get_ipython = lambda: SimpleNamespace(kernel=object(), config={})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setattr(progress, "find_spec", lambda _name: "found")


@pytest.mark.usefixtures("notebook")
def test_the_last_report_is_shown_with_the_time_left_and_the_score(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reports = iter([b"", b"progress=0.1 step=1", b"progress=0.4 step=4 accuracy=0.9 seconds_left=75"])
    seen = Event()

    def read() -> bytes:
        if (report := next(reports, None)) is None:
            seen.set()
            raise OSError("not there")
        return report

    with followed(read):
        assert seen.wait(30)
    shown = capsys.readouterr().err
    assert "<?" in shown, "no time left before it is known"
    assert " 40%|" in shown
    assert "<01:15, accuracy=0.9" in shown
    assert "100%|" in shown


@pytest.mark.usefixtures("notebook")
def test_a_training_that_fails_leaves_the_bar_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), followed(lambda: b""):
        raise ZeroDivisionError
    assert "100%" not in capsys.readouterr().err


def test_elsewhere_nothing_is_read() -> None:
    assert not is_notebook()
    with followed(lambda: pytest.fail("it was read")):
        pass
