"""The record of a launch in its folder: launch.json and outcome.json, both untrusted and without secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ddpipe.errors import CorruptObject
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.options import JobOptions
from ddpipe.jobs.owner import Owner
from ddpipe.notebook.result import KEY, RESULT
from ddpipe.storage import Store

RECORD, OUTCOME = "launch.json", "outcome.json"
"""Keys in the folder of a launch."""

PIPELINE = "notebook"
"""Pipeline of all launched jobs, as `ddpipe jobs` shows it."""

PRIVATE = ("env", "patch")
"""Options that may hold passwords: they are kept on the machine of the launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What was launched, for every later kernel.

    Attributes:
        name: Name of the launch.
        work: Name of the function or the script.
        sha256: SHA-256 of the packed call.
        backend: Where it runs: "local", or the kind of job.
        nodes: Number of pods.
        processes: Ranks per pod; 0 means one per GPU, or one.
        namespace: Namespace of the job; empty until its launcher has found out the account's own.
        options: Options of the job, without those in `PRIVATE`.
        private: Names of the private options that were given.
    """

    name: str
    work: str
    sha256: str
    backend: str
    nodes: int
    processes: int
    namespace: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    private: tuple[str, ...] = ()

    def write(self, folder: Store) -> None:
        """Write the record into the launch's folder."""
        folder.write(RECORD, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, folder: Store) -> Launch:
        """Read the record of a launch."""
        try:
            record = json.loads(folder.read(RECORD))
            return cls(**{**record, "private": tuple(record.get("private", ()))})
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptObject(
                what="the record of a launch is damaged",
                which=f"{folder.uri}/{RECORD}",
                seen=repr(error),
                do="Find out who wrote it, then launch again under another name.",
            ) from error

    def job(self, folder: str, namespace: str, private: Mapping[str, Any], key: str) -> TrainingJob:
        """The job whose pods run the call; the same launch always gives the same job."""
        options = JobOptions.from_dict({**self.options, **private}).to_dict()
        options["env"] = {**options["env"], KEY: key}
        return TrainingJob(
            owner=Owner(pipeline=PIPELINE, run_id=self.name, step=self.work),
            namespace=self.namespace or namespace,
            command=("python", "-m", "ddpipe.torchrun", "-m", "ddpipe.notebook.call", folder, self.sha256),
            outputs=(f"{folder}/{RESULT.seal}",),
            **options,
        )
