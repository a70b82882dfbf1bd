"""A launcher killed at a random moment: what must be true afterwards.

A job runs for two seconds and ends with exit code 0 or 3. The launcher is killed between its start and its
end, in one of three ways:

    SIGKILL            as a node that fails; then it is run again
    SIGTERM            as Terminate does it, with SIGKILL after a grace period
    SIGTERM, SIGKILL   SIGKILL at a random moment of that period; then it is run again
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from place import Place, a_place, delete, eventually
from step import Ended, Step, launch

from ddpipe.errors import ReplicaFailed
from ddpipe.kube.api import ApiServer

SIGKILL, SIGTERM, BOTH = WAYS = ("SIGKILL", "SIGTERM", "SIGTERM, SIGKILL")
_LAUNCHED = 3 / 4
_FAILED = 3
_INTERRUPTED = 143
_ENDS = 600
"""Seconds in which a launch ends; the controllers of a crowded cluster lag."""

_PATIENCE = ("--deadlines", "reconciled=600")
_SCRIPT = "trap 'exit 143' TERM; sleep 2 & wait $!; exit {}"


@dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        number: Which one of a series.
        way: One of `WAYS`.
        launched: Whether the moment is after the job was created; a process that starts takes as long.
        moment: When, as a share of the time that an undisturbed launch takes to create the job, or after it.
        grace: Seconds until SIGKILL, after SIGTERM.
        code: The exit code of the job's containers.
    """

    number: int
    way: str
    launched: bool
    moment: float
    grace: float
    code: int


@dataclass(frozen=True)
class Outcome:
    """What a kill led to.

    Attributes:
        kill: The kill.
        stage: What the launcher had done by then.
        codes: Exit codes of the launcher, and of the second one.
        jobs_ever: Jobs that existed.
        left: Jobs and pods that were left.
        text: What the launchers wrote.
    """

    kill: Kill
    stage: str
    codes: tuple[int, ...]
    jobs_ever: int
    left: int
    text: str

    @property
    def problem(self) -> str:
        """What is not right; empty if all is."""
        if self.left:
            return f"{self.left} jobs and pods are left"
        if self.codes[-1] not in self._right_codes:
            return f"exit codes {self.codes}"
        # A failed job is removed and created again when its step is run again; so is a deleted one.
        most = 2 if len(self.codes) > 1 and (self.kill.code or self.kill.way == BOTH) else 1
        return f"{self.jobs_ever} jobs existed" if self.jobs_ever > most else ""

    @property
    def _right_codes(self) -> set[int]:
        end = ReplicaFailed.exit_code if self.kill.code else 0
        if self.kill.way != SIGTERM or self.stage == "ended":
            return {end}
        # Before Python has begun, SIGTERM ends it as SIGKILL does; after the job's end it changes nothing.
        return {_INTERRUPTED, -15, -9} | ({end} if self.stage == "job removed" else set())


def drawn(seed: int, times: int, grace: float = 0.5) -> Iterator[Kill]:
    """Random kills, as many of each way; the same ones for the same seed.

    Args:
        seed: For the random numbers.
        times: How many.
        grace: Seconds from SIGTERM to SIGKILL; half a second is not enough for anything on a crowded machine.
    """
    rng = random.Random(seed)
    for number in range(times):
        code = _FAILED if rng.random() < 1 / 4 else 0
        way = WAYS[number % len(WAYS)]
        seconds = rng.uniform(0, grace) if way == BOTH else grace
        yield Kill(number, way, rng.random() < _LAUNCHED, rng.random(), seconds, code)


def series(admin: ApiServer, backend: str, kills: Sequence[Kill]) -> Iterator[Outcome]:
    """Do all of them, one after the other, in one namespace."""
    with tempfile.TemporaryDirectory() as folder, a_place(admin, Path(folder), backend=backend) as place:
        for warm_up in ("w1", "w2"):  # the first one takes longer than all others
            undisturbed = _undisturbed(place, warm_up)
        for kill in kills:
            yield _happen(place, kill, undisturbed)


def _undisturbed(place: Place, run: str) -> tuple[float, float]:
    """How long a launch takes to create its job, and from there to its end, in seconds."""
    began, step = time.monotonic(), _started(place, run, 0)
    _await_job(place, step)
    created, ended = time.monotonic(), step.end(_ENDS)
    assert ended.code == 0, ended.text
    return created - began, time.monotonic() - created


def _await_job(place: Place, step: Step) -> None:
    eventually(lambda: place.jobs() or step.process.poll() is not None, bool, 60, pause=0.02)


def _happen(place: Place, kill: Kill, undisturbed: tuple[float, float]) -> Outcome:
    run, before = f"r{kill.number}", place.jobs_ever()
    step = _started(place, run, kill.code)
    if kill.launched:
        _await_job(place, step)
    time.sleep(kill.moment * undisturbed[kill.launched])
    stage = _stage(place, step, before)
    ended = [step.kill() if kill.way == SIGKILL else step.terminate(kill.grace)]
    if ended[0].code < 0 or ended[0].code == _INTERRUPTED:
        ended += [_started(place, run, kill.code).end(_ENDS)] if kill.way != SIGTERM else []
    left = eventually(lambda: len(place.jobs()) + len(place.pods()), lambda count: not count, 120)
    ever = place.jobs_ever() - before
    if left:
        _remove(place)
    return Outcome(kill, stage, tuple(one.code for one in ended), ever, left, _texts(ended))


def _remove(place: Place) -> None:
    """Remove what is left, so that the next kill is judged by itself."""
    for job in place.jobs():
        delete(place.admin, place.jobs_path(job["metadata"]["name"]), propagationPolicy="Background")
    eventually(lambda: place.jobs() or place.pods(), lambda left: not left, 60)


def _started(place: Place, run: str, code: int) -> Step:
    return launch(place, _SCRIPT.format(code), *_PATIENCE, run=run)


def _stage(place: Place, step: Step, before: int) -> str:
    if step.process.poll() is not None:
        return "ended"
    if place.jobs():
        return "job exists"
    return "job removed" if place.jobs_ever() > before else "no job yet"


def _texts(ended: Sequence[Ended]) -> str:
    return "\n-- run again --\n".join(one.text for one in ended)
