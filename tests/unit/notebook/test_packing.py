"""A function travels with all that it needs, or is refused with the names of what keeps it back."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddpipe.errors import CorruptObject, ParameterError
from ddpipe.notebook import packing
from ddpipe.notebook.packing import packed, packed_value, run, unpacked_value

LOCK = threading.Lock()
FACTOR = 3


def tripled(number: int) -> int:
    return FACTOR * number


def work(number: int, offset: int = 0) -> int:
    return tripled(number) + offset


def locked_helper() -> None:
    LOCK.acquire()


def calls_a_helper() -> None:
    locked_helper()


def elsewhere(content: bytes, sha256: str, folder: Path) -> str:
    """What the call prints, or the end of its error, in a process that knows nothing of this file."""
    (folder / "call").write_bytes(content)
    code = (
        "import sys; from pathlib import Path; from ddpipe.notebook.packing import run; "
        "print(run(Path('call').read_bytes(), sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, sha256], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr.strip()


def test_a_function_takes_its_helpers_and_constants_along(tmp_path: Path) -> None:
    call = packed(work, {"number": 2, "offset": 1})
    assert elsewhere(call.content, call.sha256, tmp_path) == "7"
    assert "return tripled(number) + offset" in call.source


def test_a_script_gets_its_arguments_as_a_command_line_has_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse, sys\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--batch-size', type=int)\n"
        "if __name__ == '__main__':\n    print(parser.parse_args().batch_size * 2)\n    sys.exit(0)\n"
    )
    call = packed(script, {"batch_size": 21})
    script.unlink()
    assert elsewhere(call.content, call.sha256, tmp_path).splitlines() == ["42", "None"]


@pytest.mark.parametrize("used", [locked_helper, calls_a_helper])
def test_a_variable_that_cannot_travel_is_named_with_who_uses_it(used: object) -> None:
    with pytest.raises(ParameterError, match=r"the variable 'LOCK', a lock: .*\(used by locked_helper\)"):
        packed(used, {})  # type: ignore[arg-type]


def test_a_closure_and_an_argument_that_cannot_travel_are_both_named() -> None:
    lock = threading.Lock()

    def train(file: object) -> object:
        return lock, file

    with pytest.raises(ParameterError) as refused:
        packed(train, {"file": threading.Lock()})
    assert "2 problems" in refused.value.seen
    assert "the argument 'file', a lock" in refused.value.seen
    assert "the variable 'lock', a lock" in refused.value.seen


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [({}, "missing a required argument: 'number'"), ({"number": 1, "x": 2}, "unexpected keyword argument")],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_runs(
    arguments: dict[str, object], seen: str
) -> None:
    with pytest.raises(ParameterError, match=seen):
        packed(work, arguments)


@pytest.mark.parametrize("given", [print, len, "nowhere.py", Path(__file__).parent])
def test_what_is_neither_function_nor_script_is_refused(given: object) -> None:
    with pytest.raises(ParameterError):
        packed(given, {})  # type: ignore[arg-type]


def test_a_script_with_a_slip_is_refused_here_not_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(:\n")
    with pytest.raises(ParameterError, match="invalid syntax"):
        packed(tmp_path / "train.py", {})


def test_a_call_with_too_much_data_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_BYTES", 10_000_000)
    with pytest.raises(ParameterError, match=r"it is 10 MB .* at most 10 MB"):
        packed(work, {"number": b"." * 10_000_000})


def test_a_call_that_was_changed_on_the_way_is_not_run() -> None:
    call = packed(work, {"number": 1})
    with pytest.raises(CorruptObject, match="not what was packed"):
        run(call.content + b" ", call.sha256)


def test_a_function_of_another_python_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    call = packed(work, {"number": 1})
    monkeypatch.setattr(packing, "PYTHON", "2.7")
    with pytest.raises(ParameterError, match=rf"from Python 3\.{sys.version_info[1]}, this is Python 2.7"):
        run(call.content, call.sha256)


def test_values_come_back_or_are_refused() -> None:
    assert unpacked_value(packed_value({"loss": [0.5]})) == {"loss": [0.5]}
    with pytest.raises(ParameterError, match="a lock"):
        packed_value(threading.Lock())
