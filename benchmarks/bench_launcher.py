"""The launcher, compared with the official client, on the cluster of KUBECONFIG.

    python benchmarks/bench_launcher.py [figures] [quiet] [faults] [faults-trainjob] [--quiet-minutes 5]

Writes benchmarks/results/launcher-*.md. The official clients, which poll, are installed from PyPI into
separate environments in the user's cache folder: `kubeflow-training` for PyTorchJobs, `kubeflow` for
TrainJobs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from faults import FAULTS, Fault, Seen, running  # noqa: E402
from peers import official, sdk, training_python  # noqa: E402
from place import ACCOUNT, IMAGE, OUR_IMAGES, Place, a_place, eventually  # noqa: E402
from step import launch  # noqa: E402

from ddpipe.jobs.job import Owner, TrainingJob  # noqa: E402
from ddpipe.jobs.pytorchjob import BACKEND, manifest  # noqa: E402
from ddpipe.kube.api import ApiError, ApiServer, connect  # noqa: E402
from ddpipe.launching import preflight  # noqa: E402

RESULTS = Path(__file__).parent / "results"
AT_ONCE = 5
PATIENCE = 120  # seconds that the official clients wait in the matrix; 600 by default

# What a message must contain to have named the cause, ours or theirs.
CAUSES = {
    "two launchers with one identity at once": "",
    "the name is taken by a stranger's job": "already exists|taken",
    "connections refused for 60 s while following": "",
    "the API server hangs for 60 s while following": "",
    "watches and logs dropped": "",
    "the token expires (401) and is rotated on disk": "",
    "a burst of 429": "",
    "a burst of 500": "",
    "a worker exits 1": "worker-[01].*exit ?code.*1",
    "rank 0 exits 1": "(master|worker)-0.*exit ?code.*1",
    "a worker is killed by a signal": "137|SIGKILL",
    "a worker fails after rank 0 has succeeded": "exit ?code.*3",
    "out of memory": "OOM.*64Mi|64Mi.*OOM",
    "an image that cannot be pulled": "nowhere.invalid",
    "a command that does not exist": "no-such-command",
    "a missing secret as a volume": '"nope" not found',
    "a missing claim": "nope",
    "a GPU that no node has, nodes unseen": "ddpipe.dev/gpu",
    "quota exceeded": "quota",
    "pods that the cluster's policy refuses": "PodSecurity",
    "a job that the webhook refuses": "image: Required value|reserved envs",
    "rights missing": "forbidden|may not",
    "the job is deleted while it runs": "not found|deleted",
    "a pod is evicted while it runs": "[Ee]vict",
    "the right to follow is taken away (403)": "403|may not",
    "a replica fails, is started again and succeeds": "",
    "the job cannot be removed after its failure: the cause comes first": "exit ?code.*1",
    "a GPU that no node has": "nvidia.com/gpu|ddpipe.dev/gpu",
    "GPU nodes exist, all of them tainted": "taint",
    "pods that fit one by one, but not together": "cpu",
    "a quota that is for other pods": "",
    "suspended, then resumed: the clock stands still": "",
    "403 for a moment, as from a server that has just started": "",
    "410 Gone for a watch": "",
    "the token expires (401), and its file is empty for a while": "",
    "a third of all requests is answered with 429 for 6 s": "",
    "the store of events is away for longer than an outage may last": "",
    "a proxy answers watches with a page of HTML and status 200": "",
    "log streams cut again and again": "",
    "containers restart: their logs continue": "",
    "a registry answers 503 for a while": "",
    "a missing secret in the environment": '"nope" not found',
    "a pod is deleted while it runs": "deleted",
    "a pod is deleted while it runs, and may be replaced": "",
    "the job cannot be removed after its success": "",
    "SIGKILL while running, then run again": "",
    "SIGTERM while running, SIGKILL 0.5 s later": "",
}


@dataclass(frozen=True)
class Judged:
    """One launcher's row of the matrix."""

    color: bool
    named: bool
    left: int
    seconds: float

    def __str__(self) -> str:
        """As cells of a table."""
        words = ("right" if self.color else "**wrong**", "yes" if self.named else "**no**")
        return f"{words[0]} | {words[1]} | {self.left} | {self.seconds:.0f}"


def judged(fault: Fault, seen: Seen) -> Judged:
    """What a row of the matrix says of a launcher."""
    green_is_right = fault.code == 0
    named = bool(re.search(CAUSES[fault.name], seen.ended.text, re.DOTALL))
    return Judged((seen.ended.code == 0) == green_is_right, named, seen.jobs, seen.ended.seconds)


Rival = Callable[[Place, int], Callable[[Sequence[str]], list[str]]]


def happen(admin: ApiServer, fault: Fault, backend: str, rival: Rival | None) -> Judged | str:
    """Let a fault happen to one launcher; a word in place of a judgement when that cannot be done."""
    try:
        return judged(fault, seen_by(admin, fault, backend, rival))
    except (AssertionError, ApiError) as error:
        return str(error).partition("\n")[0][:60]


def seen_by(admin: ApiServer, fault: Fault, backend: str, rival: Rival | None) -> Seen:
    """What a launcher did, in a place of its own."""
    # The rival's workers have an init container that the restricted level refuses: it gets an easier place.
    level = "baseline" if rival and fault.level == "restricted" else fault.level
    with (
        tempfile.TemporaryDirectory() as folder,
        a_place(admin, Path(folder), level=level, sees_nodes=fault.sees_nodes, backend=backend) as place,
    ):
        place.rival = rival(place, PATIENCE) if rival else None
        return fault.happen(place)


def matrix(admin: ApiServer, backend: str, rival: Rival) -> Iterator[str]:
    """The fault matrix of one backend, ours next to theirs, as a table."""
    rows = [fault for fault in FAULTS if fault.name in CAUSES and backend not in fault.unplayable]
    faults = [fault.on(backend) for fault in rows]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        pairs = [[pool.submit(happen, admin, one, backend, who) for who in (None, rival)] for one in faults]
        cells = "color | cause named | jobs left | s"
        yield f"The official client waits for {PATIENCE} s."
        yield ""
        yield f"| what happens | ddpipe: {cells} | official client: {cells} |"
        yield "|---|---|---|---|---|---|---|---|---|"
        for fault, pair in zip(faults, pairs, strict=True):
            found = [one.result() for one in pair]
            texts = [str(one) if isinstance(one, Judged) else f"{one} | | |" for one in found]
            yield f"| {fault.name} | {' | '.join(texts)} |"


def ends(admin: ApiServer, place: Place, script: str = "sleep 2") -> float:
    """Seconds from the job's terminal condition, as a watch of our own sees it, to the launcher's exit."""
    moments: list[float] = []

    def look() -> None:
        query = {"watch": "true", "timeoutSeconds": "60"}
        for line in admin.spare().lines(place.jobs_path(), query, 90):
            if any(
                item["type"] in {"Succeeded", "Failed"} and item["status"] == "True"
                for item in (json.loads(line)["object"].get("status") or {}).get("conditions") or ()
            ):
                moments.append(time.monotonic())
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    step = launch(place, script)
    step.process.wait(120)
    ended = time.monotonic()
    watcher.join(5)
    return ended - moments[0]


def lags(admin: ApiServer, times: int, *, rival: bool) -> list[float]:
    """Several of these, each in a place of its own."""
    found = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder, a_place(admin, Path(folder), level="baseline") as place:
            place.rival = official(place, PATIENCE) if rival else None
            found.append(ends(admin, place))
    return found


# Up to the first answer of the API server, as each of them gets there.
OURS = """
import ddpipe.commands.jobs
from ddpipe.kube.api import connect
connect().get("/version")
"""
THEIRS = """
from kubeflow.training import TrainingClient
TrainingClient(job_kind="PyTorchJob").list_jobs(namespace=os.environ["NAMESPACE"])
"""
BARE = """
from kubernetes import client, config
config.load_kube_config()
client.VersionApi().get_code()
"""
# The kernel's own peak of this program: rusage would count the parent's memory too.
COUNT = """
import re, time
print(time.process_time(), re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


@dataclass(frozen=True)
class Start:
    """What it costs to start: processor seconds, for a clock's depend on who else is busy, and megabytes."""

    seconds: float
    megabytes: float


def start(python: str | Path, script: str, place: Place) -> Start:
    """Start it a few times."""
    environment = {**os.environ, "KUBECONFIG": str(place.kubeconfig), "NAMESPACE": place.namespace}
    command = [python, "-c", f"import os{script}{COUNT}"]
    measured = []
    for _ in range(5):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        measured.append([float(number) for number in done.stdout.split()])
    seconds, kilobytes = zip(*measured, strict=True)
    return Start(statistics.median(seconds), max(kilobytes) / 1024)


def start_in_pod(place: Place) -> Start:
    """Start ours where a pipeline does: in a pod, with the pod's own account."""
    container = {
        "name": "main",
        "image": OUR_IMAGES.format("launcher"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", f"import os{OURS}{COUNT}"],
    }
    spec = {"serviceAccountName": ACCOUNT, "restartPolicy": "Never", "containers": [container]}
    place.create(
        "/api/v1/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "start"}, "spec": spec}
    )
    path = f"/api/v1/namespaces/{place.namespace}/pods/start"
    phase = eventually(
        lambda: place.admin.get(path)["status"]["phase"], lambda seen: seen in {"Succeeded", "Failed"}, 60
    )
    printed = b"".join(place.admin.lines(f"{path}/log", {}, 10))
    assert phase == "Succeeded", printed
    seconds, kilobytes = printed.split()
    return Start(float(seconds), float(kilobytes) / 1024)


def starts(admin: ApiServer) -> Iterator[str]:
    """Start-up, next to the official client's and to the bare Kubernetes client that ours uses."""
    with tempfile.TemporaryDirectory() as folder, a_place(admin, Path(folder), level="baseline") as place:
        in_pod = start_in_pod(place)
        scripts = ((sys.executable, OURS), (training_python(), THEIRS), (sys.executable, BARE))
        measured = [start(python, script, place) for python, script in scripts]
    seconds = " | ".join(f"{one.seconds:.2f} s" for one in measured)
    megabytes = " | ".join(f"{one.megabytes:.0f} MB" for one in measured)
    yield f"| processor time to the first API answer, in a pod | {in_pod.seconds:.2f} s | | |"
    yield f"| peak memory then | {in_pod.megabytes:.0f} MB | | |"
    yield f"| processor time to the first API answer, by a kubeconfig | {seconds} |"
    yield f"| peak memory then | {megabytes} |"


def checked(admin: ApiServer) -> float:
    """Seconds that the preflight takes."""
    with tempfile.TemporaryDirectory() as folder, a_place(admin, Path(folder)) as place:
        job = TrainingJob(
            owner=Owner(pipeline="p", run_id="r", step="s"),
            namespace=place.namespace,
            image=IMAGE,
            nodes=2,
            cpu="50m",
            memory="64Mi",
        )
        taken = []
        for _ in range(10):
            began = time.monotonic()
            preflight.check(admin, job, BACKEND, manifest(job))
            taken.append(time.monotonic() - began)
    return statistics.median(taken)


def quiet(admin: ApiServer, minutes: float, *, rival: bool) -> float:
    """API requests per hour of waiting for a job that says nothing."""
    with tempfile.TemporaryDirectory() as folder, a_place(admin, Path(folder), level="baseline") as place:
        place.rival = official(place, PATIENCE) if rival else None
        step = running(place, "sleep 86400")
        time.sleep(5)
        before = len(place.proxy.requests)
        time.sleep(60 * minutes)
        requests = len(place.proxy.requests) - before
        step.kill()
    return requests * 60 / minutes


def waits(admin: ApiServer, minutes: float) -> Iterator[str]:
    """Both of them, at once; the official client's patience, as given here, ends after a minute."""
    with ThreadPoolExecutor(2) as pool:
        ours = pool.submit(quiet, admin, minutes, rival=False)
        theirs = pool.submit(quiet, admin, min(minutes, 0.9), rival=True)
        cells = f"{ours.result():.0f} | {theirs.result():.0f}"
    yield "| figure | ddpipe | official client |"
    yield "|---|---|---|"
    yield f"| API requests per hour of quiet waiting, {minutes:g} minutes seen | {cells} |"


def figures(admin: ApiServer) -> Iterator[str]:
    """The figures, as a table."""
    yield "| figure | ddpipe | official client | bare kubernetes client |"
    yield "|---|---|---|---|"
    ours, theirs = lags(admin, 10, rival=False), lags(admin, 3, rival=True)
    cells = " | ".join(f"{statistics.median(one):.2f} s ({max(one):.2f} s)" for one in (ours, theirs))
    yield f"| job's end to launcher's exit, median (worst) | {cells} | |"
    yield f"| preflight, median | {checked(admin):.3f} s | none | |"
    yield from starts(admin)


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["figures", "quiet", "faults", "faults-trainjob"])
    parser.add_argument("--quiet-minutes", type=float, default=5)
    given = parser.parse_args()
    admin = connect()
    parts = {
        "figures": figures(admin),
        "quiet": waits(admin, given.quiet_minutes),
        "faults": matrix(admin, "pytorchjob", official),
        "faults-trainjob": matrix(admin, "trainjob", sdk),
    }
    RESULTS.mkdir(exist_ok=True)
    for part in given.parts:
        with (RESULTS / f"launcher-{part}.md").open("w") as results:
            for line in parts[part]:
                print(line, flush=True)  # noqa: T201
                results.write(f"{line}\n")


if __name__ == "__main__":
    main()
