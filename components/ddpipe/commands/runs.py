"""`ddpipe runs ls|show|compare|logs|stop|retry`: the runs in a folder and on a Kubeflow Pipelines server.

A run in a folder is known by its name, a run on a server by its ID. A server is asked if one is configured:
by --endpoint, by KFP_ENDPOINT, or inside a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any

import click

from ddpipe import workflow
from ddpipe.commands import SectionedCommand, in_columns, json_option, print_result, say
from ddpipe.commands.engine import Command, followed, with_engine
from ddpipe.engine.client import Engine
from ddpipe.engine.runs import RunState, StepState, latest, look, progress, retry, step_log, step_named, stop
from ddpipe.errors import ParameterError
from ddpipe.processes.reports import Reports, duration
from ddpipe.runs import NAME, Run, runs_in
from ddpipe.storage import existing_store, open_store, write_uri

# What is listed of a run besides its state, if it is known.
_FOUND = ("progress", "score", "dataset", "model", "title")
_MOST_READ = 5  # runs of a server whose progress is shown: it is in their logs
_BARS, _MOST_BARS = "▁▂▃▄▅▆▇█", 30

run_argument = click.argument("run_id", metavar="RUN")
wait_option = click.option(
    "--wait", is_flag=True, help="Wait for the run to end; its outcome is the exit code."
)
folder_option = click.option(
    "--runs", "folder", default="runs", help="URI of the folder that holds local runs."
)


def with_places(command: Command) -> Command:
    """Add options for a folder and a server; the command receives the folder, and the server if any."""
    return folder_option(with_engine(command, required=False))


@click.group("runs")
def runs_command() -> None:
    """List, show, compare, stop and retry runs, in a folder and on Kubeflow Pipelines; read their logs."""


@runs_command.command("ls", cls=SectionedCommand)
@with_places
@click.option("--count", default=20, type=click.IntRange(1), help="Maximum number of runs of each place.")
@json_option
def list_command(engine: Engine | None, folder: str, count: int) -> None:
    """List the newest runs in a folder and on a server."""
    if not engine:
        existing_store(folder)
    local = [(_state(run, begun), _found_by(run)) for run, begun in runs_in(folder, count)]
    remote = latest(engine, count) if engine else []
    running = [run.id for run in remote if run.state == "RUNNING"][:_MOST_READ]
    far = {run_id: str(progress(engine, run_id)) for run_id in running if engine}
    runs = [*local, *((run, {"title": run.name, "progress": far.get(run.id, "")}) for run in remote)]
    head = ("RUN", "STATE", "BEGAN", "TOOK", *map(str.upper, _FOUND))
    rows = [
        (run.id, run.state, *_times(run), *(found.get(name, "") for name in _FOUND)) for run, found in runs
    ]
    print_result({"runs": [run.facts() | found for run, found in runs]}, in_columns(head, rows) or "no runs")


@runs_command.command("show", cls=SectionedCommand)
@run_argument
@with_places
@wait_option
@json_option
def show_command(engine: Engine | None, folder: str, run_id: str, wait: bool) -> None:
    """Show a run and its steps: states and times.

    RUN is the name of a run in the folder, or the ID of a run on the server.
    """
    if NAME.fullmatch(run_id) and (run := Run.named(folder, run_id)).has_begun:
        _print_run(_state(run, None))
    elif engine:
        _show(engine, run_id, wait=wait)
    else:
        raise ParameterError(
            what="there is no such run",
            which=f"{folder}/{run_id}",
            seen="the folder has no run of this name",
            do="See `ddpipe runs ls`; for a run on a server, give its `endpoint`.",
        )


@runs_command.command("compare")
@click.argument("names", nargs=-1, required=True, metavar="RUN RUN...")
@folder_option
@click.option("--page", metavar="FILE", help="File for the same as an HTML page, with curves.")
@json_option
def compare_command(folder: str, names: tuple[str, ...], page: str | None) -> None:
    """Compare trained and evaluated runs of a folder: scores, what differs, and how the loss fell."""
    compared = {name: _compared(Run.named(folder, name)) for name in names}
    scores = dict.fromkeys(score for one in compared.values() for score in one["scores"])
    settings = dict.fromkeys(name for one in compared.values() for name in one["settings"])
    values = {name: [one["settings"].get(name) for one in compared.values()] for name in settings}
    differ = {name: found for name, found in values.items() if any(one != found[0] for one in found)}
    scored = [(name, *(_interval(one["scores"].get(name)) for one in compared.values())) for name in scores]
    others = [(name, *map(str, found)) for name, found in differ.items()]
    losses = {name: one["validation_loss"] for name, one in compared.items()}
    if page:
        from ddpipe.evaluate.figures import losses_by_epoch
        from ddpipe.templates import environment

        text = environment("ddpipe.evaluate").get_template("compare.html.j2")
        write_uri(
            page,
            text.render(names=names, scores=scored, differ=others, curves=losses_by_epoch(losses)).encode(),
        )
    rows = [*scored, *others, ("validation loss", *map(_curve, losses.values()))]
    print_result({"runs": compared, "differ": differ}, in_columns(("", *compared), rows))


def _compared(run: Run) -> dict[str, Any]:
    from ddpipe.model.evaluation import load_evaluation
    from ddpipe.model.training_record import training_record
    from ddpipe.train.recipe import as_today

    dataset = workflow.dataset_of(run, "", "")
    record = training_record(run.origin("train").training)
    scores = load_evaluation(run.origin("evaluate").evaluation).metrics.scores
    return {
        "scores": {name: asdict(score) for name, score in scores.items()},
        "settings": {"dataset": dataset.split("/")[-2][:12], **as_today(record["recipe"])},
        "validation_loss": [epoch["validation_loss"] for epoch in record["history"]],
    }


def _interval(score: Mapping[str, float | None] | None) -> str:
    if not score:
        return "none"
    between = f" ({score['low']:.4f} to {score['high']:.4f})" if score["low"] is not None else ""
    return f"{score['value']:.4f}{between}"


def _curve(losses: Sequence[float]) -> str:
    """The losses of all epochs as bars, of at most 30, and the last one."""
    shown = losses[:: max(1, -(-len(losses) // _MOST_BARS))]
    low, high = min(shown), max(shown)
    bars = "".join(_BARS[round((loss - low) / ((high - low) or 1) * (len(_BARS) - 1))] for loss in shown)
    return f"{bars} {losses[-1]:.4f}"


@runs_command.command("logs", cls=SectionedCommand)
@run_argument
@click.argument("step", required=False)
@with_engine
@json_option
def logs_command(engine: Engine, run_id: str, step: str | None) -> None:
    """Print the log of a STEP: by default the one that failed, or else the latest."""
    found = step_named(look(engine, run_id), step)
    text = step_log(engine, run_id, found)
    print_result({"run_id": run_id, "step": found.name, "log": text}, text.rstrip("\n"))


@runs_command.command("stop", cls=SectionedCommand)
@run_argument
@with_engine
@json_option
def stop_command(engine: Engine, run_id: str) -> None:
    """Stop a run; its training job is deleted, its last checkpoint is kept."""
    stopped = stop(engine, run_id)
    text = "stop requested" if stopped else "the run has already ended"
    print_result({"run_id": run_id, "stopped": stopped}, text)


@runs_command.command("retry", cls=SectionedCommand)
@run_argument
@with_engine
@wait_option
@json_option
def retry_command(engine: Engine, run_id: str, wait: bool) -> None:
    """Run the failed steps of a run again; training resumes from its last checkpoint."""
    retry(engine, run_id)
    _show(engine, run_id, wait=wait)


def _show(engine: Engine, run_id: str, *, wait: bool) -> None:
    _print_run(followed(engine, run_id, partial(say, err=True)) if wait else look(engine, run_id))


def _print_run(state: RunState) -> None:
    lines = [f"{state.name}  {state.state}", state.link, *map(_line, state.steps)]
    print_result(state.facts(), "\n".join(lines))


def _state(run: Run, begun: datetime | None) -> RunState:
    """A run in a folder, in the form of a run on a server."""
    steps = tuple(
        StepState(
            name=record["step"],
            state=record["status"].upper(),
            started=datetime.fromisoformat(record["started"]),
            seconds=record["seconds"],
        )
        for record in run.steps()
    )
    created = steps[0].started if steps else begun
    return RunState(id=run.name, name=run.name, state=run.state(), created=created, link=run.uri, steps=steps)


def _found_by(run: Run) -> dict[str, str]:
    """The headline score of a run, its dataset and its model, as far as its steps have come."""
    prepared, evaluated, exported = (run.facts(step) for step in ("prepare", "evaluate", "export"))
    scores = [f"{name} {value:.4f}" for name, value in evaluated.items() if isinstance(value, float)]
    name = str(prepared.get("dataset", "")).split("/")[-3:-2]
    return {
        "progress": _progress(run),
        "score": scores[0] if scores else "",
        "dataset": " ".join([*name, str(prepared.get("dataset_id", ""))[:12]]).strip(),
        "model": str(exported.get("model_id", ""))[:12],
    }


def _progress(run: Run) -> str:
    """How far the step that trains has come, if no step has ended since it said so."""
    ends = [datetime.fromisoformat(one["started"]).timestamp() + one["seconds"] for one in run.steps()]
    reports, store = Reports(), open_store(run.training)
    for item in store.list("progress.txt"):
        if (written := item.modified.timestamp()) > max(ends, default=0.0):
            reports.take("", store.read(item.key).decode(errors="replace"), written)
    return str(reports.now(time.time()))


def _line(step: StepState) -> str:
    return f"  {step.name:<12} {step.state:<9} {step.seconds:.0f} s".rstrip()


def _times(run: RunState) -> tuple[str, str]:
    """When it began, and how long its steps took."""
    took = duration(sum(step.seconds for step in run.steps)) if run.steps else ""
    return (f"{run.created:%Y-%m-%d %H:%M}" if run.created else ""), took
