"""`ddpipe compile|submit|doctor` and `ddpipe schedule set|ls|rm`: packages for Kubeflow Pipelines.

Also what these share with `runs`: the server, the package and its parameters.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import click

from ddpipe import form
from ddpipe.commands import SectionedCommand, json_option, print_result, say
from ddpipe.commands.options import options, parsed, taken
from ddpipe.engine.client import Engine, connect
from ddpipe.engine.doctor import Check, State, examine
from ddpipe.engine.endpoint import EndpointOptions, address, resolve
from ddpipe.engine.package import Package, publish, read_package, read_values
from ddpipe.engine.runs import Request, RunState, conclude, follow, look, start
from ddpipe.engine.schedules import ZONE, Schedule, cron, delete, find, put, schedules
from ddpipe.errors import EngineError, Interrupted
from ddpipe.form import spelled
from ddpipe.jobs.options import NO_SECRET
from ddpipe.kube import api as cluster
from ddpipe.parameters import Parameter, Parameters, parameter, refuse
from ddpipe.pipelines.catalogue import LEAST_PIPELINES
from ddpipe.processes.machine import on_stop

Command = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions(Parameters):
    """What the server runs."""

    heading: ClassVar[str] = "Run"

    pipeline: str = parameter("", "Name of the pipeline on the server (default: the package's own).")
    experiment: str = parameter("ddpipe", "Experiment of the runs; it is created if it does not exist.")
    service_account: str = parameter("", "Service account of the steps (default: the server's).")


def with_engine(command: Command, *, required: bool = True) -> Command:
    """Add options that choose the server; the command receives a connection, or None if there is none."""

    @options(EndpointOptions)
    @functools.wraps(command)
    def connected(**given: Any) -> None:
        own = taken(EndpointOptions, given)
        is_known = required or address(own, os.environ)
        command(engine=connect(resolve(own, os.environ)) if is_known else None, **given)

    return connected


def with_request(command: Command) -> Command:
    """Add a package and its parameters; the command receives a function that publishes them to an engine."""

    @click.argument("package", default="training")
    @click.option(
        "--set",
        "assigned",
        multiple=True,
        metavar="NAME=VALUE ...",
        help="Parameter of the pipeline; repeatable.",
    )
    @click.option(
        "--parameters", "file", help="YAML file with parameters of the pipeline; --set overrides it."
    )
    @options(PipelineOptions)
    @functools.wraps(command)
    def requested(package: str, assigned: tuple[str, ...], file: str | None, **given: Any) -> None:
        own = taken(PipelineOptions, given)
        read = named_package(package)
        values = _values(read, read_values(Path(file)) if file else {}, assigned)

        def published(engine: Engine) -> Request:
            version = publish(engine, read, own.pipeline)
            return Request(
                version=version, arguments=values, experiment=own.experiment, account=own.service_account
            )

        command(publisher=published, **given)

    return requested


def named_package(name: str) -> Package:
    """A built-in package by its short name, or any package by its path."""
    from ddpipe.pipelines.compile import COMPILED, PIPELINES

    return read_package(COMPILED / f"{PIPELINES[name].name}.yaml" if name in PIPELINES else Path(name))


def _values(package: Package, from_file: Mapping[str, Any], assigned: tuple[str, ...]) -> dict[str, Any]:
    """The fields of the package's form; for built-in packages, names of the command line are accepted."""
    from ddpipe.pipelines.compile import PIPELINES
    from ddpipe.pipelines.wiring import SECRET

    ours = next((one for one in PIPELINES.values() if one.name == package.name), None)
    fields = {item.name: item for item in package.parameters}
    own = {item.name: item for item in ours.open} if ours else {}
    declared = {**own, **fields, **({item.name: item for item in ours.parameters} if ours else {})}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for one in (from_file, _assigned(assigned, declared)):
        problems += _name_problems(one, declared, own)
        problems += filter(None, (declared[name].problem(one[name]) for name in one if name in declared))
        values = _merged(values, {name: value for name, value in one.items() if name in fields})
        plain = {name: value for name, value in one.items() if name in own and name not in fields}
        values = _merged(values, ours.filled(plain) if ours else {})
    required = [item.name for item in fields.values() if item.required and item.name not in values]
    problems += [f"{name} is missing" for name in required]
    if ours and not problems and fields.keys() == {item.name for item in ours.parameters}:
        problems += ours.problems(values)
    refuse(f"{package.name} cannot run", dict.fromkeys(spelled(problem, str) for problem in problems))
    # A field that also takes a word is text in the form.
    values = {
        name: str(value) if fields[name].kind is str and type(value) in {int, float} else value
        for name, value in values.items()
    }
    if ours and values.get(SECRET) == "":
        values[SECRET] = NO_SECRET
    return values


def _name_problems(
    given: Mapping[str, Any], declared: Mapping[str, Parameter], own: Mapping[str, Parameter]
) -> list[str]:
    """Names that are unknown, and parameters that are given by both of their names."""
    both = {name: item.form for name, item in own.items() if item.alone and name != item.form}
    return [
        *(form.unknown(name, declared) for name in given if name not in declared),
        *(
            f"{name} and {field} are the same parameter; give one of them"
            for name, field in both.items()
            if name in given and field in given
        ),
    ]


def _merged(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Both, where later values override earlier ones; objects are merged name by name."""
    both = first.keys() & then.keys()
    objects = {
        name: {**first[name], **then[name]}
        for name in both
        if isinstance(first[name], dict) and isinstance(then[name], dict)
    }
    return {**first, **then, **objects}


def _assigned(texts: tuple[str, ...], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Values from NAME=VALUE, of the declared types; unknown names are reported later."""
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
        values[name] = parsed(declared[name], value) if name in declared else value
    return values


def followed(engine: Engine, run_id: str, say: Callable[[str], object]) -> RunState:
    """Wait for a run to succeed and return its state. A stop signal ends the waiting, not the run."""

    def leave() -> NoReturn:
        raise Interrupted(
            what="waiting for the run was interrupted",
            which=engine.link(run_id),
            seen="the run continues",
            do=f"To wait again: `ddpipe runs show {run_id} --wait`; to stop it: `ddpipe runs stop {run_id}`.",
        )

    with on_stop(leave):
        state = follow(engine, run_id, say)
    conclude(engine, state)
    return state


@click.command("compile")
@click.option("--output", help="Folder for the packages (default: pipelines/compiled).")
@click.option("--claim", default="", help="Volume claim for all data, instead of an object store.")
@json_option
def compile_command(output: str | None, claim: str) -> None:
    """Compile the pipelines and components for KFP 2 and KFP 1.x."""
    from ddpipe.pipelines.compile import COMPILED, compile_all

    written = [str(path) for path in compile_all(Path(output) if output else COMPILED, claim)]
    print_result({"packages": written}, "\n".join(written))


@click.command("submit", cls=SectionedCommand)
@with_request
@with_engine
@click.option(
    "--run-name", help="Name of the run on the server (default: name of the pipeline, and the time)."
)
@click.option("--wait", is_flag=True, help="Wait for the run to end; its outcome is the exit code.")
@json_option
def submit_command(
    engine: Engine, publisher: Callable[[Engine], Request], run_name: str | None, wait: bool
) -> None:
    """Upload a package to Kubeflow Pipelines, unless it is there already, and start a run.

    PACKAGE is training, training-gated, training-tuned, custom-job, or the path of a compiled package.
    """
    request = publisher(engine)
    version = request.version
    name = run_name or f"{version.pipeline}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    run_id = start(engine, request, name)
    report = functools.partial(say, err=True)
    report(
        f"version  {version.name} of {version.pipeline} ({'uploaded' if version.uploaded else 'unchanged'})"
    )
    report(f"run      {name}\n         {engine.link(run_id)}")
    state = followed(engine, run_id, report) if wait else look(engine, run_id)
    facts = {
        "pipeline": version.pipeline,
        "version": version.name,
        "version_id": version.id,
        "uploaded": version.uploaded,
        **state.facts(),
    }
    print_result(facts, run_id)


@click.command("doctor", cls=SectionedCommand)
@click.argument("package", default="training")
@options(EndpointOptions)
@json_option
def doctor_command(package: str, **given: Any) -> None:
    """Check what sending PACKAGE needs: server, login, namespace, version, and the secret of the store.

    Each check is ok, unknown (cannot be seen from here), or fails with its fix. The exit code is 0 unless a
    check fails.
    """
    own, read = taken(EndpointOptions, given), named_package(package)
    checks = list(examine(lambda: connect(resolve(own, os.environ)), cluster.connect, read, LEAST_PIPELINES))
    print_result({"checks": [asdict(check) for check in checks]}, "\n".join(map(_line, checks)))
    if any(check.state is State.FAIL for check in checks):
        click.get_current_context().exit(EngineError.exit_code)


def _line(check: Check) -> str:
    fix = f"\n{'':<20}{check.fix}" if check.fix else ""
    return f"{check.name:<10}{check.state:<10}{check.seen}{fix}"


@click.group("schedule")
def schedule_command() -> None:
    """Create, list and remove schedules, which run a package repeatedly."""


@schedule_command.command("set", cls=SectionedCommand)
@click.argument("name")
@with_request
@with_engine
@click.option(
    "--cron",
    "crontab",
    required=True,
    help="Crontab with five fields, such as '0 2 * * *', or six with seconds first.",
)
@json_option
def set_command(engine: Engine, publisher: Callable[[Engine], Request], name: str, crontab: str) -> None:
    """Create or update the schedule NAME, which runs the newest version of a package.

    Runs do not overlap, and missed runs are not caught up. One that is disabled in the Kubeflow UI stays
    disabled.
    """
    six, request = cron(crontab), publisher(engine)
    schedule, changed = put(engine, name, six, request)
    state = "set" if changed else "unchanged"
    text = f"{_schedule_line(schedule)}  {state}, version {request.version.name}"
    print_result({**schedule.facts(), "changed": changed, "version": request.version.name}, text)
    click.echo(ZONE, err=True)


@schedule_command.command("ls", cls=SectionedCommand)
@with_engine
@json_option
def list_command(engine: Engine) -> None:
    """List the schedules: name, times, state, ID."""
    found = schedules(engine)
    print_result(
        {"schedules": [item.facts() for item in found]},
        "\n".join(map(_schedule_line, found)) or "no schedules",
    )


@schedule_command.command("rm", cls=SectionedCommand)
@click.argument("name")
@with_engine
@json_option
def remove_command(engine: Engine, name: str) -> None:
    """Remove a schedule by its NAME or ID; its runs are kept."""
    schedule = find(engine, name)
    delete(engine, schedule)
    print_result({"deleted": schedule.id}, f"{schedule.name} removed")


def _schedule_line(schedule: Schedule) -> str:
    state = "enabled" if schedule.enabled else "disabled"
    return f"{schedule.name}  {schedule.trigger}  {state}  {schedule.id}"
