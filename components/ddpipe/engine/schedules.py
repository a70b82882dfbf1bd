"""Schedules on the server: one for each name, on the newest version, one run at a time, nothing caught up."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ddpipe.engine.answers import SCHEDULE
from ddpipe.engine.client import Engine, quoted
from ddpipe.engine.runs import Request, experiment_id
from ddpipe.errors import EngineConflict, ParameterError, UnknownToEngine

# The API takes no time zone.
ZONE = (
    "Times are those of the server's scheduler: UTC, unless CRON_SCHEDULE_TIMEZONE of its deployment "
    "ml-pipeline-scheduledworkflow says otherwise."
)
_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule on the server; its name is unique within its experiment."""

    id: str
    name: str
    trigger: str  # "cron" with six fields, seconds first; or "every" so many seconds, set in the UI
    enabled: bool
    experiment_id: str
    pipeline_id: str
    version_id: str

    def facts(self) -> dict[str, Any]:
        """The same as JSON, for scripts."""
        facts = asdict(self)
        return {"schedule_id": facts.pop("id"), **facts}


def cron(text: str) -> str:
    """Six fields, seconds first, from the five of a crontab or from six."""
    # The server would take five fields for seconds to month: the seconds are added here. It checks the rest.
    fields = text.split()
    if len(fields) not in {_FIELDS, _FIELDS + 1}:
        raise ParameterError(
            what="the schedule cannot be created",
            which="--cron",
            seen=f"{text!r} has neither 5 fields (minute first) nor 6 (second first)",
            do="Give a valid time, such as '0 2 * * *' (every night) or '0 */6 * * *' (every 6 hours).",
        )
    return " ".join(fields if len(fields) > _FIELDS else ["0", *fields])


def put(engine: Engine, name: str, crontab: str, request: Request) -> tuple[Schedule, bool]:
    """Create or update the schedule of this name; also returns whether anything changed."""
    # The API has no update: the new schedule is created before the old one is deleted, so that there is
    # always one. A second call repairs what a call that died in between has left. A disabled schedule stays
    # disabled.
    experiment = experiment_id(engine, request.experiment)
    listed = engine.client.every("recurringruns", "recurringRuns", SCHEDULE, experiment_id=experiment)
    before = [item for item in listed if item.display_name == name and _same_pipeline(item, request, name)]
    enabled = all(_schedule(item).enabled for item in before)
    body = {
        "display_name": name,
        "trigger": {"cron_schedule": {"cron": crontab}},
        "mode": "ENABLE" if enabled else "DISABLE",
        "max_concurrency": 1,
        "no_catchup": True,
        **request.body(experiment),
    }
    same = next((item for item in before if _is_wanted(item, crontab, request)), None)
    current = same or engine.client.ask("POST", "recurringruns", SCHEDULE, body=body)
    others = [item for item in before if item is not same]
    for item in others:
        delete(engine, _schedule(item))
    return _schedule(current), not same or bool(others)


def schedules(engine: Engine) -> list[Schedule]:
    """All schedules of the namespace."""
    listed = engine.client.every("recurringruns", "recurringRuns", SCHEDULE, namespace=engine.namespace)
    return [_schedule(item) for item in listed]


def find(engine: Engine, name: str) -> Schedule:
    """The schedule of this name or id."""
    found = [item for item in schedules(engine) if name in {item.name, item.id}]
    if not found:
        raise UnknownToEngine(
            what="the schedule cannot be found",
            which=name,
            seen="no schedule has this name or ID",
            do="List them: `ddpipe schedule ls`.",
        )
    if len(found) > 1:
        raise EngineConflict(
            what="the schedule is ambiguous",
            which=name,
            seen=f"several schedules have this name: {', '.join(item.id for item in found)}",
            do="Give an ID.",
        )
    return found[0]


def delete(engine: Engine, schedule: Schedule) -> None:
    """Remove a schedule; its runs stay."""
    engine.client.ask("DELETE", f"recurringruns/{quoted(schedule.id)}")


def _same_pipeline(model: Any, request: Request, name: str) -> bool:  # noqa: ANN401 - of the shape SCHEDULE
    reference = model.pipeline_version_reference
    if reference and reference.pipeline_id == request.version.pipeline_id:
        return True
    raise EngineConflict(
        what="the schedule cannot be created",
        which=f"{name} in the experiment {request.experiment}",
        seen="a schedule of this name exists for another pipeline",
        do="Choose another name, or another --experiment.",
    )


def _is_wanted(model: Any, crontab: str, request: Request) -> bool:  # noqa: ANN401 - of the shape SCHEDULE
    schedule = _schedule(model)
    given = (model.runtime_config and model.runtime_config.parameters) or {}
    return (
        schedule.version_id == request.version.id
        and schedule.trigger == f"cron {crontab}"
        and given == request.arguments
        and request.account in {"", model.service_account}  # the server fills in its default
    )


def _schedule(model: Any) -> Schedule:  # noqa: ANN401 - of the shape SCHEDULE
    reference, trigger = model.pipeline_version_reference, model.trigger
    periodic, timed = trigger.periodic_schedule, trigger.cron_schedule
    return Schedule(
        id=model.recurring_run_id,
        name=model.display_name,
        trigger=f"cron {timed.cron}" if timed else f"every {periodic and periodic.interval_second} s",
        enabled=model.status == "ENABLED",
        experiment_id=model.experiment_id or "",
        pipeline_id=(reference and reference.pipeline_id) or "",
        version_id=(reference and reference.pipeline_version_id) or "",
    )
