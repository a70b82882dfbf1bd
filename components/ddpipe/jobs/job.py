"""A training job, independent of what runs it: what was chosen about it, and what it is."""

from __future__ import annotations

from dataclasses import dataclass

from ddpipe.jobs.options import LaunchOptions
from ddpipe.jobs.owner import Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob(LaunchOptions):
    """One training job of any kind: what was chosen about it, and what it is.

    Attributes:
        owner: The step of the run that owns it; gives the name.
        namespace: Where it runs.
        finished_ttl: Seconds after which the cluster itself removes the finished job.
    """

    owner: Owner
    namespace: str
    finished_ttl: int = 24 * 3600

    @property
    def name(self) -> str:
        """The job's name on the cluster."""
        return self.owner.job_name


def training_command(dataset: str, output: str, recipe: str) -> tuple[str, ...]:
    """The command of ddpipe's own training in a pod; torchrun reads the pod's PET_* variables."""
    module = ("python", "-m", "ddpipe.torchrun", "-m", "ddpipe.train")
    return (*module, "--dataset", dataset, "--output", output, "--recipe", recipe)
