"""Runs on the server: start, show, follow, stop and retry them, and read the logs of their steps."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from ddpipe.engine.answers import EXPERIMENT, RUN, VERSION, not_described
from ddpipe.engine.client import MOST_BYTES, ONE_USER, Engine, quoted
from ddpipe.engine.package import PipelineVersion, steps_of
from ddpipe.errors import (
    DdpipeError,
    EngineError,
    EngineUnreachable,
    NotAnEngine,
    RunFailed,
    RunStopped,
    UnknownToEngine,
)
from ddpipe.kube.api import ApiError, connect
from ddpipe.kube.resources import PODS
from ddpipe.processes.reports import Reported, Reports

SUCCEEDED, FAILED, WAITING = "SUCCEEDED", "FAILED", "PENDING"
_STOPPED = {"CANCELED", "CANCELING"}
_CLEAN_UP = "clean-up"  # the step of our pipelines that runs after the others, also if they failed
# How lines begin that the engine writes into a step's log.
_ENGINES_OWN = re.compile(r"""[IWE]\d{4} [\d:.]+ +\d+ \w+\.go:\d+\] |time="\S+" level=\w+ msg=""")
_OVER = {SUCCEEDED, FAILED, "CANCELED", "SKIPPED"}
_PAUSE = 2.0
_OUTAGE = 600.0
_TAIL, _TAIL_LINES, _TAIL_BYTES = 40, 200, 2**16
_IDLE = 10.0
_LAUNCHER = "system-container-impl"  # what KFP 2 calls the template of every step's pod


@dataclass(frozen=True, slots=True)
class StepState:
    """A step of a run, how long it ran or has been running, and its pods as far as the server names them."""

    name: str
    state: str
    started: datetime | None
    seconds: float
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as it is now: its steps in the order in which they started, and the server's own error."""

    id: str
    name: str
    state: str
    created: datetime | None
    link: str
    steps: tuple[StepState, ...] = ()
    experiment_id: str = ""
    schedule_id: str = ""
    error: str = ""
    stopped: bool = False

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in _OVER

    @property
    def failed(self) -> tuple[StepState, ...]:
        """Its steps that failed."""
        return tuple(step for step in self.steps if step.state == FAILED)

    def facts(self) -> dict[str, Any]:
        """The same as JSON, for scripts."""
        return {
            "run_id": self.id,
            "name": self.name,
            "state": self.state,
            "created": _time(self.created),
            "link": self.link,
            "experiment_id": self.experiment_id,
            "schedule_id": self.schedule_id,
            "steps": [
                {
                    "name": step.name,
                    "state": step.state,
                    "started": _time(step.started),
                    "seconds": step.seconds,
                }
                for step in self.steps
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A run to start; an account that is empty means the server's default."""

    version: PipelineVersion
    arguments: Mapping[str, Any] = field(default_factory=dict)
    experiment: str
    account: str = ""

    def body(self, experiment: str) -> dict[str, Any]:
        """What the API calls it, for a run and for a schedule."""
        version = {"pipeline_id": self.version.pipeline_id, "pipeline_version_id": self.version.id}
        return {
            "experiment_id": experiment,
            "pipeline_version_reference": version,
            "runtime_config": {"parameters": dict(self.arguments)},
            "service_account": self.account or None,
        }


def experiment_id(engine: Engine, name: str) -> str:
    """ID of the experiment of this name, which is created if there is none."""
    found = engine.client.find("experiments", "experiments", EXPERIMENT, name, namespace=engine.namespace)
    body = {"display_name": name, "namespace": engine.namespace}
    experiment = found or engine.client.ask("POST", "experiments", EXPERIMENT, body=body)
    return str(experiment.experiment_id)


def start(engine: Engine, request: Request, name: str) -> str:
    """Start a run."""
    body = {"display_name": name, **request.body(experiment_id(engine, request.experiment))}
    return str(engine.client.ask("POST", "runs", RUN, body=body).run_id)


def latest(engine: Engine, count: int) -> list[RunState]:
    """The newest runs, without their steps."""
    listed = engine.client.every("runs", "runs", RUN, namespace=engine.namespace, sort_by="created_at desc")
    return [_state(engine, run, ()) for run in islice(listed, count)]


def look(engine: Engine, run_id: str) -> RunState:
    """A run as it is now."""
    run = _run(engine, run_id)
    return _state(engine, run, _steps(engine, run))


def _run(engine: Engine, run_id: str) -> Any:  # noqa: ANN401 - of the shape RUN
    return engine.client.ask("GET", f"runs/{quoted(run_id)}", RUN)


def follow(
    engine: Engine, run_id: str, say: Callable[[str], object], clock: Callable[[], float] = time.monotonic
) -> RunState:
    """Report every change until the run is over; the server may be away for ten minutes at a time."""
    reported: dict[str, str] = {}
    steps, seen = None, clock()
    while True:
        try:
            run = _run(engine, run_id)
            steps = _steps(engine, run) if steps is None else steps
            state, seen = _state(engine, run, steps), clock()
        except (EngineUnreachable, NotAnEngine):  # a proxy answers with a page while the server restarts
            if clock() - seen > _OUTAGE:
                raise
        else:
            for line in _changes(state, reported):
                say(line)
            if state.over:
                return state
        time.sleep(_PAUSE)


def conclude(engine: Engine, state: RunState) -> None:
    """Nothing if a run that is over succeeded."""
    if state.state == SUCCEEDED:
        return
    step = next(iter(state.failed), None)
    kind = RunStopped if state.stopped else RunFailed
    when = "To continue from the last checkpoint" if state.stopped else "After fixing the cause"
    if state.stopped:
        removed = [_tail(engine, state.id, last) for last in state.steps if last.name == _CLEAN_UP]
        seen = f"it was stopped at step {step.name}" if step else "it was stopped"
        seen += f"; {_CLEAN_UP} wrote:\n{removed[0]}" if removed else ""
    elif step:
        seen = f"step {step.name} failed; the end of its log:\n{_tail(engine, state.id, step)}"
    else:
        seen = state.error or f"it ended {state.state}, and no step reports why"
    raise kind(
        what="the run did not succeed",
        which=f"{state.name} ({state.id})",
        seen=seen,
        do=f"{when}: ddpipe runs retry {state.id}",
    )


def step_named(state: RunState, name: str | None) -> StepState:
    """A step by its name; without one, the first that failed, or else the latest that has started."""
    named = [step for step in state.steps if step.name == name]
    begun = [step for step in reversed(state.steps) if step.started]
    chosen = named if name else [*state.failed, *begun]
    if chosen:
        return chosen[0]
    raise UnknownToEngine(
        what="the step cannot be found",
        which=f"{name or 'any step'} of run {state.id}",
        seen=f"it has {', '.join(step.name for step in state.steps) or 'no steps yet'}",
        do="Name one of these, or wait until it has begun.",
    )


def progress(engine: Engine, run_id: str) -> Reported:
    """How far the training of a run is, by the last lines of the step that runs."""
    reports, now = Reports(), time.time()
    with suppress(EngineError):
        running = [step for step in look(engine, run_id).steps if step.state == "RUNNING"]
        text = step_log(engine, run_id, running[-1], _TAIL_BYTES) if running else ""
        for line in text.splitlines():
            reports.take("", line, now)
    return reports.now(now)


def stop(engine: Engine, run_id: str) -> bool:
    """Stop a run; whether it was running."""
    if look(engine, run_id).over:
        return False
    engine.client.ask("POST", f"runs/{quoted(run_id)}:terminate")
    return True


def retry(engine: Engine, run_id: str) -> None:
    """Run the failed steps of a run again; what succeeded stays."""
    engine.client.ask("POST", f"runs/{quoted(run_id)}:retry")


def step_log(engine: Engine, run_id: str, step: StepState, last: int = MOST_BYTES) -> str:
    """The log of a step so far: from the server, or else from its pod through Kubernetes."""
    namespace = {"podnamespace": engine.namespace} if engine.namespace else {}
    for pod in step.pods:
        # The API's description lacks this path; a single-user server of version 2.17 does not have it.
        text = _text(engine, f"/apis/v1alpha1/runs/{run_id}/nodes/{pod}/log", {}, last)
        if text is None:  # the path that the web page uses, if the endpoint is the page's
            text = _text(engine, "/k8s/pod/logs", {"podname": pod, "runid": run_id, **namespace}, last)
        if text is None:
            text = _from_cluster(engine, pod, last)
        if text is not None:
            return text
    gone = "neither the server nor, from here, Kubernetes has a log of it"
    raise UnknownToEngine(
        what="the log cannot be read",
        which=f"step {step.name} of run {run_id}",
        seen=gone if step.pods else "it has no pod yet",
        do=f"See its pods: kubectl get pods -A -l pipeline/runid={run_id}",
    )


def _tail(engine: Engine, run_id: str, step: StepState) -> str:
    try:
        text = step_log(engine, run_id, step, _TAIL_BYTES)
    except EngineError as error:
        return f"  ({error.seen})\n"
    lines = [line for line in text.rstrip().splitlines() if not _ENGINES_OWN.match(line)]
    return "".join(f"  {line}\n" for line in lines[-_TAIL:])


def _text(engine: Engine, path: str, query: Mapping[str, str], last: int) -> str | None:
    try:
        text = engine.client.text(path, query, last)
    except EngineError:
        return None
    # The server answers 200 with the reason why there is no log.
    return None if text.startswith('{"error_message"') else text


def _from_cluster(engine: Engine, pod: str, last: int) -> str | None:
    path, kept = PODS.path(engine.namespace or ONE_USER, pod), bytearray()
    end = {"tailLines": str(_TAIL_LINES)} if last < MOST_BYTES else {}
    try:
        for line in connect().lines(f"{path}/log", {"container": "main", **end}, _IDLE):
            kept += line + b"\n"
            if len(kept) > 2 * last:
                del kept[:-last]
    except (ApiError, DdpipeError):
        return None
    return kept[-last:].decode(errors="replace")


def _state(engine: Engine, run: Any, names: Iterable[str]) -> RunState:  # noqa: ANN401 - of the shape RUN
    tasks = (run.run_details and run.run_details.task_details) or ()
    steps = [_step(task) for task in tasks if task.display_name in set(names)]
    last = datetime.max.replace(tzinfo=UTC)
    # Version 2.17 reports a run that was stopped as failed in the end, after a state of stopping.
    states = [run.state, *[entry.state for entry in run.state_history or ()][-2:-1]]
    return RunState(
        id=run.run_id,
        name=run.display_name,
        state=run.state or WAITING,
        created=run.created_at,
        link=engine.link(run.run_id),
        steps=tuple(sorted(steps, key=lambda step: step.started or last)),
        experiment_id=run.experiment_id or "",
        schedule_id=run.recurring_run_id or "",
        error=(run.error and run.error.message) or "",
        stopped=bool(_STOPPED.intersection(states)),
    )


def _step(task: Any) -> StepState:  # noqa: ANN401 - of the shape RUN
    state = task.state or WAITING
    started = task.start_time if state != WAITING else None
    finished = task.end_time if state in _OVER else None
    seconds = ((finished or datetime.now(UTC)) - started).total_seconds() if started else 0.0
    nodes = [child.pod_name for child in task.child_tasks or () if child.pod_name]
    pods = [task.pod_name] if task.pod_name else [_pod(node) for node in nodes]
    return StepState(task.display_name, state, started, max(seconds, 0.0), tuple(pods))


def _pod(node: str) -> str:
    """Argo's name of the pod of one of its nodes, `workflow-hash`."""
    workflow, _, digits = node.rpartition("-")
    return f"{workflow}-{_LAUNCHER}-{digits}"


def _steps(engine: Engine, run: Any) -> tuple[str, ...]:  # noqa: ANN401 - of the shape RUN
    """The steps of a run's pipeline, which it or its version has; `NotAnEngine` for anything else."""
    try:
        spec, reference = run.pipeline_spec or {}, run.pipeline_version_reference
        if not spec and reference:
            pipeline, version = quoted(reference.pipeline_id), quoted(reference.pipeline_version_id)
            path = f"pipelines/{pipeline}/versions/{version}"
            spec = engine.client.ask("GET", path, VERSION).pipeline_spec or {}
        return steps_of(spec)
    except (AttributeError, KeyError, TypeError) as error:
        raise not_described(f"the pipeline of run {run.run_id}", error) from error


def _changes(state: RunState, reported: dict[str, str]) -> Iterator[str]:
    """A line for each step, and for the run, whose state has changed since it was reported."""
    now = {step.name: step.state for step in state.steps if step.state != WAITING} | {"run": state.state}
    for name, word in now.items():
        if reported.get(name) != word:
            reported[name] = word
            yield f"{name:<12} {word.lower()}"


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment else None
