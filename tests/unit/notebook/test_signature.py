"""`ddpipe.launch` repeats the options of a job, so that editors complete them: it must not drift."""

from __future__ import annotations

import inspect

import ddpipe
from ddpipe.jobs.options import JobOptions
from ddpipe.parameters import declared

_OWN = {"work", "args", "name", "runs", "namespace"}


def test_launch_has_the_options_of_a_job() -> None:
    """Names, order and defaults; what is empty may be written as None or ()."""
    signature = inspect.signature(ddpipe.launch).parameters.values()
    given = {item.name: item.default for item in signature if item.name not in _OWN}
    options = {item.name: item.default for item in declared(JobOptions)}
    assert list(given) == list(options), "declare every option of JobOptions in ddpipe.launch, too"
    assert {name: value or None for name, value in given.items()} == {
        name: value or None for name, value in options.items()
    }


def test_launch_annotates_options_as_they_are_declared() -> None:
    annotations, declaration = inspect.get_annotations(ddpipe.launch), inspect.get_annotations(JobOptions)
    for item in declared(JobOptions):
        assert annotations[item.name].removesuffix(" | None") == declaration[item.name], item.name


def test_launch_documents_each_parameter_once() -> None:
    text = inspect.getdoc(ddpipe.launch) or ""
    for name in inspect.signature(ddpipe.launch).parameters:
        assert text.count(f"\n    {name}: ") == 1, name
