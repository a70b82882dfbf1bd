"""The results of a step in the form that its caller expects: a person, a script, KFP 1.x or KFP 2.

person, script     standard output: a few lines, or one JSON object with --json
both engines       --write NAME PATH writes one result to a file
KFP 1.x            two further results are documents for its UI: mlpipeline-metrics, mlpipeline-ui-metadata
KFP 2              --executor-input names a file for the metadata of artifacts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from ddpipe.commands import print_result
from ddpipe.commands.shown import Shown, metadata_of_v2, metrics_of_v1, views_of_v1
from ddpipe.steps import Step
from ddpipe.storage import split_uri, write_uri

WRITE, EXECUTOR = "write", "executor_input"
"""Keys of the context's `meta`."""

V1_METRICS, V1_UI = "mlpipeline-metrics", "mlpipeline-ui-metadata"


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The results of a command.

    Attributes:
        facts: What --json prints.
        text: What is printed otherwise.
        result: One line for the end of an engine's log; empty for the text.
        values: Results that are inputs of later steps.
        shown: Results that an engine shows.
        more: Further results that only KFP 1.x can show.
    """

    facts: Mapping[str, object]
    text: str
    result: str = ""
    values: Mapping[str, str | float] = field(default_factory=dict)
    shown: Mapping[str, Shown] = field(default_factory=dict)
    more: tuple[Shown, ...] = ()


def files_of(step: Step) -> tuple[str, ...]:
    """The names that --write accepts."""
    return (*(result.name for result in step.results), V1_METRICS, V1_UI)


def check_writable(wanted: tuple[tuple[str, Path], ...]) -> None:
    """Check before any work that the files for the results can be written."""
    for _, path in wanted:
        store, _ = split_uri(str(path))
        store.check_writable()


def deliver(outcome: CommandOutcome) -> None:
    """Write and print the results."""
    meta = click.get_current_context().meta
    for name, path in meta.get(WRITE, ()):
        write_uri(str(path), _content(outcome, name))
    if meta.get(EXECUTOR):
        target, content = metadata_of_v2(meta[EXECUTOR], outcome.shown)
        write_uri(target, content)
    print_result(outcome.facts, outcome.result or outcome.text if called_by_engine() else outcome.text)


def called_by_engine() -> bool:
    """Whether a pipeline engine runs this command: it reads results from files."""
    return bool(click.get_current_context().meta.get(WRITE))


def _content(outcome: CommandOutcome, name: str) -> bytes:
    everything = (*outcome.shown.values(), *outcome.more)
    made: dict[str, Any] = {V1_METRICS: metrics_of_v1, V1_UI: views_of_v1}
    if name in made:
        return str(made[name](everything)).encode()
    if name in outcome.shown:
        return outcome.shown[name].content
    return str(outcome.values[name]).encode()
