"""Who is there, and whether all are about the same: asked before the work begins, and when it broke.

The ranks talk through torch's key-value store: it works before there is a process group, and after it broke.

meet     each rank leaves a card; rank 0 compares them, and says who did not come and whose card differs
answer   a thread of each rank answers when somebody calls the roll, whatever the rank's work is stuck in
call     a rank that lost contact learns who does not answer, and who answers but does not come along
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from torch.distributed import DistError, PrefixStore, Store

from ddpipe.errors import TrainingError, listed

POLL = 0.1
"""Seconds between two looks into the store."""

ANSWER = 2.0
"""Seconds in which a rank answers. Torchrun takes the first failure that it sees for the cause, and looks for
killed ranks ten times a second: it sees one before another rank tells of it."""

FRAMES = 2
"""Of a rank that is stuck: how many of the innermost calls are told."""


def meet(store: Store, rank: int, size: int, card: Mapping[str, str], patience: float) -> RollCall:
    """Wait until all ranks are here, and make sure that they are about the same.

    The store may hold what the ranks of an earlier start left: torchrun keeps it when it starts them again.
    So rank 0 gives this start a name, and tells it to whoever knocks; who is no more does not come in.

    Args:
        store: That all ranks reach.
        rank: Of this process.
        size: How many ranks there are.
        card: What has to be the same on all ranks, by name.
        patience: Seconds to wait.

    Raises:
        TrainingError: A rank does not come, is here twice, or differs.
    """
    deadline = time.monotonic() + patience
    if rank == 0:
        return _Host(store, size, card).receive(deadline)
    return _enter(store, rank, size, card, deadline)


class _Host:
    """Rank 0, which lets the others in."""

    def __init__(self, store: Store, size: int, card: Mapping[str, str]) -> None:
        self._door, self._size, self._card = store, size, card
        self._name, self._counted = uuid4().hex, 0
        self._unanswered: list[int] = []
        self._room = PrefixStore(self._name, store)

    def receive(self, deadline: float) -> RollCall:
        """Compare each rank as it comes: who differs is told at once, not after the last one has come."""
        self._room.set("card/0", json.dumps(dict(self._card)))
        missing = list(range(1, self._size))
        while True:
            self._answer()
            come = [other for other in missing if self._room.check([f"card/{other}"])]
            missing = [other for other in missing if other not in come]
            problems = [problem for other in come for problem in self._differences(other)]
            if not problems and missing and time.monotonic() > deadline:
                problems = [f"{_names(missing)} did not come"]
            if problems:
                self._room.set("verdict", json.dumps(problems))
                time.sleep(2 * POLL)  # this process may hold the store that the others read it from
                raise _refused(0, self._size, problems)
            if not missing:
                self._room.set("verdict", "[]")
                return RollCall(self._room, 0, self._size)
            time.sleep(POLL)

    def _answer(self) -> None:
        counted = self._door.add("knocks", 0)
        self._unanswered += range(self._counted + 1, counted + 1)
        self._counted = counted
        # A knock is counted before it is written, and its writer may die in between.
        for number in [one for one in self._unanswered if self._door.check([f"knock/{one}"])]:
            self._door.set(f"answer/{self._door.get(f'knock/{number}').decode()}", self._name)
            self._unanswered.remove(number)

    def _differences(self, other: int) -> list[str]:
        return _differences(self._card, 0, json.loads(self._room.get(f"card/{other}")), other)


def _enter(store: Store, rank: int, size: int, card: Mapping[str, str], deadline: float) -> RollCall:
    """A rank other than 0 knocks, shows its card, and hears whether all of them fit together."""
    token = uuid4().hex
    try:
        store.set(f"knock/{store.add('knocks', 1)}", token)
        store.wait([f"answer/{token}"], _until(deadline))
        room = PrefixStore(store.get(f"answer/{token}").decode(), store)
        if room.add(f"place/{rank}", 1) > 1:
            raise _refused(rank, size, [f"there is another rank {rank}"])
        room.set(f"card/{rank}", json.dumps(dict(card)))
        problems = _differences(card, rank, json.loads(room.get("card/0")), 0)
        if not problems:
            room.wait(["verdict"], _until(deadline + ANSWER))
            problems = json.loads(room.get("verdict"))
    except DistError as error:
        raise _refused(rank, size, ["rank 0 did not come, or has left"]) from error
    if problems:
        raise _refused(rank, size, problems)
    return RollCall(room, rank, size)


def _differences(own: Mapping[str, str], rank: int, card: Mapping[str, str], other: int) -> list[str]:
    return [
        f"{name}: {card.get(name)} on rank {other}, {own.get(name)} on rank {rank}"
        for name in sorted({*own, *card})
        if own.get(name) != card.get(name)
    ]


def _refused(rank: int, size: int, problems: list[str]) -> TrainingError:
    return TrainingError(
        what="the processes do not fit together",
        which=f"rank {rank} of {size}",
        seen=listed(problems),
        do="Start every rank once, from the same image, with the same arguments.",
    )


class RollCall:
    """The ranks of one process group, as they are known through the store.

    Attributes:
        store: What the ranks of this start alone share.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        """For `meet`."""
        self.store, self._rank, self._size = store, rank, size
        self._others = [other for other in range(size) if other != rank]

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer when the roll is called, telling what the main thread does at that moment."""
        ended, store, worker = threading.Event(), self.store.clone(), threading.get_ident()

        def answer() -> None:
            # Without the store there is nobody to answer.
            with suppress(DistError):
                while not ended.wait(POLL):
                    if store.check(["roll-call"]):
                        store.set(f"here/{self._rank}", _doing(worker))
                        return

        thread = threading.Thread(target=answer, name="roll-call", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(ANSWER)

    def call(self) -> str:
        """Who is missing, in words; for a rank that lost contact while others may be about to."""
        found: list[str] = []

        def ask() -> None:
            with suppress(DistError):
                self.store.set(f"lost/{self._rank}", "")
                self.store.set("roll-call", "")
                time.sleep(ANSWER)
                found.append(self._absent())

        # A store whose machine is gone may keep its caller waiting for minutes.
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(2 * ANSWER)
        if self._rank == 0:
            # The store is in this process: others that lose contact a moment later have to read it too.
            time.sleep(ANSWER)
        return (
            found[0] if found else "rank 0, or whoever holds the store of the ranks, does not answer any more"
        )

    def _absent(self) -> str:
        silent = [other for other in self._others if not self.store.check([f"here/{other}"])]
        if silent:
            verb = "does" if len(silent) == 1 else "do"
            return (
                f"{_names(silent)} {verb} not answer any more: it ended, was killed, or its machine is gone"
            )
        stuck = [other for other in self._others if not self.store.check([f"lost/{other}"])]
        if not stuck:
            return "all ranks answer: the network between them broke"
        places = [f"rank {other} at {self.store.get(f'here/{other}').decode()}" for other in stuck]
        return f"{_names(stuck)} answered but did not come along: {'; '.join(places)}"


def _names(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _until(deadline: float) -> timedelta:
    return timedelta(seconds=max(0.001, deadline - time.monotonic()))


def _doing(thread: int) -> str:
    """The innermost calls of a thread: "loader.py:57 share < loop.py:91 run"."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way
    stack = traceback.extract_stack(frame)[-FRAMES:]
    return " < ".join(f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in reversed(stack))
