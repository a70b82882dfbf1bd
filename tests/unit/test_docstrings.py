"""The public interface describes its parameters; every public function the shapes of its arrays."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import ddpipe

PACKAGE = Path(ddpipe.__file__).parent
MANY = 3

PUBLIC = (
    "distributed/__init__.py",
    "model/metrics.py",
    "jobs/backend.py",
    "kube/cluster.py:Cluster.",
    "model/tasks.py",
    "notebook/entry.py",
    "notebook/handle.py",
    "serve/predictor.py",
    "sources/base.py",
    "storage/base.py",
)
"""What users call, and what a new backend, source, store, task or metric implements."""

ARRAY = re.compile(r"\b(NDArray|Tensor|FloatArray|IntArray|BoolArray)\b")
"""Types without a shape; of `Images`, `Labels`, `Rows` and `Batch` their own declaration states it."""

SHAPED_BY_BASE_CLASS = {
    *(
        f"model/tasks.py:{task}.{name}"
        for task in ("Multiclass", "Multilabel")
        for name in ("probabilities", "decisions", "losses", "claims")
    ),
    *(
        f"model/metrics.py:Question.{name}"  # what the table needs of a task
        for name in ("probabilities", "truth", "decisions", "losses", "claims")
    ),
    *(
        f"train/objective.py:{objective}.{name}"
        for objective in ("CrossEntropy", "BinaryCrossEntropy")
        for name in ("losses", "totals")
    ),
}


def functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module and the methods of its classes; not what is nested in functions."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node


def parameters(function: ast.FunctionDef) -> list[str]:
    taken = function.args
    named = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
    every = [*named, *filter(None, (taken.vararg, taken.kwarg))]
    return [parameter.arg for parameter in every if parameter.arg not in {"self", "cls"}]


def public_functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """All of the package, by file and name."""
    for path in PACKAGE.rglob("*.py"):
        module = ast.parse(path.read_text())
        for name, function in functions(module.body, f"{path.relative_to(PACKAGE).as_posix()}:"):
            if not function.name.startswith("_"):
                yield name, function


def types(function: ast.FunctionDef) -> str:
    """The annotations of its parameters and of what it returns."""
    taken = function.args
    named = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
    return " ".join(
        ast.unparse(note) for note in (*(one.annotation for one in named), function.returns) if note
    )


def test_arguments_of_the_public_interface_are_described() -> None:
    """Of functions with three parameters or more; elsewhere a sentence is enough."""
    lacking = [
        name
        for name, function in public_functions()
        if name.startswith(PUBLIC)
        and len(parameters(function)) >= MANY
        and "Args:" not in (ast.get_docstring(function) or "")
    ]
    assert not lacking


def test_shapes_of_arrays_are_described() -> None:
    """Of public functions that take or return them; of an implementation its base class describes them."""
    lacking = {
        name
        for name, function in public_functions()
        if ARRAY.search(types(function))
        and not re.search(r"[:.]_", name)
        and not re.search(r"\b[Ss]hape\b", ast.get_docstring(function) or "")
    }
    assert lacking == SHAPED_BY_BASE_CLASS
