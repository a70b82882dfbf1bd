"""`ddpipe.launch` and `ddpipe.attach`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ddpipe.errors import NoSuchObject, ParameterError
from ddpipe.jobs import LOCAL
from ddpipe.jobs.options import JobOptions
from ddpipe.notebook.folder import CALL, PRIVATE, RECORD, SOURCE, Launch
from ddpipe.notebook.handle import Handle
from ddpipe.notebook.machine import Machine, Secrets
from ddpipe.parameters import AUTO, declared, refuse, with_declared
from ddpipe.processes.packing import Work, packed
from ddpipe.runs import Run
from ddpipe.storage import open_store

_LOCAL_OPTIONS = {"backend", "nodes", "processes"}


@with_declared(JobOptions)
def launch(
    work: Work,
    *,
    args: Mapping[str, object] | None = None,
    name: str = "",
    runs: str = "runs",
    namespace: str = "",
    **options: Any,  # noqa: ANN401 - those of JobOptions
) -> Handle:
    """Run a function or a script as the ranks of one process group, and return at once with a handle on it.

    Each rank calls the function and joins the group with `ddpipe.distributed.process_group` or torch itself.
    Rank 0's return value and the files that it leaves in the folder $DDPIPE_OUTPUTS come back through the
    handle. The launch survives a restart of the kernel: `ddpipe.attach` finds it by its name.

    With backend="local" the ranks are processes of this machine, and of the options of a job only nodes and
    processes may be given. The image of a job needs ddpipe, and for a function the Python version of this
    process. After a restart, or with fewer pods, the function starts again from its beginning and has to
    resume from its own checkpoint. Anyone who may read pods in the namespace sees `env`; for passwords, mount
    a Secret with `volumes`.

    Args:
        work: A function, which ships the variables and helpers that it uses; or the path of a script.
        args: The function's arguments by name; a script gets them as `--name value`.
        name: Name of the launch, to attach to it later; a name is used once (default: the function's name
            and the time).
        runs: URI of the folder for the call and its result. Pods must reach it: s3://bucket/prefix, or a path
            on a volume that they mount. Anyone who can write to it can replace what the pods read, except for
            the call and the result, which are verified.
        namespace: Namespace of the job (default: that of the kubeconfig or the pod).
        options: Of the job.

    Raises:
        ParameterError: The function cannot be shipped, an option is wrong, or the name is taken.
        StoreError: The folder cannot be written to.
    """
    call = packed(work, args or {})
    chosen, backend = _checked(options)
    public = {} if backend == LOCAL else chosen.to_dict()
    private = {key: public.pop(key) for key in PRIVATE if public.get(key)}
    readable = re.sub(r"[^a-z0-9]+", "-", call.name.lower()).strip("-") or "work"
    launched = Launch(
        name=name or f"{readable}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}",
        work=call.name,
        sha256=call.sha256,
        backend=backend,
        nodes=chosen.nodes,
        processes=chosen.processes,
        namespace=namespace,
        options=public,
        private=tuple(private),
    )
    folder = open_store(Run.named(runs, launched.name).uri)
    if folder.exists(RECORD):
        raise ParameterError(
            what="this cannot be launched",
            which=folder.uri,
            seen="a launch of this name exists",
            do=f"Choose another name, or attach to it: ddpipe.attach({launched.name!r}, runs={runs!r}).",
        )
    folder.write(CALL, call.content)
    folder.write(SOURCE, call.source.encode())
    launched.write(folder)
    machine = Machine(folder.uri)
    machine.keep(Secrets(options=private))
    machine.start()
    return Handle(launched, folder, machine)


def attach(name: str, runs: str = "runs", *, key: str = "") -> Handle:
    """Return the handle of an earlier launch, also in another kernel or on another machine.

    If its launcher is gone, a new one adopts the job; no job is created.

    Args:
        name: Name of the launch.
        runs: The same folder as for the launch.
        key: The `key` of the first handle, needed on another machine to open the result: it proves that the
            job wrote it, and is kept on the machine of the launch only.

    Raises:
        ParameterError: There is no such launch.
        StoreError: The folder cannot be read.
    """
    folder = open_store(Run.named(runs, name).uri)
    try:
        launched = Launch.read(folder)
    except NoSuchObject as error:
        raise ParameterError(
            what="there is nothing to attach to",
            which=folder.uri,
            seen=f"it has no {RECORD}: nothing was launched under this name",
            do="Check the name, and that runs is the same as for the launch.",
        ) from error
    machine = Machine(folder.uri)
    if key and not machine.secrets().key:
        if not re.fullmatch(r"[0-9a-f]{64}", key):
            raise ParameterError(
                what="this is not the key of a launch",
                which="key",
                seen=f"{len(key)} characters, not 64 hexadecimal digits",
                do="Print handle.key on the machine of the launch.",
            )
        machine.keep(Secrets(key))
    handle = Handle(launched, folder, machine)
    if handle.status().phase == "lost" and launched.backend != LOCAL:
        machine.start("adopt")
    return handle


def _checked(options: Mapping[str, Any]) -> tuple[JobOptions, str]:
    """The options of the job, and the backend, which may be "local"."""
    backend = options.get("backend", AUTO)
    if backend != LOCAL:
        return JobOptions.from_dict(options), backend
    local = {name: value for name, value in options.items() if name in _LOCAL_OPTIONS - {"backend"}}
    defaults = {item.name: item.default for item in declared(JobOptions)}
    problems = [
        f"{name} is for the pods of a job"
        for name, value in options.items()
        if name not in _LOCAL_OPTIONS
        and (list(value) if isinstance(value, tuple) else value) != defaults.get(name)
    ]
    found = [item.problem(local[item.name]) for item in declared(JobOptions) if item.name in local]
    refuse(f"this cannot be launched with backend={LOCAL!r}", [*problems, *filter(None, found)])
    return JobOptions(**local), LOCAL
