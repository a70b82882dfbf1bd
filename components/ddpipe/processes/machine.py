"""Processes: main programs that start and end fast, although torch is large; signals; whether one lives.

Importing torch makes a million objects that stay. With Python's own settings they are searched for garbage
again and again, a third of the time that a rank takes to start; and more than a second goes by when
they are taken apart at the end.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

# New objects before the youngest are searched; searches of one generation before one of the next.
_THRESHOLDS = (100_000, 50, 1000)
_LOOK_SECONDS = 0.5
LAUNCHED = "DDPIPE_LAUNCHED"  # Variable with the time at which a command began to start processes
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # names of glibc's options
# Large blocks of a process, as glibc limits them by default; and bytes of a block that counts as one.
_USUAL_MAPS, _LARGE = 2**16, 2**20


def search_rarely() -> None:
    """Search this process rarely for garbage; for a main program's first line."""
    gc.set_threshold(*_THRESHOLDS)


def keep_memory() -> None:
    """Let this process keep the memory of large arrays and tensors for the next ones."""
    # By default the C library gives it back to the system and asks for it again: a tenth of the time in which
    # images are prepared, and a sixth of that in which a network is trained on a CPU, goes to page faults.
    # glibc's: others have no such options, and do without.
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)


def return_memory() -> None:
    """Let this process return the memory of each large array and tensor at once, also after `keep_memory`."""
    # For what barely fits: blocks of different sizes leave gaps in memory that is kept.
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_MAX, _USUAL_MAPS)
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, _LARGE)


def give_memory_back() -> None:
    """Let the system have what is free between the objects of this process, also after `keep_memory`."""
    if malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
        malloc_trim(0)


def launched_at() -> float:
    """When the command that started this process began to, as `time.time`; now if it did not pass that on."""
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    return float(os.environ.get(LAUNCHED, time.time())) if first else time.time()


def is_alive(pid: int) -> bool:
    """Whether there is such a process on this machine, of any user."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def act_without(variable: str, act: Callable[[], object]) -> None:
    """Call `act` from a thread once the process that this environment variable names is gone."""

    def watch(parent: int) -> None:
        while is_alive(parent):
            time.sleep(_LOOK_SECONDS)
        act()

    if parent := os.environ.pop(variable, ""):
        threading.Thread(target=watch, args=(int(parent),), daemon=True).start()


def leave(exit_code: int) -> NoReturn:
    """End this process at once, after flushing its output."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it
            stream.flush()
    os._exit(exit_code)


def clean_up_and_leave(exit_code: int) -> NoReturn:
    """End this process after running the exit handlers of libraries, which remove their temporary files."""
    atexit._run_exitfuncs()  # noqa: SLF001 - how multiprocessing ends its processes, too
    leave(exit_code)


CGROUP = Path("/sys/fs/cgroup")


def cpus(cgroup: Path = CGROUP) -> int:
    """At least 1: the CPUs that the scheduler and the container's quota both grant, rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _quota(cgroup))))


def _quota(cgroup: Path) -> float:
    """CPUs by the cgroup's quota, of version 2 or 1; infinite without one."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    return math.inf if quota in {"max", "-1"} else int(quota) / int(period)


STOPS: list[int] = []  # all signals that asked this process to stop


@contextmanager
def on_stop(act: Callable[[], object]) -> Iterator[list[int]]:
    """Call `act`, which may raise, for every SIGTERM and SIGINT; yields the list of those that came."""
    # Only a process's main thread may do this: elsewhere it does nothing.
    heard: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        STOPS.append(number)
        act()

    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if main else ()
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def name_of(number: int) -> str:
    """SIGKILL for 9; of a number without a name, the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_TIME = re.compile(r"time\s*: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)")
_KILLED = re.compile(
    _TIME.pattern + r"\n.*\n\s*rank\s*: (\d+).*\n\s*exitcode\s*: -(\d+) .*\n\s*error_file: <N/A>"
)
# torchrun waits for 30 s from SIGTERM to SIGKILL when it ends the others; its times are whole seconds.
_PATIENCE = timedelta(seconds=25)


def oom_kills() -> int:
    """How many processes of this machine the kernel has ended for want of memory."""
    with suppress(OSError):
        if found := re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE):
            return int(found[1])
    return 0


class Killed(NamedTuple):
    """A rank that a signal ended."""

    rank: int
    signal: str


def first_killed(report: str) -> Killed | None:
    """The first rank that a signal ended before it could write its error, if torchrun's report names one."""
    others, _, root = report.partition("Root Cause")  # torchrun names the first to fail last
    began = _TIME.search(root)
    for at, rank, number in [*_KILLED.findall(root), *_KILLED.findall(others)]:
        # A rank that is stuck ends by torchrun's own SIGKILL, long after the one that noticed it.
        by_torchrun = number == str(signal.SIGTERM.value) or (
            began is not None and _moment(at) - _moment(began[1]) >= _PATIENCE
        )
        if not by_torchrun:
            return Killed(int(rank), name_of(int(number)))
    return None


def _moment(text: str) -> datetime:
    """The time in torchrun's report, in the machine's time zone."""
    return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").astimezone()
