"""What the cluster's nodes mean for a job: read in pages, kept as sums, and never of a cluster too large.

Nodes and other namespaces' pods are cluster-wide: an account that may not read them gets no advice. Neither
does one on a large cluster: reading 10,000 pods takes 290 MB from the API server, for each of perhaps 200
launchers, and there the scheduler, an autoscaler or a queue decides anyway.
"""

from __future__ import annotations

from collections.abc import Callable

from ddpipe.jobs.backend import Backend
from ddpipe.jobs.job import TrainingJob
from ddpipe.jobs.options import Preflight
from ddpipe.kube import capacity
from ddpipe.kube.cluster import Cluster, Query, pages, readable
from ddpipe.kube.resources import Object

_NODES, _ALL_PODS = "/api/v1/nodes", "/api/v1/pods"
_NOT_ENDED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
MOST_NODES = 1000  # of a larger cluster nothing is judged
MOST_PODS = 2500  # beside more pods than this, only the nodes' sizes are judged


def nodes_of(cluster: Cluster, job: TrainingJob, backend: Backend) -> capacity.NodeFindings:
    """Whether the nodes can ever take all of a job's pods, and whether they can now."""
    pod = backend.pod(job)["spec"]
    nodes = _nodes(cluster, job)
    if nodes is None:
        return capacity.NodeFindings()
    findings = capacity.check(pod, job.nodes, nodes, None)
    # The pods are many: what shows without them needs no second look.
    return findings if findings.problems else capacity.check(pod, job.nodes, nodes, _usage(cluster))


def pods_that_fit(cluster: Cluster, job: TrainingJob, backend: Backend) -> int | None:
    """How many of the job's pods the nodes can take at this moment; None if that cannot be seen."""
    patient, pod = cluster.patient(job.limits.outage), backend.pod(job)["spec"]
    nodes = _nodes(patient, job)
    usage = None if nodes is None else _usage(patient)
    if nodes is None or usage is None:
        return None
    return capacity.fitting(pod, job.nodes, nodes, usage)


def _nodes(cluster: Cluster, job: TrainingJob) -> list[capacity.Node] | None:
    """All nodes; None where they do not count, may not be read, or are too many."""
    if job.preflight == Preflight.AUTOSCALING:
        return None
    nodes: list[capacity.Node] = []
    is_read = _each(cluster, _NODES, MOST_NODES, lambda node: nodes.append(capacity.Node.of(node)))
    return nodes if is_read else None


def _usage(cluster: Cluster) -> capacity.Usage | None:
    """What other pods take; None if they may not be read, or are too many."""
    usage = capacity.Usage()
    return usage if _each(cluster, _ALL_PODS, MOST_PODS, usage.add, _NOT_ENDED) else None


def _each(
    cluster: Cluster, path: str, most: int, take: Callable[[Object], None], query: Query | None = None
) -> bool:
    """Take each object of a list, page by page; whether they may be read, and are not too many."""

    def read() -> bool:
        count = 0
        for page in pages(cluster.get, path, query):
            count += len(page)
            if count > most:
                return False
            for one in page:
                take(one)
        return True

    return bool(readable(read))
