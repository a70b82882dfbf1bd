"""A run in MLflow as well, if MLFLOW_TRACKING_URI is set.

    each step             its facts as metrics and tags, and whether it failed
    rank 0 of a training  hyperparameters, dataset version, lineage, and the metrics of each epoch
    in the end            report and model package as artifacts; the tag of the champion

A run has one MLflow run: that of MLFLOW_RUN_ID, which Kubeflow Pipelines gives to a step, or the one in
<run>/mlflow.json. A thread sends: training never waits for it, a step for some seconds at its end. A tracker
that is away costs one warning; when it is back it gets what fits into the queue, and all epochs.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

from ddpipe.errors import NoSuchObject
from ddpipe.storage import open_store

RUN = "mlflow.json"
GIVEN = "MLFLOW_RUN_ID"
CHAMPION = "ddpipe.champion"
LONG = 60.0
"""Seconds to wait for a model package to be sent."""

_OURS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # MLflow's own are 120 s and 7 retries
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # where results are printed
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_MOST, _SECONDS, _LENGTH = 100, 10.0, 500

_log = logging.getLogger(__name__)

Client = Any  # MLflow's, which is an extra
Send = Callable[[Client, str], object]
"""Sends a part, given the ID of the MLflow run."""


class Tracker:
    """Sends what is put into it, in order; nothing without MLFLOW_TRACKING_URI."""

    def __init__(self, run: str, given: str) -> None:
        self.is_on = bool(os.environ.get("MLFLOW_TRACKING_URI"))
        self._run, self._given = run, given
        self._queue: Queue[Send] = Queue(_MOST)
        self._is_away = self._is_closing = self._has_warned = False
        self._epochs_sent: int | None = None
        self._thread = Thread(target=self._work, name="tracker", daemon=True)
        if self.is_on:
            self._thread.start()

    def put(self, send: Send) -> None:
        """Have something sent; it is dropped if too much waits already."""
        try:
            if self.is_on:
                self._queue.put_nowait(send)
        except Full:
            self._warn("it is too slow")

    def status(self, status: str) -> None:
        """Say whether the run is RUNNING, FINISHED, FAILED or KILLED; of an engine's run the engine does."""

        def send(client: Client, run: str) -> None:
            if not self._given:
                (client.update_run if status == "RUNNING" else client.set_terminated)(run, status)

        self.put(send)

    def facts(self, step: str, facts: Mapping[str, object]) -> None:
        """Send what a step is recorded with: numbers as metrics, texts as tags."""
        numbers = {f"{step}/{name}": value for name, value in facts.items()}
        texts = {name: value for name, value in facts.items() if value and isinstance(value, str)}
        tags = {f"ddpipe.{step}.{name}": text for name, text in texts.items()}
        self.put(lambda client, run: _log_batch(client, run, metrics=numbers, tags=tags))

    def training(
        self, dataset: tuple[str, str, str], values: Mapping[str, object], lineage: Mapping[str, object]
    ) -> None:
        """Send what is trained on (name, ID and address), the hyperparameters, and where it comes from."""
        name, version, uri = dataset
        tags = {f"ddpipe.{key}": value for key, value in {**lineage, "dataset": version}.items()}

        def send(client: Client, run: str) -> None:
            from mlflow.entities import Dataset, DatasetInput  # noqa: PLC0415

            used = Dataset(name, version[:36], "ddpipe", json.dumps({"uri": uri}))
            client.log_inputs(run, [DatasetInput(used)])
            _log_batch(client, run, params=values, tags=tags)

        self.put(send)

    def epochs(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Send the epochs that MLflow does not have: an earlier attempt has sent some."""
        lines = list(history)

        def send(client: Client, run: str) -> None:
            if self._epochs_sent is None:
                there = client.get_metric_history(run, "train_loss")
                self._epochs_sent = max((metric.step for metric in there), default=0)
            for line in lines[self._epochs_sent :]:
                _log_batch(client, run, metrics=line, step=line["epoch"])
                self._epochs_sent = line["epoch"]

        self.put(send)

    def files(self, folder: str, keys: Sequence[str], read: Callable[[str], bytes]) -> None:
        """Send files as artifacts in a folder, which is empty for the topmost."""

        def send(client: Client, run: str) -> None:
            with tempfile.TemporaryDirectory(prefix="ddpipe-") as copies:
                for key in keys:
                    path = Path(copies, key)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(read(key))
                client.log_artifacts(run, copies, folder or None)

        self.put(send)

    def champion(self, version: str) -> None:
        """Tag the run of `name@version` as the champion's, and no other run of that model."""
        name = version.partition("@")[0]

        def send(client: Client, run: str) -> None:
            experiment = client.get_run(run).info.experiment_id
            # The names are compared here: in a filter, _ of a name would be any letter.
            for other in client.search_runs([experiment], f"tags.`{CHAMPION}` LIKE '%@%'"):
                if other.data.tags[CHAMPION].partition("@")[0] == name:
                    client.delete_tag(other.info.run_id, CHAMPION)
            client.set_tag(run, CHAMPION, version)

        self.put(send)

    def close(self, seconds: float) -> None:
        """Wait for so long for what is left, if the tracker answers."""
        self._is_closing = True
        self.put(lambda _client, _run: None)  # wakes the thread
        if self.is_on and not self._is_away:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._warn(f"it did not answer within {seconds:g} s")

    def _work(self) -> None:
        client: Client = None
        run, missed = "", deque[Send](maxlen=_MOST)
        while not (self._is_closing and (self._is_away or self._queue.empty())):
            send = self._queue.get()
            try:
                client = client or _client()
                run = run or self._found(client)
                send(client, run)
                self._is_away = False
                while missed:
                    with suppress(Exception):  # a part that fails again is left out
                        missed.popleft()(client, run)
            except ModuleNotFoundError:
                self._warn("the client is not installed here: pip install 'ddpipe[mlflow]'")
            except Exception as error:  # noqa: BLE001 - no tracker is a reason to end a training
                missed.append(send)
                self._warn(f"{type(error).__name__}: {error}")

    def _warn(self, seen: str) -> None:
        self._is_away = True
        if not self._has_warned:
            self._has_warned = True
            _log.warning("MLflow may lack a part of this run: %s", " ".join(seen.split())[:_LENGTH])

    def _found(self, client: Client) -> str:
        """The ID of the MLflow run, which is created if there is none."""
        store, before = open_store(self._run), None
        with suppress(NoSuchObject):
            before = store.read(RUN)
        known = str(json.loads(before)["run_id"]) if before else ""
        if known and self._given in {"", known}:
            return known
        name = self._run.rpartition("/")[2]
        made = self._given or client.create_run(_experiment(client), run_name=name).info.run_id
        if store.swap(RUN, before, json.dumps({"run_id": made}).encode()) or self._given:
            client.set_tag(made, "ddpipe.run", self._run)
            return str(made)
        client.delete_run(made)  # another process of the run was faster
        return str(json.loads(store.read(RUN))["run_id"])


@contextmanager
def tracked(run: str, seconds: float = _SECONDS, given: str | None = None) -> Iterator[Tracker]:
    """What sends to the MLflow run of this run; waits in the end, at most so many seconds."""
    tracker = Tracker(run, os.environ.get(GIVEN, "") if given is None else given)
    try:
        yield tracker
    finally:
        tracker.close(seconds)


def _client() -> Client:
    for name, value in _OURS.items():
        os.environ.setdefault(name, value)
    # Each retry would be a warning; a tracker that is away costs one.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    from mlflow import MlflowClient  # noqa: PLC0415 - seconds to import

    return MlflowClient()


def _experiment(client: Client) -> str:
    """The experiment that MLflow's variables name, or else its default."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    found = client.get_experiment_by_name(name) if name else None
    default = os.environ.get("MLFLOW_EXPERIMENT_ID", "0")
    return str(found.experiment_id if found else client.create_experiment(name) if name else default)


def _log_batch(
    client: Client,
    run: str,
    *,
    metrics: Mapping[str, object] = {},
    params: Mapping[str, object] = {},
    tags: Mapping[str, object] = {},
    step: int = 0,
) -> None:
    from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415

    now = int(time.time() * 1000)
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    client.log_batch(
        run,
        [Metric(name, value, now, step) for name, value in numbers.items() if math.isfinite(value)],
        [Param(name, str(value)[:_LENGTH]) for name, value in params.items()],
        [RunTag(name, str(value)[:_LENGTH]) for name, value in tags.items()],
    )
