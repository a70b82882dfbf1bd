"""A new model for a share of the requests, next to the present one: a second Deployment behind one Service.

A Service spreads connections evenly over its pods, so the share of the pods is the share of the requests:
with few pods only a coarse one, such as one of two. It is at most half: a canary never needs more pods than
the present model. The next call without a share gives all requests to its model, and removes the canary.
"""

from __future__ import annotations

from ddpipe.errors import ParameterError
from ddpipe.kube.cluster import Cluster
from ddpipe.kube.discovery import readable
from ddpipe.kube.retrying import delete
from ddpipe.serve.manifests import DEPLOYMENTS, TRACK, DeployOptions, Object, canary
from ddpipe.spelling import option


def canary_of(cluster: Cluster, options: DeployOptions, model: str, *, kserve: bool) -> tuple[Object, str]:
    """The second Deployment, and the share of the pods that it gets, which is at least one pod."""
    present = readable(lambda: cluster.get(DEPLOYMENTS.path(cluster.namespace, options.service)))
    if kserve or present is None:
        raise ParameterError(
            what="the model cannot get a share of the requests",
            which=f"{cluster.namespace}/{options.service}, {option('canary')} {options.canary}",
            seen="KServe serves it in its standard mode, which does not split requests"
            if kserve
            else "there is no Deployment of this name whose model would get the others",
            do=f"Leave out {option('canary')}, or use a service of your own ({option('kserve')} no).",
        )
    others = present["spec"]["replicas"]
    pods = max(1, round(others * options.canary / (100 - options.canary)))
    share = f"{pods} of {others + pods} pods ({100 * pods / (others + pods):.0f} %)"
    return canary(options, model, cluster.namespace, pods), share


def remove_canary(cluster: Cluster, service: str, outage: float) -> None:
    """Remove the second Deployment, if there is one."""
    path = DEPLOYMENTS.path(cluster.namespace, f"{service}-canary")
    found = readable(lambda: cluster.get(path))
    if found and found["metadata"].get("labels", {}).get(TRACK):
        delete(cluster, path, found["metadata"]["uid"], outage)
