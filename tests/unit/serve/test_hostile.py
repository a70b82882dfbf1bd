"""Packages that were damaged, or made to do harm: rejected before anything of them is used."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx_packages import ADDED, CLASSES, SHAPE, a_signature, a_small_package, an_onnx
from samples import an_image

from ddpipe.errors import CorruptObject, NewerFormat, NoSuchObject
from ddpipe.model import session
from ddpipe.serve.predictor import load_model
from ddpipe.storage.sealed import sha256

SECRET = np.array([1000, 0, 0], np.float32)
"""A file that a model must not read: it would decide every answer."""


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("unpickled"),))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _reseal(package: Path, key: str, content: bytes) -> None:
    """Change a file and its hash, as somebody who can write to the bucket would."""
    (package / key).write_bytes(content)
    seal = json.loads((package / "package.json").read_bytes())
    seal["sha256"][key] = sha256(content)
    (package / "package.json").write_text(json.dumps(seal))


def test_a_package_without_torch_answers(tmp_path: Path) -> None:
    a_small_package("model")
    (answer,) = load_model("model").predict([an_image(tmp_path / "a.png", (8, 6))])
    assert tuple(answer.probabilities) == CLASSES
    assert sum(answer.probabilities.values()) == pytest.approx(1)


@pytest.mark.parametrize("key", ["model.onnx", "signature.json"])
def test_changed_file_is_rejected_by_its_name(key: str) -> None:
    a_small_package("model")
    with Path("model", key).open("ab") as file:
        file.write(b" ")
    with pytest.raises(CorruptObject, match=f"model/{key}"):
        load_model("model")


def test_newer_package_asks_for_a_newer_ddpipe() -> None:
    a_small_package("model")
    seal = json.loads(Path("model/package.json").read_bytes())
    Path("model/package.json").write_text(json.dumps(seal | {"schema": seal["schema"] + 1}))
    with pytest.raises(NewerFormat, match="Upgrade ddpipe"):
        load_model("model")


@pytest.mark.parametrize("key", ["../secret", "/etc/passwd", "a/../../secret", "a\\..\\b"])
def test_paths_out_of_the_package_are_rejected(key: str) -> None:
    a_small_package("model")
    seal = json.loads(Path("model/package.json").read_bytes())
    seal["sha256"][key] = "0" * 64
    Path("model/package.json").write_text(json.dumps(seal))
    with pytest.raises(CorruptObject, match="not the key of a file in this folder"):
        load_model("model")


@pytest.mark.parametrize("key", ["model.onnx", "signature.json", "trained_on.npy"])
def test_pickles_are_never_opened(key: str) -> None:
    a_small_package("model")
    _reseal(Path("model"), key, pickle.dumps(Evil()))
    try:
        load_model("model")
    except CorruptObject as error:
        assert key in str(error)  # noqa: PT017 - trained_on.npy is not read at all
    assert not Path("unpickled").exists()


@pytest.mark.parametrize("place", ["secret", "model/secret", "../secret", "{root}/secret", "/dev/zero"])
def test_weights_in_other_files_are_never_read(tmp_path: Path, place: str) -> None:
    for folder in (tmp_path, tmp_path / "model", tmp_path.parent):
        folder.mkdir(exist_ok=True)
        (folder / "secret").write_bytes(SECRET.tobytes())
    outside = TensorProto(name=ADDED, data_type=TensorProto.FLOAT, dims=[len(CLASSES)])
    outside.data_location = TensorProto.EXTERNAL
    for name, value in {"location": place.format(root=tmp_path), "length": str(SECRET.nbytes)}.items():
        outside.external_data.add(key=name, value=value)
    a_small_package("model", onnx=an_onnx(a_signature(), added=outside).SerializeToString())
    with pytest.raises(CorruptObject, match="onnxruntime cannot load it"):
        load_model("model")


def _other_name(model: ModelProto) -> None:
    model.graph.input[0].name = model.graph.node[0].input[0] = "pictures"


def _other_size(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7


def _unknown_operator(model: ModelProto) -> None:
    model.graph.node[0].op_type, model.graph.node[0].domain = "Shell", "evil"


def _add(model: ModelProto, *nodes: NodeProto, **constants: Any) -> None:
    """Add what "extra" is computed by, a number, to the logits."""
    model.graph.node[3].input[1] = "extra"
    model.graph.node.MergeFrom([*model.graph.node[:3], *nodes, model.graph.node[3]])
    del model.graph.node[:4]
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))


def _endless(model: ModelProto) -> None:
    again = helper.make_tensor_value_info("again", TensorProto.BOOL, [])
    number = helper.make_tensor_value_info("number", TensorProto.INT64, [])
    value, more = (helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ("value", "more"))
    same = helper.make_tensor_value_info("same", TensorProto.BOOL, [])
    steps = [
        helper.make_node("Identity", ["again"], ["same"]),
        helper.make_node("Add", ["value", "start"], ["more"]),
    ]
    body = helper.make_graph(steps, "body", [number, again, value], [same, more])
    loop = helper.make_node("Loop", ["", "true", "start"], ["extra"], body=body)
    _add(model, loop, true=np.ones((), bool), start=np.array(0, np.float32))


def _huge(model: ModelProto) -> None:
    large = helper.make_node("ConstantOfShape", ["sides"], ["large"])
    _add(
        model,
        large,
        helper.make_node("ReduceMax", ["large"], ["extra"], keepdims=0),
        sides=np.array([40_000] * 2),
    )


def _two_rows(model: ModelProto) -> None:
    _add(model, extra=np.zeros((2, len(CLASSES)), np.float32))


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (_endless, "took longer than"),
        (_huge, "Available memory"),
        (_two_rows, r"1 images with \(2, 3\) numbers"),
    ],
)
def test_network_that_does_not_answer_is_rejected(
    change: Callable[[ModelProto], None], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LONGEST", 2.0)
    a_small_package("model", change=change)
    with pytest.raises(CorruptObject, match=seen):
        load_model("model")


@pytest.mark.parametrize("change", [_other_name, _other_size, _unknown_operator])
def test_network_that_is_not_of_the_signature_is_rejected(change: Callable[[ModelProto], None]) -> None:
    a_small_package("model", change=change)
    with pytest.raises(CorruptObject, match=r"model\.onnx"):
        load_model("model")


@pytest.mark.parametrize(
    "changes",
    [
        {"preprocessing": {"scale": "squash"}},
        {"preprocessing": {"scale": "shorter side", "side": 2, "jpeg_quality": 90}},
        {"preprocessing": {"color": "rgb"}},
        {"preprocessing": {"sharpen": True}},
        {"preprocessing": {"depth": 99}},
        {"temperature": 0.0},
        {"input": {"shape": ["batch", 10**9, 10**9, 1]}},
        {"classes": []},
        {"thresholds": [0.5]},
    ],
    ids=str,
)
def test_signature_that_no_export_wrote_is_rejected(changes: dict[str, Any]) -> None:
    a_small_package("model")
    signature = json.loads(Path("model/signature.json").read_bytes())
    for name, value in changes.items():
        old = signature[name]
        signature[name] = {**old, **value} if isinstance(value, dict) else value
    _reseal(Path("model"), "signature.json", json.dumps(signature).encode())
    with pytest.raises(CorruptObject, match=r"signature\.json"):
        load_model("model")


def test_model_that_gives_no_number_is_not_believed() -> None:
    nothing = np.full(len(CLASSES), np.nan, np.float32)
    broken = TensorProto(
        name=ADDED, data_type=TensorProto.FLOAT, dims=[len(CLASSES)], raw_data=nothing.tobytes()
    )
    a_small_package("model", onnx=an_onnx(a_signature(), added=broken).SerializeToString())
    (answer,) = load_model("model").predict([np.zeros(SHAPE, np.uint8)])
    assert answer.problem == "the model gives NaN or infinity for it"
    assert not answer.probabilities


def test_missing_or_unfinished_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoSuchObject, match="no finished model package"):
        load_model("nothing")
