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

from torch.distributed import DistError, Store

from ddpipe.errors import TrainingError, listed

POLL = 0.2
"""Seconds between two looks into the store."""

ANSWER = 2.0
"""Seconds in which a rank answers. Torchrun takes the first failure that it sees for the cause, and looks for
killed ranks ten times a second: it sees one before another rank tells of it."""

FRAMES = 2
"""Of a rank that is stuck: how many of the innermost calls are told."""


class RollCall:
    """The ranks of one process group, as they are known through the store."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._others = [other for other in range(size) if other != rank]

    def meet(self, card: Mapping[str, str], patience: float) -> None:
        """Wait until all ranks are here, and make sure that they are about the same.

        Args:
            card: What has to be the same on all ranks, by name.
            patience: Seconds to wait.

        Raises:
            TrainingError: A rank does not come, or differs.
        """
        self._store.set(f"card/{self._rank}", json.dumps(dict(card)))
        if self._rank == 0:
            self._compare(card, time.monotonic() + patience)
        else:
            self._read_verdict(card, time.monotonic() + patience)

    def _compare(self, own: Mapping[str, str], deadline: float) -> None:
        """Read each card as it comes; who differs is told at once, not after the last one has come."""
        missing = list(self._others)
        while missing:
            come = [other for other in missing if self._store.check([f"card/{other}"])]
            missing = [other for other in missing if other not in come]
            problems = [problem for other in come for problem in self._differences(own, other)]
            if not problems and missing and time.monotonic() > deadline:
                problems = [f"{_names(missing)} did not come"]
            if problems:
                self._store.set("verdict", json.dumps(problems))
                time.sleep(2 * POLL)  # this process may hold the store that the others read it from
                raise self._refused(problems, _SAME)
            time.sleep(POLL if missing else 0)
        self._store.set("verdict", "[]")

    def _read_verdict(self, own: Mapping[str, str], deadline: float) -> None:
        try:
            self._store.wait(["card/0"], _until(deadline))
            if problems := list(self._differences(own, 0)):
                raise self._refused(problems, _SAME)
            self._store.wait(["verdict"], _until(deadline))
            problems = json.loads(self._store.get("verdict"))
        except DistError as error:
            raise self._refused(["rank 0 did not come, or has left"], "See the log of rank 0.") from error
        if problems:
            raise self._refused(problems, _SAME)

    def _differences(self, own: Mapping[str, str], other: int) -> Iterator[str]:
        card = json.loads(self._store.get(f"card/{other}"))
        for name in sorted({*own, *card}):
            if own.get(name) != card.get(name):
                yield f"{name}: {card.get(name)} on rank {other}, {own.get(name)} on rank {self._rank}"

    def _refused(self, problems: list[str], do: str) -> TrainingError:
        return TrainingError(
            what="the processes do not fit together",
            which=f"rank {self._rank} of {self._size}",
            seen=listed(problems),
            do=do,
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer when the roll is called, telling what the main thread does at that moment."""
        ended, store, worker = threading.Event(), self._store.clone(), threading.get_ident()

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
                self._store.set(f"lost/{self._rank}", "")
                self._store.set("roll-call", "")
                time.sleep(ANSWER)
                found.append(self._absent())

        # A store whose machine is gone may keep its caller waiting for minutes.
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(2 * ANSWER)
        return (
            found[0] if found else "rank 0, or whoever holds the store of the ranks, does not answer any more"
        )

    def _absent(self) -> str:
        silent = [other for other in self._others if not self._store.check([f"here/{other}"])]
        if silent:
            verb = "does" if len(silent) == 1 else "do"
            return (
                f"{_names(silent)} {verb} not answer any more: it ended, was killed, or its machine is gone"
            )
        stuck = [other for other in self._others if not self._store.check([f"lost/{other}"])]
        if not stuck:
            return "all ranks answer: the network between them broke"
        places = [f"rank {other} at {self._store.get(f'here/{other}').decode()}" for other in stuck]
        return f"{_names(stuck)} answered but did not come along: {'; '.join(places)}"


_SAME = "Start all ranks from the same image, with the same arguments."


def _names(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _until(deadline: float) -> timedelta:
    return timedelta(seconds=max(0.001, deadline - time.monotonic()))


def _doing(thread: int) -> str:
    """The innermost calls of a thread: "loader.py:57 share < loop.py:91 run"."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way
    stack = traceback.extract_stack(frame)[-FRAMES:]
    return " < ".join(f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in reversed(stack))
