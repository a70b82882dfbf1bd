"""What a package holds besides the model: further formats, speed, license, and a test pattern."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_runs import a_dataset, a_multilabel_dataset, a_training, exported
from onnx import TensorProto, load_model_from_string

from ddpipe.data.reader import open_split
from ddpipe.errors import ParameterError
from ddpipe.export import variants as making
from ddpipe.export.export import export
from ddpipe.export.spec import FORMATS, ExportSpec
from ddpipe.export.speed import speed_of
from ddpipe.model.package import answer_from, load_package, pattern_of
from ddpipe.model.scoring import Answer
from ddpipe.model.session import Session

SPEC = ExportSpec(
    license="apache-2.0",
    intended_use="Sorts toys.\nNot for | people.",
    export_formats=list(FORMATS),
    export_loss=1,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was exported in all formats."""
    here = tmp_path_factory.mktemp("run")
    dataset = a_dataset(str(here / "store"))
    a_training(str(here / "training"), dataset)
    exported(here, dataset, SPEC)
    (here / "dataset").write_text(dataset)
    return here


def _images(run: Path, split: str = "test") -> np.ndarray:
    samples = open_split((run / "dataset").read_text(), split)
    return samples.images(range(len(samples)))


def test_each_format_answers_nearly_the_same(run: Path) -> None:
    package = load_package(str(run / "model"))
    images = _images(run)
    expected = package.signature.probabilities(Session(package.folder.read("model.onnx"))(images))
    formats = package.lineage["formats"]
    assert set(formats) == set(FORMATS)
    for name in ("fp16", "int8"):
        found = package.signature.probabilities(Session(package.folder.read(formats[name]["file"]))(images))
        moved = np.abs(found - expected).max()
        assert moved == pytest.approx(formats[name]["largest_probability_difference"], abs=1e-5)
        assert 0 < moved < 0.1
    program = torch.export.load(io.BytesIO(package.folder.read("model.pt2"))).module()
    with torch.inference_mode():
        logits = program(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(package.signature.probabilities(logits), expected, atol=1e-4)
    assert formats["torch-export"]["same_decisions"] == len(images)


def test_formats_are_what_they_are_called(run: Path) -> None:
    folder = load_package(str(run / "model")).folder
    halved = load_model_from_string(folder.read("model.fp16.onnx"))
    kinds = {one.data_type for one in halved.graph.initializer}
    assert TensorProto.FLOAT16 in kinds
    assert len(folder.read("model.fp16.onnx")) < 0.7 * len(folder.read("model.onnx"))
    quantized = load_model_from_string(folder.read("model.int8.onnx"))
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in quantized.graph.node}
    assert TensorProto.INT8 in {one.data_type for one in quantized.graph.initializer}


@pytest.mark.slow
def test_a_format_that_loses_too_much_is_left_out(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = (run / "dataset").read_text()
    spec = ExportSpec(export_formats=["fp16"])
    monkeypatch.setattr(making, "measured", lambda *_: {"loss": 0.02})
    package = export(str(run / "training"), dataset, str(run / "evaluation"), str(tmp_path), spec=spec)
    assert "model.fp16.onnx" not in package.folder.sha256
    assert (
        "it loses 0.0200, more than the 0.01 that are allowed"
        in package.lineage["formats"]["fp16"]["left_out"]
    )
    assert "fp16 is left out" in caplog.text


@pytest.mark.slow
def test_a_format_that_cannot_be_made_does_not_stop_the_export(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: bytes) -> bytes:
        raise RuntimeError("an operator is unknown\nand more")

    monkeypatch.setattr(making, "_halved", fail)
    uris = (str(run / "training"), (run / "dataset").read_text(), str(run / "evaluation"), str(tmp_path))
    package = export(*uris, spec=ExportSpec(export_formats=["fp16"]))
    assert package.lineage["formats"]["fp16"]["left_out"] == "RuntimeError: an operator is unknown"
    assert "left out: RuntimeError" in (tmp_path / "README.md").read_text()


def _overflows(images: np.ndarray) -> np.ndarray:
    """Float16 ends at 65504; on most CPUs onnxruntime computes with float32 nevertheless."""
    with np.errstate(over="ignore"):
        return np.full((len(images), 2), 1e5).astype(np.float16).astype(np.float32)


def _fails(images: np.ndarray) -> np.ndarray:
    raise RuntimeError(f"a kernel failed\nfor {len(images)} images")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_overflows, "it outputs NaN or infinity"),
        pytest.param(_fails, "RuntimeError: a kernel failed", marks=pytest.mark.slow),
    ],
)
def test_a_format_that_fails_when_it_runs_is_left_out(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, reason: str
) -> None:
    made = making._made

    def make(name: str, *given: object) -> tuple[bytes, Answer]:
        return (b"", answer) if name == "fp16" else made(name, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(making, "_made", make)
    uris = (str(run / "training"), (run / "dataset").read_text(), str(run / "evaluation"), str(tmp_path))
    package = export(*uris, spec=ExportSpec(export_formats=["fp16", "torch-export"]))
    assert package.lineage["formats"]["fp16"] == {"left_out": reason}
    assert "model.fp16.onnx" not in package.folder.sha256
    assert "model.pt2" in package.folder.sha256


@pytest.mark.slow
def test_a_split_without_a_score_leaves_formats_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image shows a label: none has an AUC."""
    monkeypatch.setattr("evaluation_runs.some_labels", lambda *shape: np.zeros(shape, np.int64))
    dataset = a_multilabel_dataset(str(tmp_path / "store"))
    a_training(str(tmp_path / "training"), dataset)
    spec = ExportSpec(export_formats=["fp16"])
    package = exported(tmp_path, dataset, spec)
    reason = package.lineage["formats"]["fp16"]["left_out"]
    assert reason == "its loss cannot be measured: these images define no macro_auc"


def test_formats_that_no_one_knows_are_rejected() -> None:
    with pytest.raises(ParameterError, match="has 'fp8', not fp16, int8, torch-export"):
        ExportSpec(export_formats=["fp8"]).validated()
    with pytest.raises(ParameterError, match="control characters"):
        ExportSpec(license="a\x1b[2J").validated()


def test_card_names_license_use_speed_and_formats(run: Path) -> None:
    card = (run / "model/README.md").read_text()
    assert "License: apache-2.0" in card
    assert "Sorts toys. Not for &#124; people." in card
    assert "| int8 | `model.int8.onnx` |" in card
    assert "| images | `model.onnx` | PyTorch eager |" in card


def test_speed_is_of_several_batch_sizes(run: Path) -> None:
    speed = load_package(str(run / "model")).lineage["speed"]
    assert [one["batch"] for one in speed["batches"]] == [1, 8, 64]
    assert all(one["onnx"] > 0 and one["eager"] > 0 for one in speed["batches"])


def test_large_images_are_timed_in_smaller_batches() -> None:
    sizes: list[int] = []

    def answer(images: np.ndarray) -> np.ndarray:
        sizes.append(len(images))
        return np.zeros((len(images), 2), np.float32)

    found = speed_of({"onnx": answer}, np.zeros((1, 512, 512, 3), np.uint8))
    assert [one["batch"] for one in found["batches"]] == [1, 8]
    assert set(sizes) == {1, 8}


def test_the_test_pattern_has_the_answer_of_a_prediction(run: Path) -> None:
    package = load_package(str(run / "model"))
    answer = answer_from(json.loads(package.folder.read("reference.json")))
    pattern = pattern_of(package.signature.shape)
    assert pattern.shape == (1, 8, 8, 1)
    assert pattern.ravel()[:8].tolist() == [0, 37, 74, 111, 148, 185, 222, 8]
    logits = Session(package.folder.read("model.onnx"))(pattern)
    np.testing.assert_allclose(package.signature.probabilities(logits)[0], answer, atol=1e-5)


def test_answer_to_the_test_pattern_is_read_from_packages_of_before() -> None:
    before = {"images": 9, "shares": [1.0], "brightness": [2.0], "spread": [0.5], "pattern": [0.25, 0.75]}
    assert answer_from(before) == (0.25, 0.75)
    assert answer_from({"images": 9}) == ()
    for wrong in ([], {"pattern": "x"}, {"pattern": ["a"]}, {"pattern": [float("nan")]}):
        with pytest.raises(ValueError, match="no probabilities"):
            answer_from(wrong)
