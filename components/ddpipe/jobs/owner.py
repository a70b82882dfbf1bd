"""The owner of a job: one step of one run. The job's name is made of it, so that a retry finds the job."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import ClassVar

from ddpipe.parameters import Parameters, parameter

# Operators append "-worker-511" and use the result as a host name, of at most 63 characters.
NAME_LIMIT = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner(Parameters):
    """One step of one run, which owns exactly one job, even if the step is retried."""

    heading: ClassVar[str] = "Identity"

    pipeline: str = parameter(
        "ddpipe", "Name of the pipeline; jobs that its earlier runs left behind are removed."
    )
    run_id: str = parameter("", "Run ID, the same for every retry (default: a new one).")
    task_id: str = parameter("", "ID that distinguishes loop iterations within a run.")
    step: str = parameter("train", "Name of the step.")

    @property
    def key(self) -> str:
        """The identity as one line, stored as an annotation of the job."""
        return json.dumps([self.pipeline, self.run_id, self.task_id, self.step])

    @classmethod
    def of_key(cls, key: str) -> Owner:
        """The owner with this key."""
        try:
            found = json.loads(key)
        except RecursionError as error:
            raise ValueError(key[:80]) from error
        match found:
            case [str(pipeline), str(run), str(task), str(step)]:
                return cls(pipeline=pipeline, run_id=run, task_id=task, step=step)
            case _:
                raise ValueError(key)

    @property
    def job_name(self) -> str:
        """A DNS-1035 label: the step's name, to be readable, and a hash of the identity, to be unique."""
        readable = re.sub(r"[^a-z0-9]+", "-", self.step.lower()).strip("-")
        if not readable[:1].isalpha():
            readable = f"job-{readable}".rstrip("-")
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:10]
        return f"{readable[: NAME_LIMIT - 11].rstrip('-')}-{digest}"
