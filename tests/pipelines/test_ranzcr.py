"""From X-rays and a table, as Kaggle ships RANZCR CLiP, to a multilabel model package and its report."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from recipes import plain
from samples import sample_ids
from sklearn.metrics import roc_auc_score
from training_runs import trained
from xrays import LABELS, PATIENTS, xrays

from ddpipe import workflow
from ddpipe.data.manifest import DatasetManifest, load_manifest
from ddpipe.data.reader import open_split
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model.evaluation import load_evaluation
from ddpipe.model.training_record import training_record
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.runs import Run
from ddpipe.summary import summary

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Done:
    """A run that went through all steps."""

    run: Run
    patients: dict[str, str]
    uri: str
    manifest: DatasetManifest


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    here = tmp_path_factory.mktemp("ranzcr")
    patients = xrays(here / "xrays")
    run = Run.named(str(here / "runs"), "xrays")
    spec = PrepareSpec(
        source="csv",
        image_column="StudyInstanceUID",
        group_column="PatientID",
        source_path=str(here / "xrays"),
        store=str(here / "store"),
        validation_fraction=0.2,
        test_fraction=0.2,
    )
    prepared = workflow.prepare(run, spec)
    with run.step("train"):
        trained(prepared.manifest_uri, run.training, plain(epochs=3, batch_size=16), ranks=2)
    workflow.evaluate(run, prepared.manifest_uri, EvaluateSpec())
    workflow.export(run, prepared.manifest_uri)
    return Done(run, patients, prepared.manifest_uri, load_manifest(prepared.manifest_uri))


def test_no_patient_is_in_two_splits(done: Done) -> None:
    splits = {
        (done.patients[sample], name)
        for name in done.manifest.splits
        for sample in sample_ids(done.uri, name)
    }
    assert len(splits) == PATIENTS


def test_it_learns_to_see_the_labels(done: Done) -> None:
    metrics = load_evaluation(done.run.evaluation).metrics
    assert metrics.undefined == {}
    assert metrics.scores["macro_auc"].value > 0.9
    assert metrics.scores["macro_f1"].value > 0.7
    assert [scores.name for scores in metrics.classes] == list(LABELS)


def test_the_training_watches_what_the_evaluation_judges_by(done: Done) -> None:
    assert {"train_loss", "validation_loss", "validation_macro_auc"} <= set(
        training_record(done.run.training)["history"][-1]
    )


def test_the_package_answers_as_its_signature_says(done: Done) -> None:
    """By nothing but onnxruntime and signature.json."""
    model = Path(done.run.model)
    signature = json.loads((model / "signature.json").read_bytes())
    assert (signature["task"], signature["output"]["activation"]) == ("multilabel", "sigmoid")
    test = open_split(done.uri, "test")
    (logits,) = onnxruntime.InferenceSession(model / "model.onnx").run(
        ["logits"], {"images": test.images(range(len(test)))}
    )
    metrics = load_evaluation(done.run.evaluation).metrics
    assert roc_auc_score(test.labels, logits) == pytest.approx(metrics.scores["macro_auc"].value, abs=1e-3)
    found = 1 / (1 + np.exp(-logits / signature["temperature"])) >= np.array(signature["thresholds"])
    for label, scores in enumerate(metrics.classes):
        right = (found[:, label] & (test.labels[:, label] == 1)).sum()
        assert right / scores.support == pytest.approx(scores.recall, abs=0.02)


def test_the_report_and_the_summary_mention_reuse(done: Done) -> None:
    page = Path(done.run.report).read_text()
    assert "predicts which of 11 labels apply" in re.sub(r"\s+", " ", page)
    assert "macro AUC by epoch" in page
    for name in LABELS:
        assert f"<td>{name}</td>" in page
    assert re.search(r"macro_auc +[01]\.\d{4}", summary(done.run).text())
