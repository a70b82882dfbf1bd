"""Which ranks are present, and whether they do the same: checked before the work, and when it failed.

The ranks talk through torch's key-value store: it works before there is a process group, and after it broke.

meet     each rank writes its facts; rank 0 compares them and names ranks that did not join or that differ
answer   a thread of each rank answers a roll call even if the main thread is stuck, and then ends the rank
call     a rank that lost contact finds out which ranks do not answer, and which answer but are stuck

A rank whose machine lost its power may be back before anybody misses it: no packet says that its connections
are gone, and the others would wait for minutes. So the same thread sees that a rank has begun again and wants
to meet, or that the store is gone, and closes this rank's connections: its collective fails at once.

    10:00:00  rank 1's machine is off           rank 0 waits in all_reduce
    10:01:20  rank 1 begins again: request/3    rank 0 has met two ranks: it fails, and is started again
    10:01:25  both meet, and resume
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from torch._C import _distributed_c10d
from torch.distributed import DistError, PrefixStore, Store

from ddpipe.errors import TrainingError, listed
from ddpipe.processes.machine import leave

POLL, _LOOKS = 0.1, 50  # seconds between two looks into the store; so many later, at new connections

ANSWER = 2.0
"""Seconds in which a rank answers. Torchrun reports the first failure that it finds as the cause, and polls
for killed ranks ten times a second: it finds one before another rank reports it."""

GRACE = 10.0  # seconds that a rank has to end by itself when the store is gone: rank 0 may just be faster
# Seconds after which a silent connection is closed; Kubernetes gives up a lost machine's pods after 100.
_SILENCE = 120
_HEX = 32  # digits of a random name
LEAVE = 30.0  # seconds later at which a rank that is still stuck ends itself: only then is it started again
# Seconds without a turn for Python, as when a page of a file does not come, until the calls are printed
FROZEN = 45.0
FRAMES = 2  # how many calls of our or the user's code are reported of a stuck rank, besides the innermost
MOST_PLACES = 8  # stuck ranks whose calls are reported


def meet(store: Store, rank: int, size: int, facts: Mapping[str, str], patience: float) -> RollCall:
    """Wait until all ranks have joined, and check that their facts are equal.

    The store may hold what the ranks of an earlier start left: torchrun keeps it when it starts them again.
    So rank 0 gives this start a random name and sends it to each rank that requests it. A rank of an earlier
    start has ended and requests nothing, so what it left under another name is never read:

        rank 1 (old start)   request/1 = a3…  ended
        rank 0 (new start)   answer/a3… = 7f…   nobody reads it
        rank 1 (new start)   request/2 = c9…  ──▶  answer/c9… = 7f…  ──▶  7f…/facts/1
    """
    deadline = time.monotonic() + patience
    if rank == 0:
        return _Host(store, size, facts).receive(deadline)
    return _enter(store, rank, size, facts, deadline)


class _Host:
    """Rank 0, which admits the others."""

    def __init__(self, store: Store, size: int, facts: Mapping[str, str]) -> None:
        self._store, self._size, self._facts = store, size, facts
        self._name, self._counted = uuid4().hex, 0
        self._unanswered: list[int] = []
        self._processes: set[str] = set()
        self._channel = PrefixStore(self._name, store)

    def receive(self, deadline: float) -> RollCall:
        """Compare each rank as it joins: report a difference at once, not after the last one has joined."""
        self._channel.set("facts/0", json.dumps(dict(self._facts)))
        missing = list(range(1, self._size))
        while True:
            self._answer()
            joined = [other for other in missing if self._channel.check([f"facts/{other}"])]
            missing = [other for other in missing if other not in joined]
            facts = {other: json.loads(self._channel.get(f"facts/{other}")) for other in joined}
            problems = [text for other in facts for text in _differences(self._facts, 0, facts[other], other)]
            if not problems and missing and time.monotonic() > deadline:
                problems = [f"{_names(missing)} did not join"]
            if problems:
                self._channel.set("verdict", json.dumps(problems))
                time.sleep(2 * POLL)  # this process may hold the store that the others read it from
                raise _error_for_mismatch(0, self._size, problems)
            if not missing:
                self._channel.set("verdict", "[]")
                return RollCall(self._channel, 0, self._size, self._counted, self._processes)
            time.sleep(POLL)

    def _answer(self) -> None:
        counted = self._store.add("requests", 0)
        self._unanswered += range(self._counted + 1, counted + 1)
        self._counted = counted
        # A request is counted before it is written, and its writer may die in between.
        for number in [one for one in self._unanswered if self._store.check([f"request/{one}"])]:
            token = self._store.get(f"request/{number}").decode()
            self._store.set(f"answer/{token}", self._name)
            self._processes.add(token[:_HEX])
            self._unanswered.remove(number)


def _enter(store: Store, rank: int, size: int, facts: Mapping[str, str], deadline: float) -> RollCall:
    """Join as a rank other than 0: request the name of this start, write the facts, read the verdict."""
    token = _process(os.getpid()) + uuid4().hex
    try:
        store.set(f"request/{store.add('requests', 1)}", token)
        store.wait([f"answer/{token}"], _until(deadline))
        channel = PrefixStore(store.get(f"answer/{token}").decode(), store)
        if channel.add(f"place/{rank}", 1) > 1:
            raise _error_for_mismatch(rank, size, [f"there is another rank {rank}"])
        channel.set(f"facts/{rank}", json.dumps(dict(facts)))
        problems = _differences(facts, rank, json.loads(channel.get("facts/0")), 0)
        if not problems:
            channel.wait(["verdict"], _until(deadline + ANSWER))
            problems = json.loads(channel.get("verdict"))
    except DistError as error:
        raise _error_for_mismatch(rank, size, ["rank 0 did not join, or has left"]) from error
    if problems:
        raise _error_for_mismatch(rank, size, problems)
    return RollCall(channel, rank, size)


def _differences(own: Mapping[str, str], rank: int, facts: Mapping[str, str], other: int) -> list[str]:
    return [
        f"{name}: {facts.get(name)} on rank {other}, {own.get(name)} on rank {rank}"
        for name in sorted({*own, *facts})
        if own.get(name) != facts.get(name)
    ]


def _error_for_mismatch(rank: int, size: int, problems: list[str]) -> TrainingError:
    return TrainingError(
        what="the processes do not match",
        which=f"rank {rank} of {size}",
        seen=listed(problems),
        do="Start every rank once, from the same image, with the same arguments.",
    )


class RollCall:
    """The ranks of one process group, as they are known through the store that these ranks alone share."""

    def __init__(
        self, store: PrefixStore, rank: int, size: int, requests: int = 0, processes: Collection[str] = ()
    ) -> None:
        """For `meet`; rank 0 knows how many requests there were, and of which processes."""
        self.store, self._rank, self._size = store, rank, size
        self._requests, self._processes, self._cause = requests, processes, ""
        self._others = [other for other in range(size) if other != rank]

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer a roll call with what the main thread does at that moment."""
        ended, worker = threading.Event(), threading.get_ident()
        store = cast("PrefixStore", self.store.clone())

        def answer() -> None:
            cause, grace, looks = "rank 0, or the process with the ranks' store, has ended", GRACE, 0
            with suppress(DistError):
                store.set(f"host/{self._rank}", socket.gethostname())
                while not ended.wait(POLL):
                    if not looks % _LOOKS:
                        _each_connection(_notice_silence)
                        faulthandler.dump_traceback_later(FROZEN, file=2)  # by a thread that needs no turn
                    looks += 1
                    if store.check(["roll-call"]):
                        store.set(f"here/{self._rank}", doing(worker))
                        cause = ""
                        break
                    if self._rank == 0 and self._has_newcomer(store.underlying_store):
                        cause, grace = "a rank has begun again, and waits for all others", 0.0
                        break
            if cause and not ended.wait(grace):
                self._cause = cause
                _each_connection(lambda peer: peer.shutdown(socket.SHUT_RDWR))
            if not ended.wait(LEAVE):
                sys.stderr.write(f"rank {self._rank} has not ended although others have: {doing(worker)}\n")
                leave(TrainingError.exit_code)

        thread = threading.Thread(target=answer, name="roll-call", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(ANSWER)
            faulthandler.cancel_dump_traceback_later()

    def call(self) -> str:
        """Who is missing, in words; for a rank that lost contact while others may be about to."""
        if self._cause:
            return self._cause
        found: list[str] = []

        def ask() -> None:
            with suppress(DistError):
                self.store.set(f"lost/{self._rank}", "")
                self.store.set("roll-call", "")
                time.sleep(ANSWER)
                found.append(self.absent())

        # A store whose machine is gone may keep its caller waiting for minutes.
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(2 * ANSWER)
        if self._rank == 0:
            # The store is in this process: others that lose contact a moment later have to read it too.
            time.sleep(ANSWER)
        return found[0] if found else "rank 0, or the process with the ranks' store, does not answer any more"

    def _has_newcomer(self, store: Store) -> bool:
        """Whether another process wants to meet; those that are here may open another group."""
        new = (f"request/{one + 1}" for one in range(self._requests, store.add("requests", 0)))
        return any(
            store.check([key]) and store.get(key).decode()[:_HEX] not in self._processes for key in new
        )

    def absent(self, late: str = "did not keep up") -> str:
        """Which of the others do not answer, or else which are `late`, in words."""
        silent = [other for other in self._others if not self.store.check([f"here/{other}"])]
        if silent:
            verb = "does" if len(silent) == 1 else "do"
            return (
                f"{_names(silent)} {verb} not answer any more: it ended, was killed, or its machine is gone"
                f" (host {', '.join(sorted({self._host(other) for other in silent[:MOST_PLACES]}))})"
            )
        stuck = [other for other in self._others if not self.store.check([f"lost/{other}"])]
        places = [
            f"rank {other} on host {self._host(other)} at {self.store.get(f'here/{other}').decode()}"
            for other in (stuck or self._others)[:MOST_PLACES]
        ]
        failed = "all ranks answer: the network between them failed, or they wait in different collectives"
        return f"{f'{_names(stuck)} answered but {late}' if stuck else failed}: {'; '.join(places)}"

    def _host(self, other: int) -> str:
        return self.store.get(f"host/{other}").decode() if self.store.check([f"host/{other}"]) else "unknown"


@cache
def _process(_pid: int) -> str:
    """A name of this process that no other one has; a forked one has a number of its own."""
    return uuid4().hex


def _each_connection(do: Callable[[socket.socket], object]) -> None:
    """Do something to every TCP connection of this process, whichever library opened it."""
    for entry in [*Path("/proc/self/fd").glob("*")]:
        with suppress(OSError):  # closed meanwhile, or no connection
            if str(entry.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as peer:
                    if peer.type == socket.SOCK_STREAM and peer.family in {socket.AF_INET, socket.AF_INET6}:
                        peer.getpeername()
                        do(peer)


def _notice_silence(peer: socket.socket) -> None:
    """Let a connection fail whose other end is gone, also while nothing is sent."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE // 4)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENCE // 12)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 9)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENCE)


def _names(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _until(deadline: float) -> timedelta:
    return timedelta(seconds=max(0.001, deadline - time.monotonic()))


def doing(thread: int | None) -> str:
    """The calls of a thread, and of one beside it that may keep it waiting, such as one that reads."""
    frames = sys._current_frames()  # noqa: SLF001 - there is no other way
    others = [frame for one, frame in frames.items() if one not in {thread, threading.get_ident()}]
    main, *beside = (calls_of(traceback.extract_stack(one)) for one in (frames.get(thread or 0), *others))
    return ", beside ".join([main, *[one for one in beside if "<" in one][:1]]) + collective()


def collective() -> str:
    """The collective that this process waits in, or began last, if torch's flight recorder knows it."""
    ended, pending = list[Any](), list[Any]()
    with suppress(Exception):  # it is not public
        for one in recorded(entries=True):
            done = {group: int(at["last_completed_collective"]) for group, at in one["pg_status"].items()}
            for entry in one.get("entries", ()):
                is_pending = entry["collective_seq_id"] > done[str(entry["pg_id"])]
                (pending if is_pending else ended).append(entry)
        last = [*pending[:1], *ended[::-1]][0]
        (_, group), number = last["process_group"], last["collective_seq_id"]
        of = "" if group == "default_pg" else f" of group {group}"
        return f", last collective: number {number}{of}, {last['profiling_name']}"
    return ""


def recorded(*, entries: bool) -> list[dict[str, Any]]:
    """What torch's flight recorders, one of each backend, have of this process's collectives."""
    dump = _distributed_c10d._dump_fr_trace_json  # noqa: SLF001
    return [json.loads(dump(entries, False, one)) for one in ("gloo", "nccl", "nccl2")]  # noqa: FBT003


def calls_of(stack: traceback.StackSummary) -> str:
    """The innermost call, and those below it that are no library's: "all_reduce < loop.py:91 run"."""
    own, libraries = str(Path(__file__).parents[1]), (sysconfig.get_path("stdlib"), "<")

    def is_library(file: str) -> bool:
        return not file.startswith(own) and (file.startswith(libraries) or "site-packages" in file)

    inner, *outer = reversed(stack)
    shown = [inner, *[call for call in outer if not is_library(call.filename)][:FRAMES]]
    return " < ".join(f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in shown)
