"""What a search costs beyond training, next to Optuna by hand and to the Kubeflow SDK.

    python benchmarks/bench_search.py            on this machine
    python benchmarks/bench_search.py --katib    on the cluster of KUBECONFIG, in its namespace
    python benchmarks/bench_search.py --study studies/cifar    what a study found, beyond its first trial

Writes benchmarks/results/search.md, search-katib.md, or search-found.md. The namespace needs what
docs/guides/katib.md says, and the secret `store` with the keys of the object store; variables are those of
tests/cluster/test_katib.py.
$DDPIPE_SEARCH_IMAGE is an image with torch and scikit-learn for trials of the SDK, which writes its script
into the working folder: the folder must be writable.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from ddpipe.kube.api import ApiServer, connect

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "cluster"))

from peers import sdk_python  # noqa: E402

LOOPS, RESULTS = HERE / "loops", HERE / "results"
HEAD = "| search | lines written | trials | seconds per trial | of these, beyond training |\n"
TIMES = 25
FOUND = f"| trials | first score | best score | time, in times of the first | best within {TIMES} times |\n"
RULE = "|---|---|---|---|---|\n"
TRIALS, EPOCHS = 6, 3
SEARCH = ("--search", "learning_rate=log(0.01,1)", "--trials", str(TRIALS), "--epochs", str(EPOCHS))
KATIB = "/apis/kubeflow.org/v1beta1/namespaces/{}"
EPOCH_SECONDS = re.compile(r"epoch=\d+/\d+ .* ([\d.]+) s$|epoch_seconds=([\d.]+)", re.MULTILINE)


@dataclass(frozen=True)
class Trial:
    """One trial: its whole time, and that of its training."""

    seconds: float
    training: float


def row(name: str, lines: int, trials: list[Trial]) -> str:
    """A row of the table, of medians."""
    whole = statistics.median(one.seconds for one in trials)
    beyond = statistics.median(one.seconds - one.training for one in trials)
    return f"| {name} | {lines} | {len(trials)} | {whole:.1f} | {beyond:.1f} |"


def lines_of(script: str) -> int:
    """Lines of code of a script that a user writes."""
    text = (LOOPS / script).read_text()
    docstring = ast.parse(text).body[0].end_lineno or 0
    return sum(bool(line.partition("#")[0].strip()) for line in text.splitlines()[docstring:])


def in_journal(path: Path) -> list[Trial]:
    """The trials in a journal of Optuna, which has one study."""
    study = optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(path))))
    return [
        Trial((one.datetime_complete - one.datetime_start).total_seconds(), one.user_attrs["seconds"])
        for one in study.get_trials(states=[TrialState.COMPLETE])
        if one.datetime_complete and one.datetime_start
    ]


def here() -> Iterator[str]:
    """On this machine, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        command = ("tune", "--source", "digits", "--study", "digits", *SEARCH)
        subprocess.run([sys.executable, "-m", "ddpipe", *command], cwd=place, check=True)
        found = in_journal(place / "studies/digits/journal.log")
        yield row("`ddpipe tune`: a process per trial, resumable", 1, found)
        script = [sys.executable, str(LOOPS / "optuna_digits.py"), str(TRIALS), str(EPOCHS)]
        subprocess.run(script, cwd=place, check=True)
        by_hand = in_journal(place / "journal.log")
        yield row("Optuna by hand: one process for all trials", lines_of("optuna_digits.py"), by_hand)


def on_katib(cluster: ApiServer) -> Iterator[str]:
    """On a cluster, two trials at a time."""
    namespace = cluster.namespace
    experiment = by_ddpipe(f"bench-{uuid.uuid4().hex[:8]}")
    yield row("`ddpipe tune --on katib`", 1, in_experiment(cluster, namespace, experiment))
    image = os.environ["DDPIPE_SEARCH_IMAGE"]
    client = (sdk_python(), LOOPS / "optimizer_client.py", namespace, image, str(TRIALS), str(EPOCHS))
    waited = subprocess.run(client, check=False, stdout=subprocess.PIPE, text=True)
    experiment = waited.stdout.split()[0]
    await_end(cluster, namespace, experiment)
    name = "OptimizerClient of kubeflow 0.5.0"
    if waited.returncode:
        name += ", whose wait ended with an error before the search did"
    yield row(name, lines_of("optimizer_client.py"), in_experiment(cluster, namespace, experiment))


def by_ddpipe(run: str) -> str:
    """Prepare and search with our commands; the name of the Experiment."""
    image, root = os.environ["DDPIPE_TEST_IMAGES"].format("trainer"), f"s3://{os.environ['S3_BUCKET']}/{run}"
    dataset = ddpipe(f"prepare --source digits --store {root}/store --runs {root} --run {run}").strip()
    job = f"--backend trainjob --image {image} --cpu 500m --memory 2Gi --s3-secret store --keep always"
    search = "--parallel-trials 2 --sampler random --pruning none"
    where = f"--dataset {dataset} --runs {root} --run {run} --s3-endpoint {os.environ['POD_S3_ENDPOINT']}"
    found = json.loads(ddpipe(f"katib {where} {job} {search} --json", *SEARCH))
    return str(found["best"]["trial"].rpartition("-")[0])


def ddpipe(command: str, *options: str) -> str:
    """What a command of ddpipe prints."""
    arguments = [sys.executable, "-m", "ddpipe", *command.split(), *options]
    return subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout


def await_end(cluster: ApiServer, namespace: str, experiment: str) -> None:
    """Wait until an Experiment has ended."""
    path = f"{KATIB.format(namespace)}/experiments/{experiment}"
    while not cluster.get(path)["status"].get("completionTime"):
        time.sleep(1)


def in_experiment(cluster: ApiServer, namespace: str, experiment: str) -> list[Trial]:
    """The trials of an Experiment of Katib, with the seconds in their logs."""
    query = {"labelSelector": f"katib.kubeflow.org/experiment={experiment}"}
    return [
        Trial(_seconds(one["status"]), trained(cluster, namespace, one["metadata"]["name"]))
        for one in cluster.get(f"{KATIB.format(namespace)}/trials", query)["items"]
    ]


def _seconds(status: dict[str, Any]) -> float:
    began, ended = (datetime.fromisoformat(status[name]) for name in ("startTime", "completionTime"))
    return (ended - began).total_seconds()


def trained(cluster: ApiServer, namespace: str, trial: str) -> float:
    """The seconds that a trial's epochs took, from its pods' logs."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    query = {"labelSelector": f"katib.kubeflow.org/trial={trial}"}
    (pod,) = cluster.get(pods, query)["items"]
    log = cluster.lines(
        f"{pods}/{pod['metadata']['name']}/log", {"container": "metrics-logger-and-collector"}, 10
    )
    text = "\n".join(line.decode().rstrip() for line in log)
    return sum(float(one or other) for one, other in EPOCH_SECONDS.findall(text))


def of_study(folder: Path) -> Iterator[str]:
    """What a study of `ddpipe tune` found, and its time in times of the first trial."""
    storage = JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    study = optuna.load_study(study_name=None, storage=storage)
    ended = study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED])
    times = [one.user_attrs["seconds"] / ended[0].user_attrs["seconds"] for one in ended]
    early = [one for one, spent in zip(ended, accumulate(times), strict=True) if spent <= TIMES]
    best, soon = (max(one.value or 0 for one in some) for some in (ended, early))
    cells = f"{ended[0].value:.4f} | {best:.4f} | {sum(times):.1f} | {soon:.4f}, {len(early)} trials"
    yield f"| {len(ended)} | {cells} |"


def write(name: str, rows: Iterable[str], head: str = HEAD) -> None:
    """Write a table."""
    path = RESULTS / name
    path.write_text(head + RULE + "\n".join(rows) + "\n")
    print(path.read_text())  # noqa: T201


def main() -> None:
    """Measure here, or on a cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--katib", action="store_true")
    parser.add_argument("--study", type=Path)
    given = parser.parse_args()
    if given.katib:
        write("search-katib.md", on_katib(connect()))
    elif given.study:
        write("search-found.md", of_study(given.study), FOUND)
    else:
        write("search.md", here())


if __name__ == "__main__":
    main()
