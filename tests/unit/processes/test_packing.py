"""A function is shipped with everything that it uses, or rejected with the names of what cannot be."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddpipe.errors import CorruptObject, ParameterError, ReplicaFailed
from ddpipe.processes import packing
from ddpipe.processes.packing import is_shipped, packed, packed_functions, packed_value, run, unpacked_value

LOCK = threading.Lock()
FACTOR = 3


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has this file, as a notebook's has the modules that nobody installed."""
    monkeypatch.chdir(Path(__file__).parent)


def tripled(number: int) -> int:
    return FACTOR * number


def work(number: int, offset: int = 0) -> int:
    return tripled(number) + offset


def locked_helper() -> None:
    LOCK.acquire()


def calls_a_helper() -> None:
    locked_helper()


def factorial(number: int) -> int:
    return number * factorial(number - 1) if number else LOCK is None or 1


def elsewhere(content: bytes, sha256: str, folder: Path) -> str:
    """What the call prints, or the end of its error, in a process that cannot import this file."""
    path = folder / "call"
    path.write_bytes(content)
    code = (
        "import sys; from pathlib import Path; from ddpipe.processes.packing import run; "
        "print(run(Path(sys.argv[1]).read_bytes(), sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(path), sha256]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()


def test_function_ships_its_helpers_and_constants(tmp_path: Path) -> None:
    call = packed(work, {"number": 2, "offset": 1})
    assert elsewhere(call.content, call.sha256, tmp_path) == "7"
    assert "return tripled(number) + offset" in call.source


def test_script_gets_command_line_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse, sys\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--batch-size', type=int)\n"
        "if __name__ == '__main__':\n    print(parser.parse_args().batch_size * 2)\n    sys.exit(0)\n"
    )
    call = packed(script, {"batch_size": 21})
    assert (call.name, call.source) == ("train", script.read_text())
    script.unlink()
    assert elsewhere(call.content, call.sha256, tmp_path).splitlines() == ["42", "None"]


@pytest.mark.parametrize("used", [locked_helper, calls_a_helper])
def test_unpicklable_variable_is_named_with_its_user(used: object) -> None:
    with pytest.raises(ParameterError, match=r"the variable 'LOCK', a lock: .*\(used by locked_helper\)"):
        packed(used, {})  # type: ignore[arg-type]


def test_unpicklable_closure_and_argument_are_both_named() -> None:
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
def test_wrong_arguments_are_rejected_before_anything_runs(arguments: dict[str, object], seen: str) -> None:
    with pytest.raises(ParameterError, match=seen):
        packed(work, arguments)


@pytest.mark.parametrize("given", [print, len, "nowhere.py", Path(__file__).parent])
def test_neither_function_nor_script_is_rejected(given: object) -> None:
    with pytest.raises(ParameterError):
        packed(given, {})  # type: ignore[arg-type]


def test_script_with_a_syntax_error_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(:\n")
    with pytest.raises(ParameterError, match="invalid syntax"):
        packed(tmp_path / "train.py", {})


def test_call_with_too_much_data_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_BYTES", 10_000_000)
    with pytest.raises(ParameterError, match=r"it is 10 MB .* at most 10 MB .*Keep large data in a store"):
        packed(work, {"number": b"." * 10_000_000})


def test_changed_call_is_not_run() -> None:
    call = packed(work, {"number": 1})
    with pytest.raises(CorruptObject, match="changed after it was packed"):
        run(call.content + b" ", call.sha256)


def test_function_of_another_python_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    call = packed(work, {"number": 1})
    monkeypatch.setattr(packing, "PYTHON", "2.7")
    with pytest.raises(ParameterError, match=rf"by Python 3\.{sys.version_info[1]}, this is Python 2.7"):
        run(call.content, call.sha256)


def test_values_come_back_or_are_rejected() -> None:
    assert unpacked_value(packed_value({"loss": [0.5]})) == {"loss": [0.5]}
    with pytest.raises(ParameterError, match="a lock"):
        packed_value(threading.Lock())


def test_recursive_helper_is_searched_once() -> None:
    def helped() -> int:
        return factorial(3)

    with pytest.raises(ParameterError, match=r"the variable 'LOCK', a lock: .*\(used by factorial\)"):
        packed(helped, {})


def test_user_site_below_the_home_folder_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Kubeflow notebook works in the home folder, where pip keeps ~/.local/lib/python3.11/site-packages."""
    site = tmp_path / ".local/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (site / "a_library.py").write_text("")
    (tmp_path / "a_helper.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("a_library", "a_helper"):
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    assert [module.__name__ for module in packing._own_modules()] == ["a_helper"]


@pytest.mark.parametrize("code", ["1", "'no data'"])
def test_script_that_exits_with_an_error_fails(tmp_path: Path, code: str) -> None:
    (tmp_path / "train.py").write_text(f"import sys\nsys.exit({code})\n")
    call = packed(tmp_path / "train.py", {})
    with pytest.raises(ReplicaFailed, match=rf"sys.exit\({code}\)"):
        run(call.content, call.sha256)


def exiting() -> None:
    sys.exit(0)


def test_function_that_exits_with_0_fails() -> None:
    call = packed(exiting, {})
    with pytest.raises(ReplicaFailed, match=r"sys.exit\(0\)"):
        run(call.content, call.sha256)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a module, its neighbour and an environment."""
    (tmp_path / "own_neighbour.py").write_text("class Doubled:\n    def of(self, n):\n        return 2 * n\n")
    (tmp_path / "own_module.py").write_text(
        "from own_neighbour import Doubled\n\ndef doubled(n):\n    return Doubled().of(n)\n"
    )
    (tmp_path / "own_broken.py").write_text("import no_such_library\n")
    (site := tmp_path / "env/site-packages").mkdir(parents=True)
    (site / "own_installed.py").write_text("def doubled(n):\n    return n\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    for name in ("own_neighbour", "own_module", "own_broken", "own_installed"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # of the folder before
    return tmp_path


def test_functions_by_name_are_shipped_with_their_neighbours(folder: Path, tmp_path: Path) -> None:
    call = packed_functions(["own_module:doubled"])
    assert call
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "call").write_bytes(call.content)
    code = (
        "from pathlib import Path; from ddpipe.processes.packing import imported, run; "
        f"run(Path('call').read_bytes(), {call.sha256!r}); print(imported('own_module:doubled')(21))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=elsewhere, capture_output=True, text=True, check=False
    )
    assert done.stdout == "42\n", done.stderr


@pytest.mark.parametrize("name", ["own_installed:doubled", "json:dumps", "no_such:f", "no_such.module:f"])
def test_a_module_that_is_not_of_this_folder_is_left_to_the_image(folder: Path, name: str) -> None:
    assert not is_shipped(name)
    assert packed_functions([name]) is None


@pytest.mark.parametrize(
    ("name", "seen"), [("own_broken:f", "no_such_library"), ("own_module:nothing", "no attribute 'nothing'")]
)
def test_a_function_that_cannot_be_shipped_is_named(folder: Path, name: str, seen: str) -> None:
    with pytest.raises(ParameterError, match=seen) as refused:
        packed_functions([name])
    assert refused.value.which == name
