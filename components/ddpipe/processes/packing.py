"""Pack a function or a script with its arguments into bytes, and run it from these bytes elsewhere."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import runpy
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from ddpipe.errors import CorruptObject, ParameterError, ReplicaFailed, check_schema, listed

MOST_BYTES = 64 * 2**20  # limit of a packed call: every rank fetches it, so data belongs in a store
# A function is packed as bytecode, which no other version of Python can run.
PYTHON = "{}.{}".format(*sys.version_info)
# Folders of installed modules: of the user, of an environment, of the system.
_INSTALLED = {"site-packages", "dist-packages"}
Work = Callable[..., object] | str | Path  # a function, or the path of a script


@dataclass(frozen=True, slots=True)
class Call:
    """A packed function or script."""

    name: str
    source: str
    content: bytes  # a header, which is a line of JSON, then the pickled function or the script

    @property
    def sha256(self) -> str:
        """SHA-256 of its content, in hex."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The first line of a packed call, whose kind is "function" or "script"."""

    kind: str
    name: str
    python: str = PYTHON
    arguments: Sequence[str] = ()
    schema: int = 1


def packed(work: Work, arguments: Mapping[str, object]) -> Call:
    """Pack everything that other processes need to run `work`."""
    # A function ships the variables, helpers and modules of the notebook and of the working directory that it
    # uses; installed modules must be installed where it runs.
    call = _script(Path(work), arguments) if isinstance(work, str | Path) else _function(work, arguments)
    if len(call.content) > MOST_BYTES:
        raise _refused(
            call.name,
            f"it is {len(call.content) / 1e6:,.0f} MB with everything that it uses, and at most "
            f"{MOST_BYTES / 1e6:.0f} MB can be shipped",
            "Keep large data in a store or on a volume, and let the function read it from there.",
        )
    return call


def _script(path: Path, arguments: Mapping[str, object]) -> Call:
    try:
        source = path.read_text()
        compile(source, str(path), "exec")
    except (OSError, ValueError, SyntaxError) as error:
        raise _refused(str(path), str(error), "Give the path of a Python script, or a function.") from error
    given = [
        part for name, value in arguments.items() for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    header = _Header(kind="script", name=path.name, arguments=given)
    return Call(path.stem, source, _joined(header, source.encode()))


def _function(work: Callable[..., object], arguments: Mapping[str, object]) -> Call:
    if not isinstance(work, FunctionType):
        raise _refused(repr(work), "it is not a plain function", "Give a function, or the path of a script.")
    name = work.__name__
    try:
        inspect.signature(work).bind(**arguments)
    except TypeError as error:
        raise _refused(name, f"it cannot be called with these arguments: {error}", "Correct args.") from error
    with ExitStack() as stack:
        for module in _own_modules():
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            content = cloudpickle.dumps((work, dict(arguments)))
        except Exception as error:  # pickling an object may raise anything
            problems = [*_problems("argument", arguments), *_captured(work, set())] or [str(error)]
            raise _refused(
                name, listed(problems), "Create these inside the function, or pass what they are made from."
            ) from error
    return Call(name, _source(work), _joined(_Header(kind="function", name=name), content))


def _captured(work: FunctionType, seen: set[FunctionType]) -> Iterator[str]:
    """The variables of a function and of its helpers that cannot be pickled, each with the reason."""
    seen.add(work)
    found = inspect.getclosurevars(work)
    variables = {**found.globals, **found.nonlocals}
    shipped = {"__main__", *(module.__name__ for module in _own_modules())}
    for value in variables.values():
        if isinstance(value, FunctionType) and value not in seen and value.__module__ in shipped:
            yield from _captured(value, seen)
    others = {name: value for name, value in variables.items() if not isinstance(value, FunctionType)}
    for problem in _problems("variable", others):
        yield f"{problem} (used by {work.__name__})"


def _problems(kind: str, values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # noqa: BLE001 - as above
            yield f"the {kind} {name!r}, a {type(value).__name__}: {error}"


def _own_modules() -> list[ModuleType]:
    """Modules in the working directory that nobody has installed: no image has them."""
    found = [module for name, module in sys.modules.items() if name != "__main__"]
    return [module for module in found if _is_own(getattr(module, "__file__", None))]


def _is_own(file: str | None) -> bool:
    # The working directory of a notebook is often the home folder. What pip has put into ~/.local there, or
    # into an environment below it, is installed.
    here, installed = Path.cwd(), Path(sysconfig.get_path("stdlib"))
    package, path = Path(__file__).parents[1], Path(file or "")
    return (
        path.is_absolute()  # torch.ops calls itself _ops.py, wherever it is used
        and here in path.parents
        and not _INSTALLED.intersection(path.relative_to(here).parts)
        and not any(folder in path.parents for folder in (installed, package))
    )


def imported(name: str) -> Any:  # noqa: ANN401 - what the user has given this name
    """What was shipped as `package.module:function`, or is in Python's path or the working directory."""
    module, _, function = name.partition(":")
    _search_here()
    return _shipped[name] if name in _shipped else getattr(importlib.import_module(module), function)


def is_shipped(name: str) -> bool:
    """Whether the module of `package.module:function` is in the working directory: no image has it."""
    _search_here()
    with suppress(ImportError):  # of the package around it
        found = find_spec(name.partition(":")[0])
        return found is not None and _is_own(found.origin)
    return False


def packed_functions(names: Iterable[str]) -> Call | None:
    """Pack the functions that are shipped; None if there are none. `run` lets `imported` find them."""
    found = {}
    for name in filter(is_shipped, names):
        try:
            found[name] = imported(name)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise _refused(name, repr(error), "Correct it, or install here what it imports.") from error
    return packed(_ship, {"functions": found}) if found else None


_shipped: dict[str, Any] = {}


def _ship(functions: Mapping[str, Any]) -> None:
    _shipped.update(functions)


def _search_here() -> None:
    here = str(Path.cwd())  # as `python -m` looks there, and torchrun
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # stays: a function may import a neighbour when it is called


def _source(work: FunctionType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(work))
    except (OSError, TypeError):  # typed into an interpreter without a history
        return f"# the source of {work.__name__} is unknown\n"


def _joined(header: _Header, content: bytes) -> bytes:
    return json.dumps(asdict(header)).encode() + b"\n" + content


def run(content: bytes, sha256: str) -> object:
    """Run a packed call in this process, and return what it returns."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise CorruptObject(
            what="a call was changed after it was packed",
            which=sha256,
            seen=f"its content has the hash {found}",
            do="Launch it again under another name, and find out who can write to its folder.",
        )
    line, _, body = content.partition(b"\n")
    check_schema(values := json.loads(line), 1, sha256)
    header = _Header(**values)
    if header.kind == "script":
        _run_script(header, body)
        return None
    if header.python != PYTHON:
        raise ParameterError(
            what="a function cannot run here",
            which=header.name,
            seen=f"it was packed by Python {header.python}, this is Python {PYTHON}",
            do="Choose an image with the same version of Python, or launch a script: it is shipped as text.",
        )
    work, arguments = cloudpickle.loads(body)
    try:
        return work(**arguments)
    except SystemExit as ended:
        raise _exited(header, ended) from ended


def _run_script(header: _Header, source: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="ddpipe-") as folder:
        path = Path(folder, header.name)
        path.write_bytes(source)
        sys.argv = [header.name, *header.arguments]
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise _exited(header, ended) from ended


def _exited(header: _Header, ended: SystemExit) -> ReplicaFailed:
    """The error for a call that asked the process to exit; a script may do so with 0, a function may not."""
    return ReplicaFailed(
        what=f"the {header.kind} asked its process to exit",
        which=header.name,
        seen=f"it called sys.exit({ended.code!r})",
        do="Correct the cause if it reported one; a function returns its result, or raises an exception.",
    )


def packed_value(value: Any) -> bytes:  # noqa: ANN401 - the function's own type
    """Pack what a function returned."""
    try:
        content: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise ParameterError(
            what="the return value of the function cannot be sent back",
            which=f"a {type(value).__name__}",
            seen=str(error),
            do="Return plain values or tensors; leave files in $DDPIPE_OUTPUTS.",
        ) from error
    return content


def unpacked_value(content: bytes) -> Any:  # noqa: ANN401 - as above
    """Unpack what `packed_value` packed; runs code from it, so its origin must have been verified."""
    return cloudpickle.loads(content)


def _refused(which: str, seen: str, do: str) -> ParameterError:
    return ParameterError(what="this cannot be launched", which=which, seen=seen, do=do)
