"""Whether a service answers a test pattern as its model did when it was exported.

The request goes through the API server's proxy to the Service or one of its pods, so that it works from a
pipeline's pod and from a person's machine alike, and takes the way of all requests to the model. The package
holds the expected probabilities; no model is computed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np

from ddpipe.errors import LaunchError
from ddpipe.kube.cluster import ApiError, Cluster, Refused
from ddpipe.model.evaluation import read_json
from ddpipe.model.package import FORMAT, INPUT, REFERENCE, SIGNATURE, Signature, answer_from, pattern_of

TOLERANCE = 1e-3
"""In a probability: more than another processor's rounding."""

ITS_OWN = {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}
"""Refusals of the server in the pod, if they are no Status of Kubernetes; others come from the way to it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of a test request.

    Attributes:
        same: Whether the answer is the expected one; None if there was none to compare.
        seen: What was seen, as a clause.
    """

    same: bool | None
    seen: str


def probe(cluster: Cluster, target: str, name: str, model: str) -> Probe:
    """Ask a service, or a pod of it, for the probabilities of the test pattern."""
    folder = FORMAT.open(model)
    expected = read_json(folder, REFERENCE, answer_from, FORMAT) if REFERENCE in folder.sha256 else ()
    if not expected:
        return Probe(None, "its package does not say what it answers to the test pattern: export it again")
    signature = read_json(folder, SIGNATURE, Signature.from_dict, FORMAT)
    try:
        answer = cluster.create(f"{target}/proxy/v2/models/{name}/infer", _request(signature))
    except Refused as error:
        is_answer = error.status in ITS_OWN and not error.reason
        return Probe(False if is_answer else None, f"the test request was refused: {error}")
    except (ApiError, LaunchError) as error:
        return Probe(None, f"the test request was not answered: {error}")
    return _compared(answer, expected, signature.classes)


def _request(signature: Signature) -> Mapping[str, Any]:
    pixels = pattern_of(signature.shape)
    tensor = {
        "name": INPUT,
        "datatype": "UINT8",
        "shape": list(pixels.shape),
        "data": pixels.ravel().tolist(),
    }
    return {"inputs": [tensor]}


def _compared(answer: Mapping[str, Any], expected: Sequence[float], classes: Sequence[str]) -> Probe:
    try:
        outputs = {one["name"]: one["data"] for one in answer["outputs"]}
        found = np.array(outputs["probabilities"], np.float64)
        moved = np.abs(found - np.array(expected))
    except (KeyError, TypeError, ValueError):
        return Probe(same=False, seen=f"its answer has no probabilities: {json.dumps(answer)[:200]}")
    worst = int(moved.argmax())
    if not moved.max() <= TOLERANCE:  # also NaN
        return Probe(
            same=False,
            seen=f"for the test pattern it gives {classes[worst]!r} {found[worst]:.4f}, the exported model "
            f"{expected[worst]:.4f}",
        )
    return Probe(same=True, seen=f"it answers the test pattern as exported, within {moved.max():.1g}")
