"""Faults of a whole node under two ranks that train, with every kind of job at once: how each launch ends.

    python tests/cluster/lost_nodes.py --lab lab --fault "cut 20" off --results found.jsonl
    python tests/cluster/lost_nodes.py --results found.jsonl --page docs/faults.md

`lab` is a program that harms the cluster's second node, named lab2: `lab fault KIND SECONDS`. The node has
the taint ddpipe.dev/node2:NoSchedule. The pods wait at a scheduling gate until this program has placed them:
one rank on that node, all others on the first, which takes every pod while the second is away. Of several
faults each harms the launches that are still as they began.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path

from matrix import LOST_NODES
from place import OUR_IMAGES, Place, a_place, eventually, patch
from step import Step

from ddpipe.jobs import BACKENDS, CONTAINER
from ddpipe.jobs.replicas import INDEX
from ddpipe.kube.api import ApiError, connect
from ddpipe.storage import open_store

NODE, OTHER = "lab2", "lab"
GATE = "ddpipe.dev/place"
FAULTS: dict[str, tuple[tuple[str, float], ...]] = {
    "cut 20": (("node2-cut", 20),),
    "cut 100": (("node2-cut", 100),),
    "cut 200": (("node2-cut", 200),),
    "cut 400": (("node2-cut", 400),),
    "freeze 70": (("node2-freeze", 70),),
    "off": (("node2-off", 0),),
    "off+on": (("node2-off", 0), ("wait", 60), ("node2-on", 0)),
}
"""What is done to the node, and for how many seconds."""

TRAINS = """
import os, signal, time, torch
from ddpipe.distributed import process_group, run_rank
from ddpipe.errors import CheckpointError, StoreError
from ddpipe.model.checkpoint import Checkpoint, claim, newest
from ddpipe.storage import open_store

store = open_store(os.environ["RUN_STORE"])

def save(attempt, step):
    network = {"name": "none", "shape": [1, 1, 1], "classes": ["a"]}
    states = {"model": {"steps": torch.tensor(step)}}
    new = Checkpoint(step=step, epoch=step, recipe={}, dataset_id="d", network=network, world_size=2,
                     states=states, history=[])
    while True:
        try:
            return attempt.save(new)
        except CheckpointError as error:
            store.write("refused", str(error).encode())
            raise
        except StoreError:
            time.sleep(1)

def is_to_stop():
    try:
        return store.exists("stop")
    except StoreError:
        return False

def work():
    if "OUTLIVES" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with process_group() as world:
        found = world.decided(lambda: (newest(store) or (None, None))[0])
        step = found.step if found else 0
        attempt = claim(store, found) if world.is_main else None
        print(f"begins at step {step}", flush=True)
        while not world.decided(is_to_stop):
            time.sleep(1)
            world.sum(torch.ones(1))
            step += 1
            if attempt:
                print(f"step={step}", flush=True)
                if step % 3 == 0:
                    save(attempt, step)

run_rank(work)
"""
"""A training of one step a second that saves every third, until an object named stop is in its store."""

_OURS = re.compile(r"^\[launch\]|^(?!\[)")
_STEP = re.compile(r"^\[\S*(?:worker|master)-0\] step=(\d+)")
_GAP = 8.0
"""Seconds between two steps that count as a pause."""

_AT_LEAST = {"cut 20": 45, "freeze 70": 95, "cut 400": 445}
"""Seconds for which a fault is followed in any case: pods of a lost node are removed after 100 s."""

_NAMES = {
    "cut 20": "its network is cut for 20 s",
    "cut 100": "its network is cut for 100 s",
    "cut 200": "its network is cut for 200 s",
    "cut 400": "its network is cut for 400 s",
    "freeze 70": "its kubelet hangs for 70 s",
    "off": "it loses its power",
    "off+on": "it loses its power, and is on again after 60 s",
}


@dataclass
class Cell:
    """One launch under a fault, and what was seen of it; all seconds count from the fault on.

    Attributes:
        fault: What was done to the node.
        backend: Kind of job.
        side: Whose node it was: the master's, rank 0, or the worker's.
        restart: The restart policy.
        cause: When the launcher first named the node or the rank.
        again: When steps were made again; 0 if they did not pause, None if they were not.
        ended: When the launcher had ended.
        jobs: Jobs that ever existed.
        words: What the launcher said.
        code: Exit code in the end; None if it did not end.
        left: Jobs that were left in the end.
        note: What a person adds to the cell, by hand.
    """

    fault: str
    backend: str
    side: str
    restart: str
    cause: float | None
    again: float | None
    ended: float | None
    jobs: int
    words: list[str]
    code: int | None = None
    left: int = 0
    note: str = ""

    @property
    def text(self) -> str:
        """As a cell of the table."""
        left = f", {self.left} jobs left" if self.left else ""
        left += f" ({self.note})" if self.note else ""
        cause = "" if self.cause is None else f"cause {self.cause:.0f} s, "
        if self.code is None:
            return f"**no end**{left}"
        if self.ended is not None:
            return f"{'red' if self.code else 'green'}: {cause}ended {self.ended:.0f} s{left}"
        if self.again is None:
            return f"**no training**{left}"
        return (
            f"green: {cause}trains again {self.again:.0f} s{left}" if self.again else f"green: no pause{left}"
        )


class Run:
    """One launch, its place and the times of its lines."""

    def __init__(
        self, place: Place, side: str, restart: str, store: str, nodes: int = 2, **pod: object
    ) -> None:
        self.place, self.side, self.names = place, side, (place.backend, side, restart)
        self.cells: list[Cell] = []
        self.store = open_store(store)
        keys = {"accesskey": "AWS_ACCESS_KEY_ID", "secretkey": "AWS_SECRET_ACCESS_KEY"}
        data = {key: base64.b64encode(os.environ[name].encode()).decode() for key, name in keys.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "data": data}
        place.create("/api/v1/secrets", secret)
        environment = {"RUN_STORE": store, **({"OUTLIVES": "1"} if pod else {})}
        options = [] if restart == "Never" else ["--restart", restart]
        few = {"name": CONTAINER, "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}}}
        arguments = [
            *(
                "launch",
                *place.chosen(options),
                "--image",
                OUR_IMAGES.format("trainer"),
                "--nodes",
                str(nodes),
            ),
            *("--run-id", "a", "--cpu", "1", "--memory", "1Gi", "--shared-memory", "64Mi", *options),
            *("--s3-secret", "store", "--s3-endpoint", os.environ["POD_S3_ENDPOINT"]),
            *("--env", json.dumps(environment)),
            *("--tolerations", json.dumps([{"key": "ddpipe.dev/node2", "operator": "Exists"}])),
            *(
                "--patch",
                json.dumps({"spec": {"schedulingGates": [{"name": GATE}], "containers": [few], **pod}}),
            ),
            *("--", "python", "-m", "ddpipe.torchrun", "--no-python", "python", "-c", TRAINS),
        ]
        self.step = Step(place, arguments, {})
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while self.step.process.poll() is None or len(self.lines) < len(self.step.text.splitlines()):
            new = self.step.text.rpartition("\n")[0].splitlines()[len(self.lines) :]
            self.lines += [(time.monotonic(), line) for line in new]
            time.sleep(0.1)

    @property
    def is_over(self) -> bool:
        return self.step.process.poll() is not None

    @property
    def is_placed(self) -> bool:
        """Whether it runs, with a pod on each node."""
        nodes = {pod["spec"].get("nodeName") for pod in self.place.pods()}
        return not self.is_over and nodes == {NODE, OTHER} and self.trains()

    def trains(self) -> bool:
        """Whether it has made four steps within the last ten seconds."""
        now = time.monotonic()
        return sum(moment > now - 10 for moment, line in list(self.lines) if _STEP.match(line)) > 3

    def judge(self, fault: str, began: float) -> None:
        """Note what was seen from the beginning of a fault until now."""
        until = time.monotonic()
        after = [(moment - began, line) for moment, line in list(self.lines) if moment >= began]
        named = [
            moment for moment, line in after if _OURS.match(line) and (NODE in line or "worker-" in line)
        ]
        steps = [moment for moment, line in after if _STEP.match(line)]
        pauses = [(late - early, late) for early, late in pairwise([0.0, *steps, until - began])]
        longest, end = max(pauses)
        again = 0.0 if longest < _GAP else None if self.is_over or end == until - began else round(end, 1)
        self.cells.append(
            Cell(
                fault,
                *self.names,
                cause=round(named[0], 1) if named else None,
                again=again,
                ended=round(after[-1][0], 1) if self.is_over else None,
                jobs=self.place.jobs_ever(),
                words=[f"{moment:.0f}: {line}" for moment, line in after if _OURS.match(line)],
            )
        )

    def end(self) -> None:
        """Let it end, and note how it did."""
        self.store.write("stop", b"")
        with suppress(AssertionError):
            self.step.end(90)
            for cell in self.cells:
                cell.code = self.step.process.returncode
        for cell in self.cells:
            cell.left = len(self.place.jobs())


def place_pods(runs: Sequence[Run], away: threading.Event, stop: threading.Event) -> None:
    """Choose each new pod's node, and let it pass the gate."""
    while not stop.wait(0.3):
        for run in runs:
            with suppress(ApiError, AssertionError):
                for pod in run.place.pods():
                    if pod["spec"].get("schedulingGates"):
                        metadata = pod["metadata"]
                        rank = metadata.get("annotations", {}).get(INDEX) or metadata["name"][-1]
                        is_there = (rank == "0") == (run.side == "master") and not away.is_set()
                        chosen = {"kubernetes.io/hostname": NODE if is_there else OTHER}
                        path = f"/api/v1/namespaces/{run.place.namespace}/pods/{metadata['name']}"
                        patch(
                            run.place.admin, path, {"spec": {"schedulingGates": None, "nodeSelector": chosen}}
                        )


def harm(lab: str, fault: str) -> None:
    """Do to the node what the fault is."""
    for kind, seconds in FAULTS[fault]:
        if kind == "wait":
            time.sleep(seconds)
        else:
            subprocess.run([lab, "fault", kind, str(seconds)], check=True)


def tried(
    lab: str, faults: Sequence[str], kinds: Sequence[tuple[str, str, str]], longest: float
) -> Iterator[Cell]:
    """Launch all kinds, harm the node with one fault after the other, and follow all to their ends."""
    admin, away, stop = connect(), threading.Event(), threading.Event()
    base = f"s3://{os.environ['S3_BUCKET']}/nodes-{uuid.uuid4().hex[:8]}"
    runs: list[Run] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        placing = threading.Thread(target=place_pods, args=(runs, away, stop), daemon=True)
        placing.start()
        stack.callback(stop.set)
        stack.callback(lambda: [run.step.process.kill() for run in runs if not run.is_over])
        for number, kind in enumerate(kinds):
            (own := folder / str(number)).mkdir()
            place = stack.enter_context(a_place(admin, own, backend=kind[0]))
            runs.append(Run(place, *kind[1:], f"{base}/{number}"))
        for run in runs:
            eventually(lambda run=run: run.trains() or run.is_over, bool, 400)
            assert not run.is_over, run.step.text
        for fault in faults:
            present = [run for run in runs if run.is_placed]
            sys.stderr.write(f"{fault}: {len(present)} launches, {time.strftime('%X')}\n")
            began = time.monotonic()
            away.set()
            harming = threading.Thread(target=harm, args=(lab, fault))
            harming.start()
            while time.monotonic() - began < longest:
                is_going = harming.is_alive() or time.monotonic() - began < _AT_LEAST.get(fault, 140)
                if not is_going and all(run.is_over or run.trains() for run in present):
                    break
                time.sleep(1)
            for run in present:
                run.judge(fault, began)
            harming.join()
            if FAULTS[fault][-1][0] == "node2-off":
                subprocess.run([lab, "fault", "node2-on"], check=True)
            away.clear()
        for run in runs:
            run.end()
            yield from run.cells


def table_of(path: Path) -> str:
    """The table of all results, the last of each kind."""
    cells = [Cell(**json.loads(line)) for line in path.read_text().splitlines()]
    found = {(cell.fault, cell.side, cell.restart, cell.backend): cell for cell in cells}
    head = ("what happens", "whose node", "restart", *BACKENDS)
    rows = [head, ("---",) * len(head)]
    for fault in FAULTS:
        for restart in ("OnFailure", "Never"):
            for side in ("master", "worker"):
                row = [found.get((fault, side, restart, backend)) for backend in BACKENDS]
                if any(row):
                    side_of = "rank 0's" if side == "master" else "rank 1's"
                    rows.append(
                        (_NAMES[fault], side_of, restart, *(one.text if one else "not run" for one in row))
                    )
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def main() -> None:
    """Try what the options name, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lab")
    parser.add_argument("--fault", nargs="+", choices=FAULTS)
    parser.add_argument("--side", nargs="+", default=["master", "worker"], choices=["master", "worker"])
    parser.add_argument("--restart", nargs="+", default=["OnFailure"])
    parser.add_argument("--backend", nargs="+", default=list(BACKENDS))
    parser.add_argument("--longest", type=float, default=600)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.page:
        page = given.page.read_text()
        table = page.index("\n| ", page.index(LOST_NODES)) + 1  # a person writes what is above it
        given.page.write_text(page[:table] + table_of(given.results))
        return
    kinds = [(*one,) for one in product(given.backend, given.side, given.restart)]
    for cell in tried(given.lab, given.fault, kinds, given.longest):
        with given.results.open("a") as file:
            file.write(json.dumps(asdict(cell)) + "\n")
        sys.stderr.write(json.dumps(asdict(cell), indent=1) + "\n")


if __name__ == "__main__":
    main()
