"""`ddpipe.launch` takes the options of a job, with the names, defaults and help of their declarations."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import ddpipe
from ddpipe.errors import ParameterError
from ddpipe.jobs.options import JobOptions
from ddpipe.parameters import declared


def work() -> None: ...


_OWN = ["work", "args", "name", "runs", "namespace"]


def test_launch_has_the_options_of_a_job() -> None:
    signature = inspect.signature(ddpipe.launch)
    options = {item.name: item.default for item in declared(JobOptions)}
    assert list(signature.parameters) == [*_OWN, *options]
    assert {name: signature.parameters[name].default for name in options} == options


def test_launch_documents_each_parameter_once() -> None:
    text = inspect.getdoc(ddpipe.launch) or ""
    for name in inspect.signature(ddpipe.launch).parameters:
        assert text.count(f"\n    {name}: ") == 1, name
    for item in declared(JobOptions):
        assert " ".join(item.help.split()) in " ".join(text.split())


def test_the_stub_for_editors_has_what_the_package_has() -> None:
    """`make reference` writes it, and a test of the documentation compares it."""
    tree = ast.parse((Path(ddpipe.__file__).parent / "__init__.pyi").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions.keys() == vars(ddpipe)["PUBLIC"].keys()
    assert functions.keys() <= set(dir(ddpipe))
    for name, node in functions.items():
        free = [node.args.kwarg] if node.args.kwarg else []
        given = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs, *free)]
        assert given == list(inspect.signature(getattr(ddpipe, name)).parameters)


def test_an_option_that_no_job_has_is_named() -> None:
    with pytest.raises(ParameterError, match="'nodez' is not a parameter"):
        ddpipe.launch(work, image="mine:1", nodez=2)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="has no attribute 'lunch'"):
        ddpipe.lunch  # type: ignore[attr-defined]  # noqa: B018 - the attribute is what is tested
