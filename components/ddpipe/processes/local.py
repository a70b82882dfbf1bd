"""Training on this machine: torchrun starts the ranks, and the first error among them is raised here.

A rank of ours that works alone starts without torchrun, which would first import torch for itself (2 s).

A rank's standard output is its progress: it becomes this process's standard error. Its standard error, and
torchrun's, is held back and shown only if a rank dies without reporting an error. What a program of a user
own prints is shown as it comes; only torchrun's lines are held back.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import Any

from ddpipe.errors import DdpipeError, Interrupted, ParameterError, ReplicaFailed, TrainingError, from_dict
from ddpipe.processes.machine import LAUNCHED, Killed, cpus, first_killed, name_of, on_stop, oom_kills
from ddpipe.processes.progress import widget_bar

_TORCHRUN = (sys.executable, "-m", "ddpipe.torchrun", "--standalone")
REPORTS = "DDPIPE_REPORT_SECONDS"  # of a training: how often it reports, where a notebook follows
_STDERR = 2  # the file itself: a notebook's sys.stderr has none
_LAST_LINES = 20
_PATIENCE = 30.0  # seconds from SIGTERM to SIGKILL, as torchrun's
# What torchrun would give a rank; a process that is its whole group may meet itself at any port.
_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
_ALONE |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
_FAILED = re.compile(r"rank +: (\d+) .*\n.*exitcode +: (\d+)")


def run_local(module: str, arguments: Sequence[str], processes: int, max_restarts: int = 0) -> None:
    """Run `python -m module arguments` as ranks of one process group, and wait for all of them."""
    _run(("-m", module, *arguments), processes, max_restarts)


def run_program(command: Sequence[str], processes: int) -> None:
    """Run a command of the user's own as each of these ranks; `torchrun` in it means what starts them."""
    is_torchrun = command[0] == "torchrun"
    if not is_torchrun and not shutil.which(command[0]):
        raise ParameterError(
            what="the command cannot run here",
            which=" ".join(command),
            seen=f"there is no program {command[0]!r}",
            do="Check its name and PATH.",
        )
    _run(command[1:] if is_torchrun else ("--no-python", *command), processes, is_own=True)


def _run(program: Sequence[str], processes: int, max_restarts: int = 0, *, is_own: bool = False) -> None:
    # SIGTERM and SIGINT are passed on, so that the ranks save and stop. If this process dies, they do the
    # same.
    if not find_spec("torch"):
        raise ParameterError(
            what="training cannot run here",
            which=sys.executable,
            seen="it has no torch; the launcher image does not include it",
            do="Launch a job that trains, or install ddpipe[train].",
        )
    with tempfile.TemporaryDirectory(prefix="ddpipe-") as folder:
        kept_back = Path(folder, "stderr")
        options = (f"--nproc-per-node={processes}", f"--max-restarts={max_restarts}", f"--log-dir={folder}")
        environment = _environment(processes) | ({"DDPIPE_REPORT": str(kept_back)} if is_own else {})
        if alone := processes == 1 and not max_restarts and not is_own:
            own_error = Path(folder, "attempt_0/0/error.json")
            own_error.parent.mkdir(parents=True)
            environment |= _ALONE | {"TORCHELASTIC_ERROR_FILE": str(own_error)}
        ended = oom_kills()
        with (
            kept_back.open("wb") as stderr,
            subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, *program] if alone else [*_TORCHRUN, *options, *program],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                stderr=_STDERR if is_own else stderr,
                start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
            ) as started,
            on_stop(lambda: _stop(started) if alone else started.terminate()) as signals,
        ):
            code = started.wait()
        if code or signals:
            report = kept_back.read_text(errors="replace")
            error = _first_error(
                Path(folder), report, code, is_shown=is_own, is_stopped=bool(signals), alone=alone
            )
            if isinstance(error, ReplicaFailed) and "SIGKILL" in error.seen and oom_kills() > ended:
                error.seen = error.seen.replace("SIGKILL", "the kernel, out of memory, with SIGKILL", 1)
            raise error


def _stop(rank: subprocess.Popen[bytes]) -> None:
    rank.terminate()
    kill = Timer(_PATIENCE, rank.kill)
    kill.daemon = True
    kill.start()


def _environment(processes: int) -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": str(max(1, cpus() // processes))}
    reports = {REPORTS: "1"} if widget_bar() else {}
    return {**threads, **reports, **os.environ, "DDPIPE_PARENT": str(os.getpid()), LAUNCHED: str(time.time())}


def _first_error(
    folder: Path, stderr: str, code: int, *, is_shown: bool, is_stopped: bool, alone: bool = False
) -> DdpipeError:
    """The cause among the errors: one rank's failure makes others lose contact, or be stopped."""
    starts = sorted(folder.glob("**/attempt_*"), key=lambda path: int(path.name.partition("_")[2]))
    errors = starts[-1].glob("**/error.json") if starts else ()
    files = sorted(errors, key=lambda path: path.stat().st_mtime_ns)
    raised = [_error(path) for path in files]
    causes = [error for error in raised if type(error) not in {TrainingError, Interrupted}]
    if causes:
        return causes[0]
    end = "\n".join(stderr.splitlines()[-_LAST_LINES:])
    last_lines = "its last lines are above" if is_shown else f"last lines:\n{end}"
    killed = Killed(0, name_of(-code)) if alone and code < 0 else first_killed(stderr)
    if killed and not is_stopped:
        return ReplicaFailed(
            what="a process was killed",
            which=f"rank {killed.rank} on this machine",
            seen=f"{killed.signal} ended it; {last_lines}",
            do=f"SIGKILL usually means out of memory: see `dmesg`. {Interrupted.AGAIN}",
        )
    if raised:
        return raised[0]
    if is_stopped:
        return Interrupted(
            what="the work was interrupted",
            which="the processes on this machine",
            seen="no process reported what it saved" if code else "the stop came when they were done",
            do=Interrupted.AGAIN,
        )
    failed = _FAILED.search(stderr.partition("Root Cause")[2])
    if failed or alone:
        return ReplicaFailed(
            what="a process failed",
            which=f"rank {failed[1] if failed else 0} on this machine",
            seen=f"exit code {failed[2] if failed else code}; {last_lines}",
            do="Correct the cause that they name, and run the same command again.",
        )
    return ReplicaFailed(
        what="the processes did not run",
        which="torchrun on this machine",
        seen=f"exit code {code}; its last lines:\n{end}",
        do="Look for the first error among these lines.",
    )


def _error(path: Path) -> DdpipeError:
    """What a rank wrote into its error file (ddpipe.distributed.run_rank), as an error again."""
    message = json.loads(path.read_text())["message"]
    details: dict[str, Any] = message["extraInfo"]
    if "error" in details:
        return from_dict(details)
    return ReplicaFailed(
        what="a process failed",
        which=f"rank {path.parent.name} on this machine",
        seen=f"{message['message']}\n{details['py_callstack']}",
        do="The last of these lines is where it failed; if it is one of ddpipe's, report all of them.",
    )
