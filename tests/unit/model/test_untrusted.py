"""Packages and evaluations of any content: read as written, or rejected with file and field."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation_runs import an_evaluation, some_logits
from model_packages import a_package, resealed
from samples import a_manifest

from ddpipe.errors import CorruptObject
from ddpipe.model.evaluation import load_evaluation
from ddpipe.model.package import load_package
from ddpipe.storage import open_store

LABELS = np.arange(12) % 2
Change = Callable[[dict[str, Any]], object]


def changed(folder: Path, seal: str, name: str, change: Change) -> None:
    values = json.loads((folder / name).read_text())
    change(values)
    if name == seal:
        (folder / seal).write_text(json.dumps(values))
    else:
        resealed(folder, seal, name, json.dumps(values).encode())


def package(folder: Path) -> Path:
    a_package(str(folder), a_manifest(shape=(8, 8, 1)))
    return folder


def evaluation(folder: Path) -> Path:
    an_evaluation(open_store(str(folder)), LABELS, some_logits(LABELS, 2))
    return folder


@pytest.mark.parametrize(
    ("name", "change", "seen"),
    [
        ("signature.json", lambda values: values.pop("classes"), "classes is missing"),
        ("signature.json", lambda values: values.update(classes=[1, 2]), r"classes\[0\] is 1, not str"),
        ("signature.json", lambda values: values.update(classes=["a", "a"]), "one class twice"),
        ("signature.json", lambda values: values.update(input=[]), "not a signature"),
        ("signature.json", lambda values: values["input"].update(shape=["batch", 8, 8.0, 1]), r"shape\[1\]"),
        (
            "signature.json",
            lambda values: values["input"].update(shape=["batch", 8, 1]),
            "shape has 2",
        ),
        ("signature.json", lambda values: values["input"].update(shape=["batch", -8, 8, 1]), "its shape is"),
        ("signature.json", lambda values: values.update(task="regression"), "is not a task"),
        ("signature.json", lambda values: values.update(thresholds=[0.5]), "1 thresholds"),
        ("signature.json", lambda values: values.update(views="all"), "'all' is not a name of views"),
        ("signature.json", lambda values: values.update(classes=["a", "b\x1b[2J\n"]), "control a terminal"),
        (
            "signature.json",
            lambda values: values.update(architecture="os.system"),
            "not the name of",
        ),
        ("metrics.json", lambda values: values.update(samples="many"), "samples is 'many', not int"),
        ("metrics.json", lambda values: values.update(samples=-1), "-1 samples"),
        ("metrics.json", lambda values: values.update(bonus=1), "bonus is not known"),
        ("metrics.json", lambda values: values["scores"].update(luck={"value": 1}), "luck is not the name"),
        ("metrics.json", lambda values: values.update(confusion_matrix=[[1]]), "confusion matrix"),
        ("metrics.json", lambda values: values["classes"][0].update(f1=True), r"classes\[0\].f1 is True"),
        ("package.json", lambda values: values["sha256"].update({"../outside": "0" * 64}), "not the key"),
        ("package.json", lambda values: values["sha256"].update({"/dev/zero": "0" * 64}), "not the key"),
        ("package.json", lambda values: values["sha256"].update({"a.txt": "0"}), "not a SHA-256"),
        ("package.json", lambda values: values["sha256"].update({"a\\b": "0" * 64}), "not the key"),
        ("package.json", lambda values: values["sha256"].update({"a\0b": "0" * 64}), "not the key"),
        (
            "package.json",
            lambda values: values["sha256"].pop("signature.json"),
            "does not name",
        ),
        ("package.json", lambda values: values.update(sha256=["model.onnx"]), "has no attribute"),
    ],
)
def test_malformed_package_is_rejected(tmp_path: Path, name: str, change: Change, seen: str) -> None:
    changed(package(tmp_path), "package.json", name, change)
    with pytest.raises(CorruptObject, match=seen) as caught:
        load_package(str(tmp_path))
    assert caught.value.which.endswith(name)


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b"{", b"\xff", b"[" * 100_000], ids=lambda data: repr(data[:9])
)
@pytest.mark.parametrize("name", ["signature.json", "metrics.json", "lineage.json"])
def test_file_that_is_no_object_is_rejected(tmp_path: Path, name: str, content: bytes) -> None:
    resealed(package(tmp_path), "package.json", name, content)
    with pytest.raises(CorruptObject, match="malformed"):
        load_package(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "change", "seen"),
    [
        ("evaluation.json", lambda values: values["facts"].pop("dataset"), "dataset is missing"),
        ("evaluation.json", lambda values: values["facts"].update(views="x"), "'x' is not a name of views"),
        ("evaluation.json", lambda values: values["facts"].update(seconds="NaN"), "seconds is 'NaN'"),
        ("evaluation.json", lambda values: values.update(facts=3), "'int' object is not a mapping"),
        ("metrics.json", lambda values: values["scores"]["accuracy"].update(value=float("nan")), "nan, not"),
    ],
)
def test_malformed_evaluation_is_rejected(tmp_path: Path, name: str, change: Change, seen: str) -> None:
    changed(evaluation(tmp_path), "evaluation.json", name, change)
    with pytest.raises(CorruptObject, match=seen):
        load_evaluation(str(tmp_path))


def archive(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"PK",
        archive(logits=np.zeros((12, 2), np.float32)),
        archive(logits=np.zeros((12, 3), np.float32), labels=LABELS),
        archive(logits=np.zeros((12, 2)), labels=LABELS),
        archive(logits=np.array([[object()] * 2] * 12), labels=LABELS),
        archive(logits=np.zeros((12, 2), np.float32), labels=LABELS)[:-40],
    ],
    ids=["no archive", "no labels", "shape", "float64", "objects", "cut"],
)
def test_malformed_predictions_are_rejected(tmp_path: Path, content: bytes) -> None:
    resealed(evaluation(tmp_path), "evaluation.json", "predictions.npz", content)
    with pytest.raises(CorruptObject, match=r"predictions\.npz"):
        load_evaluation(str(tmp_path)).predictions()


def test_predictions_that_claim_terabytes_are_rejected(tmp_path: Path) -> None:
    """The header of 100 bytes decides before anything is allocated."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 2)})
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archived:
        archived.writestr("logits.npy", file.getvalue())
    resealed(evaluation(tmp_path), "evaluation.json", "predictions.npz", content.getvalue())
    with pytest.raises(CorruptObject, match="1000000000000"):
        load_evaluation(str(tmp_path)).predictions()
