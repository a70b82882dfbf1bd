"""A function with its arguments, or a script with its own, as bytes; and back again where they are run."""

from __future__ import annotations

import hashlib
import inspect
import json
import runpy
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from ddpipe.errors import CorruptObject, ParameterError, listed

MOST_BYTES = 64 * 2**20
"""Of a call: data belongs into a store, and a call is fetched by every rank."""

PYTHON = "{}.{}".format(*sys.version_info)
"""Bytecode of one is nothing to another."""

Work = Callable[..., object] | str | Path
"""A function, or the path of a script."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is to be run.

    Attributes:
        name: Of the function, or of the script.
        source: Its text, as far as it is known.
        content: All of it: a line of JSON that says what it is, then the function or the script.
    """

    name: str
    source: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Of its content, in hex."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The first line of a packed call.

    Attributes:
        kind: "function" or "script".
        name: Of either.
        python: That packed it.
        arguments: Of a script, as its command line has them.
    """

    kind: str
    name: str
    python: str = PYTHON
    arguments: Sequence[str] = ()


def packed(work: Work, arguments: Mapping[str, object]) -> Call:
    """Everything that other processes need to run `work`.

    A function takes along what it uses of a notebook or of modules in the working directory; installed
    modules have to be where it runs.

    Args:
        work: A function, or the path of a script.
        arguments: The function's, by name; those of a script become `--name value`.

    Raises:
        ParameterError: It cannot travel: each variable or argument that cannot is named.
    """
    call = _script(Path(work), arguments) if isinstance(work, str | Path) else _function(work, arguments)
    if len(call.content) > MOST_BYTES:
        raise _refused(
            call.name,
            f"it is {len(call.content) / 1e6:,.0f} MB with all that it takes along, at most "
            f"{MOST_BYTES / 1e6:.0f} MB can travel",
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
        raise _refused(repr(work), "it is no plain function", "Give a function, or the path of a script.")
    name = work.__name__
    try:
        inspect.signature(work).bind(**arguments)
    except TypeError as error:
        raise _refused(name, f"it cannot be called so: {error}", "Correct args.") from error
    with _by_value(_own_modules()):
        try:
            content = cloudpickle.dumps((work, dict(arguments)))
        except Exception as error:  # objects raise whatever they like when they are pickled
            problems = [*_problems("argument", arguments), *_captured(work, set())] or [str(error)]
            raise _refused(
                name,
                listed(problems),
                "Make these inside of the function, or hand over what they are made of.",
            ) from error
    return Call(name, _source(work), _joined(_Header(kind="function", name=name), content))


def _captured(work: FunctionType, seen: set[FunctionType]) -> Iterator[str]:
    """What is wrong with the variables that a function takes along, and those that its helpers do."""
    seen.add(work)
    found = inspect.getclosurevars(work)
    variables = {**found.globals, **found.nonlocals}
    for value in variables.values():
        if isinstance(value, FunctionType) and value not in seen and _travels(value):
            yield from _captured(value, seen)
    others = {name: value for name, value in variables.items() if not isinstance(value, FunctionType)}
    for problem in _problems("variable", others):
        yield f"{problem} (used by {work.__name__})"


def _travels(function: FunctionType) -> bool:
    module = sys.modules.get(function.__module__)
    return function.__module__ == "__main__" or (module is not None and module in _own_modules())


def _problems(kind: str, values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # noqa: BLE001 - as above
            yield f"the {kind} {name!r}, a {type(value).__name__}: {error}"


def _own_modules() -> list[ModuleType]:
    """Modules that lie in the working directory: nobody has installed them anywhere else."""
    here = Path.cwd()
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")}
    package = Path(__file__).parents[1]
    return [
        module
        for name, module in list(sys.modules.items())
        if name != "__main__"
        and (file := getattr(module, "__file__", None))
        and here in (path := Path(file).absolute()).parents
        and not any(folder in path.parents for folder in (*installed, package))
    ]


@contextmanager
def _by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    with ExitStack() as stack:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _source(work: FunctionType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(work))
    except (OSError, TypeError):  # typed into a plain interpreter
        return f"# the source of {work.__name__} is not known\n"


def _joined(header: _Header, content: bytes) -> bytes:
    return json.dumps(asdict(header)).encode() + b"\n" + content


def run(content: bytes, sha256: str) -> object:
    """Run a packed call in this process; what it returns.

    Raises:
        CorruptObject: It is not the call of this hash.
        ParameterError: Another Python packed it.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise CorruptObject(
            what="a call is not what was packed",
            which=sha256,
            seen=f"its content has the hash {found}",
            do="Launch it again, under another name.",
        )
    line, _, body = content.partition(b"\n")
    header = _Header(**json.loads(line))
    if header.kind == "script":
        _run_script(header, body)
        return None
    if header.python != PYTHON:
        raise ParameterError(
            what="a function cannot run here",
            which=header.name,
            seen=f"it comes from Python {header.python}, this is Python {PYTHON}",
            do="Choose an image with the same Python, or launch a script: its text runs on any.",
        )
    work, arguments = cloudpickle.loads(body)
    return work(**arguments)


def _run_script(header: _Header, source: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="ddpipe-") as folder:
        path = Path(folder, header.name)
        path.write_bytes(source)
        sys.argv = [header.name, *header.arguments]
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise


def packed_value(value: Any) -> bytes:  # noqa: ANN401 - whatever a function returns
    """What a function returned, as bytes.

    Raises:
        ParameterError: It cannot travel.
    """
    try:
        content: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise ParameterError(
            what="what the function returned cannot be sent back",
            which=f"a {type(value).__name__}",
            seen=str(error),
            do="Return plain values or tensors; leave files in $DDPIPE_OUTPUTS.",
        ) from error
    return content


def unpacked_value(content: bytes) -> Any:  # noqa: ANN401 - as above
    """What `packed_value` packed."""
    return cloudpickle.loads(content)


def _refused(which: str, seen: str, do: str) -> ParameterError:
    return ParameterError(what="this cannot be launched", which=which, seen=seen, do=do)
