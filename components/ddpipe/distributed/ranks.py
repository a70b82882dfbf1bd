"""A process that is a rank: its number, its log, and how it ends; and ranks on this machine for a function.

from ddpipe.distributed import process_group, spawn

    def work(shards):
        with process_group() as world:
            ...
        return result

    result = spawn(work, 4, shards)
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from itertools import dropwhile
from pathlib import Path
from typing import NoReturn, TypeVar

import cloudpickle
import torch
from torch.distributed import TCPStore
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, start_processes

from ddpipe.errors import DdpipeError, ParameterError, TrainingError
from ddpipe.processes.machine import act_without, leave

_MOST = 2000  # characters of a traceback: Kubernetes keeps 4096 bytes of a termination message


def rank() -> int:
    """This process's rank as its environment has it; 0 when it was started alone."""
    return int(os.environ.get("RANK", "0"))


def run_rank(body: Callable[[], object]) -> NoReturn:
    """Run `body` as this process's whole work and end the process with its exit code.

    An error goes to standard error, and in torch's layout to the file that TORCHELASTIC_ERROR_FILE names. The
    interpreter is not finalized: one of gloo's threads may be waiting for a peer that is gone, and would
    abort.
    """
    log_as_rank()
    act_without("DDPIPE_PARENT", lambda: os.kill(os.getpid(), signal.SIGTERM))  # there without torchrun only
    try:
        body()
    except DdpipeError as error:
        record(str(error), error.exit_code, dict(error.as_dict()))
        sys.stderr.write(f"{error}\n")
        leave(error.exit_code)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a bug: its traceback, also in the file
        lines = own_lines(error)
        record(f"{type(error).__name__}: {error}", 1, {"py_callstack": lines[-_MOST:]})
        sys.stderr.write(lines)
        leave(1)
    leave(0)


def own_lines(error: BaseException) -> str:
    """The traceback of an error from the first line of the user's code; all of it, if there is none."""
    shown = traceback.TracebackException.from_exception(error)
    caller = ("<frozen", str(Path(__file__).parents[1]))
    own = list(dropwhile(lambda frame: frame.filename.startswith(caller), shown.stack))
    shown.stack = traceback.StackSummary.from_list(own or shown.stack)
    return "".join(shown.format())


def log_as_rank() -> None:
    """Log to standard output; ranks other than 0 prefix their number and do not repeat library warnings."""
    form = f"[rank {rank()}] %(message)s" if rank() else "%(message)s"
    logging.basicConfig(stream=sys.stdout, level=logging.ERROR if rank() else logging.WARNING, format=form)
    logging.getLogger("ddpipe").setLevel(logging.INFO)
    logging.captureWarnings(capture=True)


def record(message: str, exit_code: int, details: dict[str, str | int]) -> None:
    """Write an error into the file that torchrun reads."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = details | {"timestamp": str(int(time.time()))}
        content = {"message": {"message": message, "errorCode": exit_code, "extraInfo": extra}}
        Path(path).write_text(json.dumps(content))


T = TypeVar("T")


def spawn(work: Callable[..., T], processes: int, *arguments: object) -> T:
    """Call `work(*arguments)` as every rank of new processes, and return a copy of what rank 0 returned."""
    if processes < 1:
        raise ParameterError(
            what="processes cannot be started",
            which=f"{processes} processes",
            seen="a process group has at least one",
            do="Give the number of processes as 1 or more.",
        )
    with tempfile.TemporaryDirectory(prefix="ddpipe-") as name:
        folder = Path(name)
        (folder / "work").write_bytes(cloudpickle.dumps((work, arguments)))
        # It listens before a rank learns where: a free port may be taken by the time that rank 0 binds it.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        group = start_processes(
            _rank, (processes, store.port, folder), nprocs=processes, join=False, start_method="spawn"
        )
        try:
            while not group.join():
                pass
        except (ProcessRaisedException, ProcessExitedException) as error:
            raise _cause(folder, error) from None
        result: T = cloudpickle.loads((folder / "result").read_bytes())
        return result


def _rank(rank: int, processes: int, port: int, folder: Path) -> None:
    """What a new process does; it finds the environment that torchrun would give it."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(processes),
        LOCAL_WORLD_SIZE=str(processes),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    torch.set_num_threads(max(1, torch.get_num_threads() // processes))
    log_as_rank()
    try:
        work, arguments = cloudpickle.loads((folder / "work").read_bytes())
        result = work(*arguments)
    except Exception as error:
        _write(folder / f"error-{time.time_ns()}-{rank}", _picklable(error))
        raise
    if rank == 0:
        _write(folder / "result", cloudpickle.dumps(result))


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_bytes(content)
    partial.rename(path)


def _picklable(error: Exception) -> bytes:
    try:
        content: bytes = cloudpickle.dumps(error)
        pickle.loads(content)  # noqa: S301 - what this process has just written
    except Exception:  # noqa: BLE001 - an error may hold anything
        content = cloudpickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return content


def _cause(folder: Path, ended: ProcessRaisedException | ProcessExitedException) -> Exception:
    """The first error of a rank; one that lost another rank is not the cause if there is a better one."""
    errors: list[Exception] = [
        pickle.loads(path.read_bytes())  # noqa: S301 - our own processes wrote it, for us alone
        for path in sorted(folder.glob("error-*"))
    ]
    causes = [error for error in errors if type(error) is not TrainingError]
    if causes or (errors and isinstance(ended, ProcessRaisedException)):
        return (causes or errors)[0]
    name = getattr(ended, "signal_name", None)
    return TrainingError(
        what="a process ended before its work was done",
        which=f"rank {ended.error_index}",
        seen=f"{name} ended it" if name else "it left without an error",
        do="SIGKILL mostly means out of memory: see `dmesg`.",
    )
