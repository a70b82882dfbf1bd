"""One attempt of a step to run its job: what the parts of the launch protocol share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from threading import Event

from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.resources import Object
from ddpipe.launching import diagnosis, elastic, preflight


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to run a job.

    Attributes:
        job: The job that runs: the one requested, with its current number of pods.
        worked: For how many seconds earlier jobs of this step have worked, with other numbers of pods.
        creating: Set while a request to create the job is under way.
    """

    cluster: Cluster
    requested: TrainingJob
    job: TrainingJob
    backend: Backend
    say: Callable[[str], None]
    worked: float = 0.0
    creating: Event = field(default_factory=Event)

    @property
    def least(self) -> int:
        """How many pods have to run at the same time."""
        return self.requested.min_nodes or self.requested.nodes

    @property
    def patient(self) -> Cluster:
        """The cluster, which retries each request for as long as the API server may be away."""
        return self.cluster.patient(self.job.limits.outage)

    @property
    def path(self) -> str:
        """The job's path in the API."""
        return self.backend.resource.path(self.job.namespace, self.job.name)

    @property
    def title(self) -> str:
        """The job's name in messages."""
        return diagnosis.name_of(self.job, self.backend)

    def sized(self, nodes: int) -> Attempt:
        """The same attempt with this number of pods."""
        return replace(self, job=replace(self.job, nodes=nodes))

    def as_found(self, found: Object) -> Attempt:
        """The same attempt with the number of pods that the job `found` was created with."""
        return self.sized(elastic.size_of(found) or self.requested.nodes)

    def find(self) -> Object | None:
        """The job on the cluster; None if there is none."""
        try:
            return self.patient.get(self.path)
        except Refused as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            if error.status == HTTPStatus.FORBIDDEN:
                preflight.check_rights(self.cluster, self.job, self.backend)
            raise
