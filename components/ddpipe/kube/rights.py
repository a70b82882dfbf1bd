"""What the launcher does on a cluster, and whether it may: behind preflight's advice and images/rbac.yaml."""

from __future__ import annotations

from dataclasses import dataclass

from ddpipe.kube.api import Cluster
from ddpipe.kube.resources import (
    ACCOUNTS,
    CLAIMS,
    CONFIGS,
    EVENTS,
    JOBS,
    PODS,
    QUOTAS,
    WORKFLOWS,
    Resource,
)


@dataclass(frozen=True, slots=True)
class Right:
    """A rule of a Role.

    Attributes:
        resource: The kind of object.
        verbs: What may be done with it.
        subresource: The part of it that is meant; empty for the object itself.
    """

    resource: Resource
    verbs: tuple[str, ...]
    subresource: str = ""

    @property
    def name(self) -> str:
        """The resource as a Role names it."""
        return "/".join(filter(None, (self.resource.plural, self.subresource)))


def needed(resource: Resource, *beside: Resource) -> tuple[Right, ...]:
    """Without these no job of this kind can be launched, with objects of those kinds beside it."""
    return (
        Right(resource, ("create", "get", "list", "watch", "delete")),
        Right(PODS, ("list", "watch")),
        Right(PODS, ("get",), "log"),
        *(Right(companion, ("create", "get")) for companion in beside),
    )


HELPFUL = (
    Right(PODS, ("get",)),  # the launcher's own: tells an eviction from a termination
    Right(EVENTS, ("list", "watch")),  # why pods are refused, or cannot mount
    Right(QUOTAS, ("list",)),  # quota that does not suffice shows before anything is created
    Right(CLAIMS, ("get",)),  # so does a missing object
    Right(CONFIGS, ("get",)),
    Right(ACCOUNTS, ("get",)),
    Right(WORKFLOWS, ("get",)),  # whether the run of a job that was left behind is over
    Right(JOBS, ("get",)),
)
"""Launching works without these, with later or poorer messages."""


def may(cluster: Cluster, namespace: str, right: Right, verb: str, account: str = "") -> bool:
    """Whether a verb of a right is granted, in a namespace.

    Args:
        cluster: Where.
        namespace: Of the objects, and of the service account.
        right: What is asked for.
        verb: One of its verbs.
        account: Name of a service account; empty: whoever asks.

    Raises:
        ApiError: The server cannot say, or does not let this account ask about another one.
    """
    attributes = {
        "namespace": namespace,
        "group": right.resource.group,
        "resource": right.resource.plural,
        "subresource": right.subresource,
        "verb": verb,
    }
    user = {"user": f"system:serviceaccount:{namespace}:{account}"} if account else {}
    kind = "SubjectAccessReview" if account else "SelfSubjectAccessReview"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": kind,
        "spec": {**user, "resourceAttributes": attributes},
    }
    answer = cluster.create(f"/apis/authorization.k8s.io/v1/{kind.lower()}s", review)
    return bool(answer["status"]["allowed"])
