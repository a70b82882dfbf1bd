"""The rights that launching needs, and whether an account has them: for preflight, doctor and rbac.yaml."""

from __future__ import annotations

from dataclasses import dataclass

from ddpipe.kube.cluster import Cluster
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
    """A rule of a Role."""

    resource: Resource
    verbs: tuple[str, ...]
    subresource: str = ""

    @property
    def name(self) -> str:
        """The resource as in a Role: pods/log."""
        return "/".join(filter(None, (self.resource.plural, self.subresource)))


def needed(resource: Resource, *companions: Resource) -> tuple[Right, ...]:
    """The rights without which no job of this kind can be launched."""
    return (
        Right(resource, ("create", "get", "list", "watch", "delete")),
        Right(PODS, ("list", "watch")),
        Right(PODS, ("get",), "log"),
        *(Right(companion, ("create", "get")) for companion in companions),
    )


HELPFUL = (
    Right(PODS, ("get",)),  # the launcher's own: is it evicted, or was the run terminated?
    Right(EVENTS, ("list", "watch")),  # why pods are rejected, or cannot mount
    Right(QUOTAS, ("list",)),  # insufficient quota shows before anything is created
    Right(CLAIMS, ("get",)),  # so does a missing object
    Right(CONFIGS, ("get",)),
    Right(ACCOUNTS, ("get",)),
    Right(WORKFLOWS, ("get", "list")),  # whether the runs of jobs that were left behind are over
    Right(JOBS, ("get",)),
)
"""Launching works without these, but some messages come later or say less."""


def may(cluster: Cluster, namespace: str, right: Right, verb: str, account: str = "") -> bool:
    """Whether a verb of a right is granted in a namespace."""
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
