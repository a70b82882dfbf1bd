"""What following large jobs, and many jobs, costs a launcher: simulated pods on the cluster of KUBECONFIG.

    python benchmarks/bench_scale.py replicas [--counts 2 32 128 512 2000]
    python benchmarks/bench_scale.py launchers [--counts 1 50 200]
    python benchmarks/bench_scale.py failure [--counts 512]

Writes benchmarks/results/scale-*.md. The nodes must simulate pods (KWOK): they take the label and taint
`lab/sim` and end a pod by its annotations `lab/seconds` and `lab/exit`. Beside ours runs the poll loop of the
Kubeflow SDK's TrainerClient, on a TrainJob with as many pods in the same run.
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
import venv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from place import IMAGE, RUNTIMES, Place, a_place, eventually, patch  # noqa: E402
from step import SMALL  # noqa: E402

from ddpipe.kube.api import ApiServer, connect  # noqa: E402

RESULTS = Path(__file__).parent / "results"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ddpipe-bench"
SDK = "kubeflow==0.5.0"
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
        text: What it wrote.
    """

    code: int
    seconds: float
    cpu: float
    megabytes: float
    lines: int
    requests: int
    text: str


def sdk_python() -> Path:
    """The interpreter of an environment that has the Kubeflow SDK."""
    python = CACHE / "sdk" / "bin" / "python"
    if not (CACHE / "sdk" / "lib").exists() or not list((CACHE / "sdk").glob("lib/*/site-packages/kubeflow")):
        venv.create(CACHE / "sdk", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", SDK], check=True)
    return python


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
    return Cost(
        code=process.returncode,
        seconds=seconds,
        cpu=usage.ru_utime + usage.ru_stime,
        megabytes=usage.ru_maxrss / 1024,
        lines=len(text.splitlines()),
        requests=len(place.proxy.requests) - before,
        text=text,
    )


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


def theirs(place: Place, nodes: int) -> Cost:
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
    return cost_of(place, [str(sdk_python()), script, json.dumps(job), str(PATIENCE)])


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


def replicas(admin: ApiServer, counts: Sequence[int]) -> Iterator[str]:
    """One job of more and more pods."""
    yield f"One job of N simulated pods that run for {POD_SECONDS} s."
    yield ""
    yield "| pods | launcher | CPU s | peak MB | API requests | lines | exit code | s |"
    yield "|---|---|---|---|---|---|---|---|"
    for count in counts:
        for name, backend, wait in (("ddpipe", "pytorchjob", ours), ("SDK", "trainjob", theirs)):
            with (
                tempfile.TemporaryDirectory() as folder,
                a_place(admin, Path(folder), backend=backend, level="baseline") as place,
            ):
                yield _row(f"{count} | {name}", wait(place, count))


def _row(head: str, cost: Cost) -> str:
    numbers = f"{cost.cpu:.1f} | {cost.megabytes:.0f} | {cost.requests} | {cost.lines}"
    return f"| {head} | {numbers} | {cost.code} | {cost.seconds:.0f} |"


def launchers(admin: ApiServer, counts: Sequence[int]) -> Iterator[str]:
    """Many launchers at once in one namespace, each with a job of two pods."""
    yield "N launchers at once in one namespace, each with a job of two simulated pods."
    yield ""
    yield "| launchers | exit code 0 | CPU s each | peak MB each | API requests each | lines each | s |"
    yield "|---|---|---|---|---|---|---|"
    for count in counts:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            place = stack.enter_context(a_place(admin, folder, level="baseline"))
            pool = stack.enter_context(ThreadPoolExecutor(count))
            began = time.monotonic()
            running = [pool.submit(ours, place, 2, f"r{number}", 60) for number in range(count)]
            costs = [one.result() for one in running]
            seconds, requests = time.monotonic() - began, len(place.proxy.requests)
        means = [sum(values) / count for values in ([c.cpu for c in costs], [c.megabytes for c in costs])]
        lines = sum(cost.lines for cost in costs) / count
        green = sum(cost.code == 0 for cost in costs)
        yield (
            f"| {count} | {green} | {means[0]:.1f} | {means[1]:.0f} | {requests / count:.0f} | {lines:.0f}"
            f" | {seconds:.0f} |"
        )


def failure(admin: ApiServer, counts: Sequence[int]) -> Iterator[str]:
    """One pod of many fails: seconds from its status to the launcher's end, and what the launcher reports."""
    yield "One pod of N fails while the others run."
    yield ""
    yield "| pods | from the pod's failure to the launcher's end, s | exit code | names the rank |"
    yield "|---|---|---|---|"
    for count in counts:
        with (
            tempfile.TemporaryDirectory() as folder,
            a_place(admin, Path(folder), level="baseline") as place,
            ThreadPoolExecutor(1) as pool,
        ):
            running = pool.submit(ours, place, count, "r1", 600)
            rank = f"worker-{count // 2}"
            pods = _all_running(place, count)
            (pod,) = [item for item in pods if item["metadata"]["name"].endswith(rank)]
            path = f"/api/v1/namespaces/{place.namespace}/pods/{pod['metadata']['name']}"
            patch(admin, path, {"metadata": {"annotations": {"lab/seconds": "1s", "lab/exit": "1"}}})
            eventually(lambda at=path: admin.get(at)["status"]["phase"], lambda seen: seen == "Failed", 60)
            failed = time.monotonic()
            cost = running.result()
            named = "yes" if re.search(rf"{rank}\b", cost.text) else "no"
            yield f"| {count} | {time.monotonic() - failed:.1f} | {cost.code} | {named} |"


def _all_running(place: Place, count: int) -> list[dict[str, Any]]:
    """The pods, once so many run."""
    running: list[dict[str, Any]] = eventually(
        lambda: [pod for pod in place.pods() if pod["status"].get("phase") == "Running"],
        lambda found: len(found) == count,
        PATIENCE,
        pause=1,
    )
    return running


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=["replicas", "launchers", "failure"])
    parser.add_argument("--counts", nargs="+", type=int)
    given = parser.parse_args()
    parts = {
        "replicas": (replicas, [2, 32, 128, 512, 2000]),
        "launchers": (launchers, [1, 50, 200]),
        "failure": (failure, [512]),
    }
    measure, counts = parts[given.part]
    rows = []
    for row in measure(connect(), given.counts or counts):
        print(row, flush=True)  # noqa: T201 - progress
        rows.append(row)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"scale-{given.part}.md").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
