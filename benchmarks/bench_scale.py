"""What following large jobs, and many jobs, costs a launcher: simulated pods on the cluster of KUBECONFIG.

    python benchmarks/bench_scale.py replicas [--counts 2 32 128 512 2000]
    python benchmarks/bench_scale.py launchers [--counts 1 50 200]
    python benchmarks/bench_scale.py failure [--counts 512]

Writes benchmarks/results/scale-*.json, and the table of it as .md. The nodes must simulate pods (KWOK): they
take the label and taint `lab/sim` and end a pod by its annotations `lab/seconds` and `lab/exit`. Beside ours
run the poll loops of both official clients, each with as many pods in the same run: `kubeflow` 0.5.0
(TrainerClient, a TrainJob) and `kubeflow-training` 1.9.4 (TrainingClient, a PyTorchJob).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from peers import official, sdk_python  # noqa: E402
from place import IMAGE, RUNTIMES, Place, a_place, eventually, patch  # noqa: E402
from step import SMALL, Step  # noqa: E402

from ddpipe.kube.api import ApiServer, connect  # noqa: E402

RESULTS = Path(__file__).parent / "results"
BUSY_SECONDS = 10.0
AS_PROCESSES = 50
"""Launchers; 200 processes of 76 MB are more than this machine has."""

POD_SECONDS = 20
PATIENCE = 900
SIMULATED = {"nodeSelector": {"lab/sim": "true"}, "tolerations": [{"key": "lab/sim", "operator": "Exists"}]}
ENDS_WELL = {"lab/exit": "0"}


@dataclass(frozen=True)
class Cost:
    """What one waiting process cost.

    Attributes:
        code: Its exit code.
        seconds: Its wall time.
        cpu: Its processor time, in seconds.
        megabytes: Its peak memory.
        lines: Lines it wrote.
        requests: Requests it sent to the API server.
        first: How many of them it sent until the job was created.
        busiest: Requests per second after that, in the ten seconds with most of them.
        text: What it wrote.
    """

    code: int
    seconds: float
    cpu: float
    megabytes: float
    lines: int
    requests: int
    first: int
    busiest: float
    text: str

    @property
    def record(self) -> dict[str, Any]:
        """Without what it wrote."""
        return {
            name: round(value, 2) if isinstance(value, float) else value
            for name, value in asdict(self).items()
            if name != "text"
        }


def cost_of(place: Place, command: Sequence[str]) -> Cost:
    """Run a command to its end; its own processor time and memory, as the kernel counted them."""
    before, began = len(place.proxy.requests), time.monotonic()
    environment = {**os.environ, "KUBECONFIG": str(place.kubeconfig)}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    requests = place.proxy.requests[before:]
    first = next((number for number, one in enumerate(requests, 1) if one.creates_job), 0)
    return Cost(
        code=process.returncode,
        seconds=seconds,
        cpu=usage.ru_utime + usage.ru_stime,
        megabytes=usage.ru_maxrss / 1024,
        lines=len(text.splitlines()),
        requests=len(requests),
        first=first,
        busiest=_busiest([request.moment for request in requests[first:]]),
        text=text,
    )


def _busiest(moments: Sequence[float]) -> float:
    """The largest number of requests per second over `BUSY_SECONDS`."""
    counts = (sum(first <= one < first + BUSY_SECONDS for one in moments) for first in moments)
    return max(counts, default=0) / BUSY_SECONDS


def arguments(place: Place, nodes: int, run: str, seconds: float = POD_SECONDS) -> list[str]:
    """What `ddpipe` is given to launch a job of simulated pods."""
    simulated = {
        "node-selector": SIMULATED["nodeSelector"],
        "tolerations": SIMULATED["tolerations"],
        "annotations": ENDS_WELL | {"lab/seconds": f"{seconds:g}s"},
    }
    options = [text for name, value in simulated.items() for text in (f"--{name}", json.dumps(value))]
    size = ("--image", IMAGE, "--nodes", str(nodes), "--run-id", run, *SMALL)
    return ["launch", "--backend", place.backend, *size, *options, "--", "sh", "-c", "true"]


def ours(place: Place, nodes: int, run: str = "r1", seconds: float = POD_SECONDS) -> Cost:
    """Our launcher and a job of simulated pods."""
    return cost_of(place, [sys.executable, "-m", "ddpipe", *arguments(place, nodes, run, seconds)])


def training_client(place: Place, nodes: int) -> Cost:
    """The poll loop of `kubeflow-training` and the same PyTorchJob; simulated pods have no logs."""
    command = official(place, patience=PATIENCE)(arguments(place, nodes, "r1"))
    return cost_of(place, [*command, "without-logs"])


def trainer_client(place: Place, nodes: int) -> Cost:
    """The SDK's poll loop and a TrainJob of as many pods; the SDK reads more than our Role allows."""
    _use_account_of(place.admin, place)
    _create_simulated_runtime(place)
    job = {
        "apiVersion": place.kind.resource.api_version,
        "kind": place.kind.resource.kind,
        "metadata": {"name": "simulated", "namespace": place.namespace},
        "spec": {
            "runtimeRef": {"name": "simulated", "kind": "TrainingRuntime"},
            "trainer": {"numNodes": nodes, "image": IMAGE, "command": ["true"]},
        },
    }
    script = str(Path(__file__).with_name("official_trainer.py"))
    return cost_of(place, [str(sdk_python()), script, json.dumps(job), str(PATIENCE), "without-logs"])


def _create_simulated_runtime(place: Place) -> None:
    """A TrainJob has no field for annotations of its pods: the runtime has them."""
    (runtime, *_) = yaml.safe_load(RUNTIMES.read_text())["items"]
    runtime["metadata"]["name"] = "simulated"
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]
    pod.setdefault("metadata", {})["annotations"] = ENDS_WELL | {"lab/seconds": f"{POD_SECONDS}s"}
    pod["spec"] |= SIMULATED
    pod["spec"]["containers"][0]["image"] = IMAGE  # the SDK reads no runtime without one
    place.create(f"/apis/{runtime['apiVersion']}/trainingruntimes", runtime)


def _use_account_of(admin: ApiServer, place: Place) -> None:
    """Let the place's kubeconfig, which leads through its proxy, use the administrator's token."""
    _, _, token = admin._credentials.headers["Authorization"].partition(" ")
    place.token_file.write_text(token)


LAUNCHERS: tuple[tuple[str, str, Callable[[Place, int], Cost]], ...] = (
    ("ddpipe", "pytorchjob", ours),
    ("kubeflow 0.5.0", "trainjob", trainer_client),
    ("kubeflow-training 1.9.4", "pytorchjob", training_client),
)


def replicas(admin: ApiServer, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One job of more and more pods, followed by each launcher in turn."""
    for count in counts:
        for name, backend, wait in LAUNCHERS:
            with (
                tempfile.TemporaryDirectory() as folder,
                a_place(admin, Path(folder), backend=backend, level="baseline") as place,
            ):
                yield {"pods": count, "launcher": name, **wait(place, count).record}


def launchers(admin: ApiServer, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Many launchers at once in one namespace, each with a job of two pods: the mean of each figure."""
    for count in counts:
        with tempfile.TemporaryDirectory() as folder, a_place(admin, Path(folder), level="baseline") as place:
            began = time.monotonic()
            costs = _as_processes(place, count) if count <= AS_PROCESSES else [_as_threads(place, count)]
            yield {
                "launchers": count,
                "each": "a process" if count <= AS_PROCESSES else "a thread of one process",
                "right": sum(cost.code == 0 for cost in costs) if count <= AS_PROCESSES else _right(costs),
                "cpu": round(sum(cost.cpu for cost in costs) / count, 2),
                "megabytes": round(sum(cost.megabytes for cost in costs) / count, 1),
                "lines": round(sum(cost.lines for cost in costs) / count, 1),
                "requests": round(len(place.proxy.requests) / count, 1),
                "jobs": place.jobs_ever(),
                "seconds": round(time.monotonic() - began),
            }


def _as_processes(place: Place, count: int) -> list[Cost]:
    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(ours, place, 2, f"r{number}", 60) for number in range(count)]
        return [one.result() for one in running]


def _as_threads(place: Place, count: int) -> Cost:
    script = str(Path(__file__).with_name("many_launchers.py"))
    return cost_of(place, [sys.executable, script, str(count), *arguments(place, 2, "r", 60)])


def _right(costs: Sequence[Cost]) -> int:
    """Of the launchers of one process, how many succeeded; it prints that last."""
    return int(costs[0].text.splitlines()[-1].split()[0])


def failure(admin: ApiServer, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One pod of many fails: seconds from its status to the line about it and to the launcher's end."""
    for count in counts:
        with (
            tempfile.TemporaryDirectory() as folder,
            a_place(admin, Path(folder), level="baseline") as place,
        ):
            yield _failure(place, count)


def _failure(place: Place, count: int) -> dict[str, Any]:
    rank = f"worker-{count // 2}"
    step = Step(place, arguments(place, count, "r1", 600), {})
    pods = _all_running(place, count)
    (pod,) = [item for item in pods if item["metadata"]["name"].endswith(rank)]
    path = f"/api/v1/namespaces/{place.namespace}/pods/{pod['metadata']['name']}"
    patch(place.admin, path, {"metadata": {"annotations": {"lab/seconds": "1s", "lab/exit": "1"}}})
    eventually(
        lambda: place.admin.get(path)["status"]["phase"], lambda seen: seen == "Failed", 60, pause=0.02
    )
    failed = time.monotonic()
    step.saw(rf"{rank}\b.*exit code 1", PATIENCE)
    reported = time.monotonic() - failed
    ended = step.end(PATIENCE)
    return {
        "pods": count,
        "reported": round(reported, 2),
        "ended": round(time.monotonic() - failed, 2),
        "code": ended.code,
        "line": next(line for line in ended.text.splitlines() if re.search(rf"{rank}\b.*exit code 1", line)),
    }


def _all_running(place: Place, count: int) -> list[dict[str, Any]]:
    """The pods, once so many run."""
    running: list[dict[str, Any]] = eventually(
        lambda: [pod for pod in place.pods() if pod["status"].get("phase") == "Running"],
        lambda found: len(found) == count,
        PATIENCE,
        pause=1,
    )
    return running


COLUMNS: dict[str, dict[str, str]] = {
    "replicas": {
        "pods": "pods",
        "launcher": "launcher",
        "cpu": "CPU s",
        "megabytes": "peak MB",
        "requests": "API requests",
        "first": "of them until the job exists",
        "busiest": "then per s, busiest 10 s",
        "lines": "lines",
        "code": "exit code",
        "seconds": "s",
    },
    "launchers": {
        "launchers": "launchers",
        "each": "each is",
        "right": "right",
        "jobs": "jobs ever",
        "cpu": "CPU s each",
        "megabytes": "peak MB each",
        "requests": "API requests each",
        "lines": "lines each",
        "seconds": "s",
    },
    "failure": {
        "pods": "pods",
        "reported": "from the pod's status to the line about it, s",
        "ended": "to the launcher's end, s",
        "code": "exit code",
        "line": "line",
    },
}
"""Of each table: the fields of the records, and their titles."""


def table(part: str, records: Sequence[dict[str, Any]]) -> str:
    """The records as a table."""
    columns = COLUMNS[part]
    rows = [list(columns.values()), ["---"] * len(columns)]
    rows += [[str(record[name]) for name in columns] for record in records]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    """Measure, and write the records and their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=COLUMNS)
    parser.add_argument("--counts", nargs="+", type=int)
    given = parser.parse_args()
    parts = {
        "replicas": (replicas, [2, 32, 128, 512, 2000]),
        "launchers": (launchers, [1, 50, 200]),
        "failure": (failure, [512]),
    }
    measure, counts = parts[given.part]
    records = []
    for record in measure(connect(), given.counts or counts):
        print(json.dumps(record), flush=True)  # noqa: T201 - progress
        records.append(record)
        (RESULTS / f"scale-{given.part}.json").write_text(json.dumps(records, indent=1) + "\n")
        (RESULTS / f"scale-{given.part}.md").write_text(table(given.part, records))


if __name__ == "__main__":
    main()
