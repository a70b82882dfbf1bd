"""Whether the pods of a service answer with a new model yet, and as it did when it was exported.

The pods decide, not the status of an InferenceService: that stays ready through a rollout, as the previous
pods still answer. So its Deployment has to run the new arguments in all replicas.

The test request goes through the API server's proxy to the Service or one of its pods, so that it works from
a pipeline's pod and from a person's machine alike, and takes the way of all requests to the model. The
package holds the expected probabilities; no model is computed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np

from ddpipe.errors import LaunchError
from ddpipe.jobs.status import condition
from ddpipe.kube.cluster import ApiError, Cluster, Refused, readable
from ddpipe.kube.resources import PODS, Resource
from ddpipe.model.evaluation import read_json
from ddpipe.model.package import FORMAT, INPUT, REFERENCE, SIGNATURE, Signature, answer_from, pattern_of

DEPLOYMENTS = Resource(group="apps", version="v1", plural="deployments", kind="Deployment")

CONTAINER = "kserve-container"  # the name that KServe expects
# Reasons of a waiting container that do not pass by themselves.
HOPELESS = {"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError"}
MOST_RESTARTS = 2  # of a container that ends by itself, before the rollout counts as failed
MOST_PODS = 500
LONGEST_TEXT = 2000

MOST_REASONS = 3  # that a line shows
TOLERANCE = 1e-3  # in a probability: more than another processor's rounding
# Refusals of the server in the pod, if they are no Status of Kubernetes; others come from the way to it.
ITS_OWN = {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}


@dataclass(frozen=True, slots=True)
class RolloutState:
    """How far a rollout is, as a line, and whether a failure does not pass by itself."""

    ready: bool
    seen: str
    hopeless: bool = False


def look(cluster: Cluster, made: Mapping[str, Any], *, kserve: bool) -> RolloutState:
    """How far the pods are."""
    service = made["metadata"]["name"]
    name = f"{service}-predictor" if kserve else service
    found = readable(lambda: cluster.get(DEPLOYMENTS.path(cluster.namespace, name)))
    if found is None or _arguments(found["spec"]["template"]["spec"]) != _expected(made, kserve=kserve):
        conditions = made.get("status", {}).get("conditions", ())
        texts = filter(None, (_text(one) for one in conditions if one["status"] == "False"))
        objected = "; ".join(texts)[:LONGEST_TEXT]  # what the object's own controller objects to
        return RolloutState(ready=False, seen=objected or "the controller has not made its pods yet")
    status, wanted = found.get("status", {}), found["spec"]["replicas"]
    # Until then the numbers are those of the previous model.
    if status.get("observedGeneration", 0) < found["metadata"]["generation"]:
        return RolloutState(ready=False, seen="the controller has not seen it yet")
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    if updated == available == status.get("replicas", 0) == wanted:
        return RolloutState(ready=True, seen=f"{wanted} of {wanted} pods answer")
    new = _new_pods(cluster, made, kserve=kserve)
    causes = sorted(cause for pod in new for cause in _causes(pod))
    unmade = condition(found, "ReplicaFailure")  # for a quota, for instance
    reasons = [*dict.fromkeys(seen for seen, _ in causes), *([_text(unmade)] if unmade else ())]
    ready = sum(condition(pod, "Ready") is not None for pod in new)
    seen = "; ".join([f"{ready} of {wanted} new pods are ready", *reasons[:MOST_REASONS]])
    return RolloutState(ready=False, seen=seen, hopeless=any(is_lost for _, is_lost in causes))


def ready_pod(cluster: Cluster, made: Mapping[str, Any]) -> str:
    """A ready pod of a Deployment that runs its present arguments and is not ending; empty for none."""
    metadata = (pod["metadata"] for pod in _new_pods(cluster, made, kserve=False) if condition(pod, "Ready"))
    return next((one["name"] for one in metadata if "deletionTimestamp" not in one), "")


def _new_pods(cluster: Cluster, made: Mapping[str, Any], *, kserve: bool) -> list[dict[str, Any]]:
    """The pods that run the new arguments."""
    service = made["metadata"]["name"]
    labels = {"app": f"isvc.{service}-predictor"} if kserve else made["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    query = {"labelSelector": selector, "limit": str(MOST_PODS)}
    pods = cluster.get(PODS.path(cluster.namespace), query)["items"]
    return [pod for pod in pods if _arguments(pod["spec"]) == _expected(made, kserve=kserve)]


def _causes(pod: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Why a pod is not ready, and whether that does not pass by itself."""
    status = pod.get("status", {})
    for one in status.get("conditions", ()):
        if one["type"] == "PodScheduled" and one["status"] == "False":
            yield _text(one), False
    for container in status.get("containerStatuses", ()):
        state = container.get("state", {})
        waiting = state.get("waiting") or {}
        ended = container.get("lastState", {}).get("terminated") or state.get("terminated")
        if ended:
            seen = f"its container ended with code {ended['exitCode']}"
            yield f"{seen}: {_text(ended)}", container.get("restartCount", 0) >= MOST_RESTARTS
        elif waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
            yield _text(waiting), waiting["reason"] in HOPELESS


def _text(state: Mapping[str, Any]) -> str:
    parts = (state.get("reason"), (state.get("message") or "").strip())
    return ": ".join(filter(None, parts))[-LONGEST_TEXT:]


def _arguments(pod: Mapping[str, Any]) -> list[str] | None:
    """Image and arguments of the container that serves: another model has others."""
    found = [one for one in pod["containers"] if one["name"] == CONTAINER]
    return [found[0]["image"], *found[0].get("args", ())] if found else None


def _expected(made: Mapping[str, Any], *, kserve: bool) -> list[str] | None:
    spec = made["spec"]
    return _arguments(spec["predictor"] if kserve else spec["template"]["spec"])


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Whether the answer is the expected one, None if there is none to compare; and what was seen."""

    same: bool | None
    seen: str


def probe(cluster: Cluster, target: str, name: str, model: str) -> ProbeResult:
    """Ask a service, or a pod of it, for the probabilities of the test pattern."""
    folder = FORMAT.open(model)
    expected = read_json(folder, REFERENCE, answer_from, FORMAT) if REFERENCE in folder.sha256 else ()
    if not expected:
        return ProbeResult(None, "its package holds no answer to the test pattern: export it again")
    signature = read_json(folder, SIGNATURE, Signature.from_dict, FORMAT)
    pixels = pattern_of(signature.shape)
    tensor = {"name": INPUT, "datatype": "UINT8", "shape": [*pixels.shape], "data": pixels.ravel().tolist()}
    try:
        answer = cluster.create(f"{target}/proxy/v2/models/{name}/infer", {"inputs": [tensor]})
    except Refused as error:
        # The proxy's own refusals are Status objects of Kubernetes, which have a reason.
        is_answer = error.status in ITS_OWN and not error.reason
        return ProbeResult(False if is_answer else None, f"the test request was refused: {error}")
    except (ApiError, LaunchError) as error:
        return ProbeResult(None, f"the test request was not answered: {error}")
    return _compared(answer, expected, signature.classes)


def _compared(answer: Mapping[str, Any], expected: Sequence[float], classes: Sequence[str]) -> ProbeResult:
    try:
        outputs = {one["name"]: one["data"] for one in answer["outputs"]}
        found = np.array(outputs["probabilities"], np.float64)
        moved = np.abs(found - np.array(expected))
    except (KeyError, TypeError, ValueError):
        return ProbeResult(same=False, seen=f"its answer has no probabilities: {json.dumps(answer)[:200]}")
    worst = int(moved.argmax())
    if not moved.max() <= TOLERANCE:  # also NaN
        return ProbeResult(
            same=False,
            seen=f"for the test pattern it gives {classes[worst]!r} {found[worst]:.4f}, the exported model "
            f"{expected[worst]:.4f}",
        )
    return ProbeResult(same=True, seen=f"it answers the test pattern as exported, within {moved.max():.1g}")
