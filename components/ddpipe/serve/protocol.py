"""The Open Inference Protocol v2 as values: requests to images, predictions to responses.

    {"inputs": [{"name": "images", "datatype": "UINT8", "shape": [2, 28, 28, 1], "data": [0, …]}]}
    {"inputs": [{"name": "files", "datatype": "BYTES", "shape": [1], "data": ["<base64 of a PNG>"]}]}

The first takes pixels of the model's own shape, the second files of any size, which the server prepares as
the training images were. Data may also follow the JSON as bytes, as tritonclient sends it.

Sources: https://github.com/kserve/open-inference-protocol; Triton's binary tensor data extension.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpipe.model.package import INPUT, Signature
from ddpipe.serve.predictor import Prediction

FILES, PROBABILITIES, ANSWER = "files", "probabilities", "answer"

HEADER = "Inference-Header-Content-Length"  # length of the JSON where data follows it as bytes
MOST_IMAGES = 1024  # in one request
MOST_VALUES = 4_000_000  # in the JSON of a request: an empty list takes three bytes there, and 64 in memory
LONGEST_ID = 100

SHOWN = 5  # unreadable images of a request that the message lists


class WrongRequest(Exception):
    """A request that cannot be answered; the text says what was seen and what is expected."""

    status = 400


class TooLarge(WrongRequest):
    """A request that would take too much memory."""

    status = 413


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What a client asks: its own name for it, and contents of files or pixels of the model's own shape."""

    id: str
    images: Sequence[bytes] | NDArray[np.uint8]


def parsed(body: bytes | bytearray, signature: Signature, header: str | None = None) -> InferRequest:
    """A request for inference; raises WrongRequest, which says what is expected."""
    try:
        length = int(header) if header else len(body)
        if not 0 <= length <= len(body):
            raise ValueError(f"{HEADER} is {length}, the body has {len(body)} bytes")  # noqa: TRY301 - explained below
        if sum(body.count(mark, 0, length) for mark in (b",", b"[", b"{")) > MOST_VALUES:
            raise TooLarge(f"it has more than {MOST_VALUES:,} values: send files, or data as bytes")
        values = json.loads(body[:length])
        (tensor,) = values["inputs"]
        if header:
            tensor["data"] = bytes(body[length:])
        return InferRequest(str(values.get("id", ""))[:LONGEST_ID], _images(tensor, signature))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        seen = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)[:200]
        raise WrongRequest(f"the request cannot be read: {seen}. {expected(signature)}") from error


def _images(tensor: Mapping[str, Any], signature: Signature) -> Sequence[bytes] | NDArray[np.uint8]:
    name, kind, shape, data = (tensor[key] for key in ("name", "datatype", "shape", "data"))
    if (name, kind) == (FILES, "BYTES"):
        return _files(shape, data)
    if (name, kind) == (INPUT, "UINT8"):
        return _pixels(shape, data, signature)
    raise ValueError(f"its input is {str(name)[:40]!r} of {str(kind)[:40]!r}")


def expected(signature: Signature) -> str:
    """What a request has to be, in a sentence."""
    shape = ", ".join(map(str, ("n", *signature.shape)))
    return (
        f"Send JSON with one input: {INPUT!r} of datatype UINT8 and shape [{shape}], or {FILES!r} of "
        f"datatype BYTES and shape [n] with image files in base64, up to {MOST_IMAGES} images"
    )


def _files(shape: Sequence[int], data: Sequence[str] | bytes) -> Sequence[bytes]:
    found = list(_strings(data)) if isinstance(data, bytes) else data
    if list(shape) != [len(found)] or not 1 <= len(found) <= MOST_IMAGES:
        raise ValueError(f"its shape is {str(shape)[:40]}, its data has {len(found)} items")
    try:
        return [one if isinstance(one, bytes) else _decoded(one) for one in found]
    except binascii.Error as error:
        raise ValueError(f"its data is not base64: {error}") from error


def _decoded(text: str) -> bytes:
    """The content of a file, from base64 as programs print it, in lines, or from a data: URL of a browser."""
    if text.startswith("data:"):
        kind, _, text = text.partition(",")
        if not kind.endswith(";base64"):
            raise ValueError("its data: URL is not base64")
    return base64.b64decode("".join(text.split()), validate=True)


def _strings(data: bytes) -> Iterator[bytes]:
    """Strings, each after its length in four bytes."""
    place = 0
    for _ in range(MOST_IMAGES):
        if place == len(data):
            return
        end = place + 4 + int.from_bytes(data[place : place + 4], "little")
        if end > len(data):
            break
        yield data[place + 4 : end]
        place = end
    if place != len(data):
        raise ValueError("its data are not strings after their lengths")


def _pixels(shape: Sequence[int], data: object, signature: Signature) -> NDArray[np.uint8]:
    if not 1 <= len(shape) <= 1 + len(signature.shape) or tuple(shape[1:]) != signature.shape:
        raise ValueError(f"its shape is {str(shape)[:40]}")
    count = shape[0]
    if type(count) is not int or not 1 <= count <= MOST_IMAGES:
        raise ValueError(f"it has {str(count)[:40]} images")
    values = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data)
    if values.size != math.prod(shape):
        raise ValueError(f"its data has {values.size} values, its shape {math.prod(shape)}")
    if values.dtype.kind not in "iu" or values.min() < 0 or values.max() > np.iinfo(np.uint8).max:
        raise ValueError("its data are not whole numbers from 0 to 255")
    return values.astype(np.uint8).reshape(shape)


def response(
    request: InferRequest, predictions: Sequence[Prediction], signature: Signature, name: str
) -> Mapping[str, Any]:
    """The answer to a request."""
    if bad := [f"image {at}: {one.problem}" for at, one in enumerate(predictions) if one.problem]:
        more = f", and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise WrongRequest(
            f"{len(bad)} of {len(predictions)} images cannot be read: {'; '.join(bad[:SHOWN])}{more}"
        )
    count, classes = len(predictions), list(signature.classes)
    values = [value for one in predictions for value in one.probabilities.values()]
    answers = [json.dumps(list(one.answer), ensure_ascii=False) for one in predictions]
    return {
        "model_name": name,
        **({"id": request.id} if request.id else {}),
        "parameters": {"classes": json.dumps(classes, ensure_ascii=False)},
        "outputs": [
            {"name": PROBABILITIES, "datatype": "FP64", "shape": [count, len(classes)], "data": values},
            {"name": ANSWER, "datatype": "BYTES", "shape": [count], "data": answers},
        ],
    }


def metadata(signature: Signature, name: str, version: str) -> Mapping[str, Any]:
    """What a client needs to call the model."""
    return {
        "name": name,
        "versions": [version],
        "platform": "onnx_onnxv1",
        "inputs": [
            {"name": INPUT, "datatype": "UINT8", "shape": [-1, *signature.shape]},
            {"name": FILES, "datatype": "BYTES", "shape": [-1]},
        ],
        "outputs": [
            {"name": PROBABILITIES, "datatype": "FP64", "shape": [-1, len(signature.classes)]},
            {"name": ANSWER, "datatype": "BYTES", "shape": [-1]},
        ],
        "parameters": {
            "classes": list(signature.classes),
            "task": signature.task,
            "thresholds": list(signature.thresholds),
        },
    }
