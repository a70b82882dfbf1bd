"""The model package, and the seal that it shares with evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from evaluation_runs import an_evaluation, some_logits

from ddpipe.errors import CorruptObject, NoSuchObject, NotWritable, ParameterError
from ddpipe.evaluate.measure import measure
from ddpipe.model.evaluation import load_evaluation
from ddpipe.model.package import ModelPackage, Signature, load_package, publish
from ddpipe.storage import Store, open_store

LABELS = np.arange(12) % 2
LOGITS = some_logits(LABELS, 2)
METRICS = measure(LOGITS, LABELS, ("ball", "kité"))
FILES = ("README.md", "lineage.json", "metrics.json", "model.onnx", "model.safetensors", "signature.json")


def _publish(store: Store, onnx: bytes = b"onnx") -> ModelPackage:
    return publish(
        store,
        onnx=onnx,
        weights=b"weights",
        signature=Signature(architecture="digits-cnn", shape=(8, 8, 1), classes=("ball", "kité")),
        metrics=METRICS,
        lineage={"dataset": {"id": "d" * 64}},
        card="# Toys",
    )


def test_package_is_read_as_it_was_published(store_uri: str) -> None:
    published = _publish(open_store(store_uri))
    loaded = load_package(store_uri)
    assert (loaded.signature, loaded.metrics, loaded.lineage) == (
        published.signature,
        published.metrics,
        published.lineage,
    )
    assert sorted(loaded.folder.sha256) == sorted(FILES)
    assert loaded.model_id == published.model_id
    assert loaded.folder.read("model.onnx") == b"onnx"


def test_signature_is_enough_to_call_the_model(tmp_path: Path) -> None:
    _publish(open_store(str(tmp_path)))
    signature = json.loads((tmp_path / "signature.json").read_bytes())
    assert signature["input"] == {
        "name": "images",
        "dtype": "uint8",
        "layout": "NHWC",
        "shape": ["batch", 8, 8, 1],
    }
    assert signature["output"] == {
        "name": "logits",
        "dtype": "float32",
        "shape": ["batch", 2],
        "activation": "softmax",
    }
    assert (signature["task"], signature["classes"]) == ("multiclass", ["ball", "kité"])
    assert (signature["thresholds"], signature["views"]) == ([], "plain")


def test_multilabel_signature_survives_json() -> None:
    signature = Signature(
        architecture="digits-cnn",
        shape=(8, 8, 1),
        classes=("bone", "lung"),
        task="multilabel",
        thresholds=(0.25, None),
        views="flips",
    )
    assert Signature.from_dict(json.loads(json.dumps(signature.to_dict()))) == signature


@pytest.mark.parametrize("name", FILES)
def test_changed_file_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    _publish(open_store(str(tmp_path)))
    with (tmp_path / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(CorruptObject, match=name):
        load_package(str(tmp_path))


def test_without_its_seal_a_package_is_none(tmp_path: Path) -> None:
    _publish(open_store(str(tmp_path)))
    (tmp_path / "package.json").unlink()
    with pytest.raises(NoSuchObject, match=r"no finished model package.*`ddpipe export`"):
        load_package(str(tmp_path))


@pytest.mark.parametrize("seal", [b"{", b"[]", b"{}", b'"text"'])
def test_damaged_seal_is_refused(tmp_path: Path, seal: bytes) -> None:
    (tmp_path / "package.json").write_bytes(seal)
    with pytest.raises(CorruptObject, match=r"package\.json"):
        load_package(str(tmp_path))


def test_publication_cut_short_leaves_the_older_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    _publish(store)
    write = type(store).write

    def fill_up(self: Store, key: str, data: bytes) -> None:
        if key == "signature.json":
            raise NotWritable(what="can not write", which=key, seen="the disk is full", do="Make room.")
        write(self, key, data)

    monkeypatch.setattr(type(store), "write", fill_up)
    with pytest.raises(NotWritable):
        _publish(store, onnx=b"newer")
    assert load_package(str(tmp_path)).folder.read("model.onnx") != b"newer"


def test_evaluation_is_read_as_it_was_published(store_uri: str) -> None:
    published = an_evaluation(open_store(store_uri), LABELS, LOGITS)
    loaded = load_evaluation(store_uri)
    assert (loaded.subject, loaded.metrics) == (published.subject, published.metrics)
    logits, labels = loaded.predictions()
    assert (logits.dtype, labels.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(logits, LOGITS)
    np.testing.assert_array_equal(labels, LABELS)
    assert loaded.headline()["accuracy"] == METRICS.scores["accuracy"].value
    assert loaded.summary().startswith("12 test samples, accuracy 0.")


def test_changed_prediction_is_refused(tmp_path: Path) -> None:
    evaluation = an_evaluation(open_store(str(tmp_path)), LABELS, LOGITS)
    an_evaluation(open_store(str(tmp_path / "other")), LABELS, -LOGITS)
    (tmp_path / "other" / "predictions.npz").replace(tmp_path / "predictions.npz")
    with pytest.raises(CorruptObject, match=r"predictions\.npz"):
        evaluation.predictions()


def test_package_of_an_older_schema_is_to_be_made_again(tmp_path: Path) -> None:
    _publish(open_store(str(tmp_path)))
    seal = json.loads((tmp_path / "package.json").read_bytes())
    (tmp_path / "package.json").write_text(json.dumps(seal | {"schema": 2}))
    with pytest.raises(ParameterError, match=r"its schema is 2.*Create it again"):
        load_package(str(tmp_path))
