"""The launcher of a handle: a process of its own, which outlives the notebook's kernel.

    python -m ddpipe.notebook.background FOLDER [adopt]

It does what `ddpipe launch` does, or on this machine what `ddpipe train` does, as launch.json in the folder
says, and in the end writes outcome.json. SIGTERM ends the work: the job is deleted, the ranks are stopped.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ddpipe.errors import DdpipeError, Interrupted
from ddpipe.jobs import LOCAL
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.options import JobOptions
from ddpipe.jobs.owner import Owner
from ddpipe.kube.api import connect
from ddpipe.launching.adoption import adopt, adopt_or_create
from ddpipe.launching.launcher import launch
from ddpipe.notebook.result import RESULT
from ddpipe.processes.local import run_local
from ddpipe.storage import Store, exists, open_store

RECORD, OUTCOME = "launch.json", "outcome.json"
"""Keys in the folder of a launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What was launched, as any later kernel has to know it.

    Attributes:
        name: Of the launch.
        work: Name of the function or the script.
        sha256: Of the packed call.
        backend: Where it runs: "local", or the kind of job.
        nodes: How many pods.
        processes: How many ranks in each; 0: one per GPU, or one.
        namespace: Where the job is; empty: the account's own.
        options: The job's, as `JobOptions` has them.
    """

    name: str
    work: str
    sha256: str
    backend: str
    nodes: int
    processes: int
    namespace: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Store) -> None:
        """Into the launch's folder."""
        folder.write(RECORD, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, folder: Store) -> Launch:
        """From the launch's folder; raises `NoSuchObject`."""
        return cls(**json.loads(folder.read(RECORD)))

    def job(self, folder: str, namespace: str) -> TrainingJob:
        """The job whose pods run the call; the same launch always gives the same."""
        return TrainingJob(
            owner=Owner(pipeline="notebook", run_id=self.name, step=self.work),
            namespace=self.namespace or namespace,
            command=("python", "-m", "ddpipe.torchrun", "-m", "ddpipe.notebook.call", folder, self.sha256),
            outputs=(f"{folder}/{RESULT.seal}",),
            **JobOptions.from_dict(self.options).to_dict(),
        )


def main() -> None:
    """Run the launch to its end."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    uri, *adopting = sys.argv[1:]
    folder, began = open_store(uri), time.monotonic()
    outcome: dict[str, Any] = {"phase": "succeeded", "error": None, "metrics": {}}
    try:
        outcome["metrics"] = _run(Launch.read(folder), uri, adopting=bool(adopting))
    except DdpipeError as error:
        stopped = isinstance(error, Interrupted)
        outcome |= {"phase": "stopped" if stopped else "failed", "error": error.as_dict()}
    outcome["seconds"] = round(time.monotonic() - began, 3)
    folder.write(OUTCOME, json.dumps(outcome, indent=1).encode())


def _run(launched: Launch, uri: str, *, adopting: bool) -> dict[str, float]:
    if launched.backend == LOCAL:
        run_local("ddpipe.notebook.call", [uri, launched.sha256], launched.nodes * max(1, launched.processes))
        return {}
    cluster = connect()
    job = launched.job(uri, cluster.namespace)
    begin = adopt if adopting else adopt_or_create
    return dict(launch(job, cluster, exists=exists, is_process=True, begin=begin).metrics)


if __name__ == "__main__":
    main()
