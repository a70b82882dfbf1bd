"""What a step leaves, in the words of whoever called it: people, scripts, KFP 1.x, KFP 2.

people, scripts    standard output: a few lines, or with --json one object
both engines       --write NAME PATH puts one result into a file
KFP 1.x            its UI's documents are two more results: mlpipeline-metrics, mlpipeline-ui-metadata
KFP 2              --executor-input: the metadata of shown results goes to the file that it names
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from ddpipe.commands import kfp_v1, kfp_v2
from ddpipe.commands.shown import Shown
from ddpipe.steps import Step
from ddpipe.storage import split_uri, write_uri

JSON, WRITE, EXECUTOR = "json", "write", "executor_input"
"""Keys of the context's `meta`."""

V1_METRICS, V1_UI = "mlpipeline-metrics", "mlpipeline-ui-metadata"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command came to.

    Attributes:
        facts: For scripts.
        text: For people.
        result: In one line, for the end of a log; empty: the text.
        values: Results of the step that later steps take.
        shown: Results of the step that an engine shows.
        more: What only KFP 1.x can show.
    """

    facts: Mapping[str, object]
    text: str
    result: str = ""
    values: Mapping[str, str | float] = field(default_factory=dict)
    shown: Mapping[str, Shown] = field(default_factory=dict)
    more: tuple[Shown, ...] = ()


def files_of(step: Step) -> tuple[str, ...]:
    """The names that --write takes."""
    return (*(result.name for result in step.results), V1_METRICS, V1_UI)


def check_writable(wanted: tuple[tuple[str, Path], ...]) -> None:
    """Refuse a file that cannot be written before any work.

    Raises:
        StoreError: One cannot.
    """
    for _, path in wanted:
        store, _ = split_uri(str(path))
        store.check_writable()


def tell(outcome: Outcome) -> None:
    """Hand the outcome to whoever called."""
    meta = click.get_current_context().meta
    for name, path in meta.get(WRITE, ()):
        write_uri(str(path), _content(outcome, name))
    if meta.get(EXECUTOR):
        target, content = kfp_v2.metadata(meta[EXECUTOR], outcome.shown)
        write_uri(target, content)
    told = outcome.result or outcome.text if is_by_engine() else outcome.text
    click.echo(json.dumps(outcome.facts) if meta.get(JSON) else told)


def is_by_engine() -> bool:
    """Whether an engine called, which takes results as files: nobody types options there."""
    return bool(click.get_current_context().meta.get(WRITE))


def _content(outcome: Outcome, name: str) -> bytes:
    everything = (*outcome.shown.values(), *outcome.more)
    made: dict[str, Any] = {V1_METRICS: kfp_v1.metrics, V1_UI: kfp_v1.views}
    if name in made:
        return str(made[name](everything)).encode()
    if name in outcome.shown:
        return outcome.shown[name].content
    return str(outcome.values[name]).encode()
