"""Model packages whose network is one matrix, written without torch: they are there at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from evaluation_runs import some_logits
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ddpipe.evaluate.measure import measure
from ddpipe.model.package import INPUT, OUTPUT, ModelPackage, Signature, pattern_of, publish
from ddpipe.model.preprocessing import Preprocessing
from ddpipe.model.session import Session
from ddpipe.storage import open_store

CLASSES = ("ball", "kité", "<b>top</b>")
SHAPE = (6, 8, 1)
ADDED = "added"


def a_signature(shape: tuple[int, int, int] = SHAPE, **changes: object) -> Signature:
    color = "gray" if shape[2] == 1 else "rgb"
    fields: dict[str, object] = {
        "architecture": "digits-cnn",
        "shape": shape,
        "classes": CLASSES,
        "preprocessing": Preprocessing(color=color),
    }
    return Signature(**(fields | changes))  # type: ignore[arg-type]


def an_onnx(signature: Signature, seed: int = 0, added: TensorProto | None = None) -> ModelProto:
    """Logits are a matrix times the pixels, plus a vector, which may be another than zeros."""
    classes = len(signature.classes)
    random = np.random.default_rng(seed)
    weights = random.normal(0, 0.002, (int(np.prod(signature.shape)), classes)).astype(np.float32)
    zeros = numpy_helper.from_array(np.zeros(classes, np.float32), ADDED)
    nodes = [
        helper.make_node("Cast", [INPUT], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["floats"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["products"]),
        helper.make_node("Add", ["products", ADDED], [OUTPUT]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["batch", *signature.shape])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", classes])],
        [numpy_helper.from_array(weights, "weights"), added or zeros],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def a_small_package(
    uri: str,
    signature: Signature | None = None,
    *,
    onnx: bytes | None = None,
    change: Callable[[ModelProto], object] = lambda _: None,
    seed: int = 0,
    has_pattern: bool = False,
) -> ModelPackage:
    """A sealed package; `onnx` replaces its network, `change` changes it before it is sealed.

    With `has_pattern` it says what it answers to the test pattern.
    """
    signed = signature or a_signature()
    labels = np.arange(12) % len(signed.classes)
    model = an_onnx(signed, seed)
    change(model)
    content = onnx or model.SerializeToString()
    return publish(
        open_store(uri),
        pattern=_pattern(content, signed) if has_pattern else None,
        onnx=content,
        weights=b"weights",
        signature=signed,
        metrics=measure(some_logits(labels, len(signed.classes)), labels, signed.classes),
        lineage={"dataset": {"id": "d" * 64}},
        card="# Toys",
    )


def _pattern(onnx: bytes, signature: Signature) -> list[float]:
    answer: list[float] = signature.probabilities(Session(onnx)(pattern_of(signature.shape)))[0].tolist()
    return answer
