"""Datasets, trainings, evaluations and reports for tests, each whole but small."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from samples import a_manifest, a_split, published, sample_ids, some_images, written
from torch import nn

from ddpipe.data.index import open_index
from ddpipe.data.manifest import SPLITS, load_manifest
from ddpipe.evaluate.evaluate import evaluate
from ddpipe.evaluate.measure import best_thresholds, measure
from ddpipe.evaluate.mistakes import Mistake, wrong_answers
from ddpipe.evaluate.report import RunRecord, drawn
from ddpipe.export.export import export
from ddpipe.model.checkpoint import RECORD, Checkpoint, claim
from ddpipe.model.classifier import Classifier, build
from ddpipe.model.evaluation import Evaluation, Subject, publish
from ddpipe.model.package import ModelPackage
from ddpipe.model.tasks import TASKS, FloatArray, IntArray
from ddpipe.storage import Store, open_store

SHAPE = (8, 8, 1)


def a_dataset(store_uri: str, test: int = 37, shape: tuple[int, int, int] = SHAPE) -> str:
    """Noise of two classes, with `test` samples in two test shards; the manifest's URI."""
    images = some_images(test, shape, seed=1)
    splits = {
        "train": [some_images(6, shape)],
        "validation": [some_images(2, shape)],
        "test": [images[: test // 2], images[test // 2 :]] if test else [],
    }
    return published(open_store(store_uri), splits)


def a_multilabel_dataset(
    store_uri: str,
    test: int = 37,
    labels: Sequence[str] = ("bone", "lung", "tube"),
    shape: tuple[int, int, int] = SHAPE,
) -> str:
    """The same noise; sample i shows label k where bit k of i is set; the manifest's URI."""
    uri, store = a_dataset(store_uri, test, shape), open_store(store_uri)
    manifest = load_manifest(uri)
    splits = {
        name: a_split(
            split.count,
            len(labels),
            split.shards,
            ids=sample_ids(uri, name),
            labels=some_labels(split.count, len(labels)),
            store=store,
        )
        for name, split in manifest.splits.items()
    }
    multilabel = replace(manifest, task="multilabel", classes=tuple(labels), splits=splits)
    return written(store, multilabel)


def a_grouped_dataset(store_uri: str) -> str:
    """The same noise; every four test samples in turn are one patient's; the manifest's URI."""
    uri, store = a_dataset(store_uri), open_store(store_uri)
    manifest = load_manifest(uri)
    test, index = manifest.splits["test"], open_index(manifest, "test", store)
    grouped = a_split(
        test.count,
        shards=test.shards,
        ids=list(index.sample_ids),
        labels=index.labels,
        groups=[f"patient {number // 4}" for number in range(test.count)],
        store=store,
    )
    return written(store, replace(manifest, splits={**manifest.splits, "test": grouped}))


def some_labels(samples: int, labels: int) -> IntArray:
    """Labels 0 or 1, shape (samples, labels): label k of sample i is bit k of i."""
    return np.arange(samples)[:, None] >> np.arange(labels) & 1


def a_training(
    uri: str,
    manifest_uri: str,
    *,
    seed: int = 0,
    bias: float = 0.0,
    name: str = "digits-cnn",
    adjust: Callable[[Classifier], object] = nn.Module.eval,
    shape: tuple[int, int, int] | None = None,
    history: Sequence[dict[str, object]] = (),
) -> str:
    """A finished training of network `name`: fresh weights, `bias` added to the first, adjusted; its URI."""
    manifest, store = load_manifest(manifest_uri), open_store(uri)
    shape = shape or manifest.shape
    network = {"name": name, "shape": list(shape), "classes": len(manifest.classes)}
    torch.manual_seed(seed)
    classifier = Classifier(build(name, shape, len(manifest.classes)), manifest.mean, manifest.std)
    with torch.no_grad():
        next(classifier.parameters()).add_(bias)
        adjust(classifier)
    saved = claim(store, None).save(
        Checkpoint(
            step=12,
            epoch=3,
            recipe={"model": "digits-cnn", "seed": seed},
            dataset_id=manifest.dataset_id,
            network=network,
            world_size=1,
            states={"model": classifier.state_dict()},
            history=list(history),
        ),
    )
    store.write(RECORD, json.dumps({**a_training_record(), "checkpoint": asdict(saved)}).encode())
    return store.uri


def exported(folder: Path, dataset: str) -> ModelPackage:
    """The training in a folder, evaluated and exported next to it."""
    training, evaluation = str(folder / "training"), str(folder / "evaluation")
    evaluate(training, dataset, evaluation)
    return export(training, dataset, evaluation, str(folder / "model"))


def a_training_record(epochs: int = 3) -> dict[str, object]:
    """What training.json says."""
    history = [
        {
            "epoch": epoch,
            "step": 4 * epoch,
            "train_loss": 1 / epoch,
            "train_accuracy": 1 - 0.5 / epoch,
            "validation_loss": 1.1 / epoch,
            "validation_accuracy": 1 - 0.6 / epoch,
            "learning_rate": 0.1,
            "seconds": 1.5,
        }
        for epoch in range(1, epochs + 1)
    ]
    return {
        "model": "digits-cnn",
        "recipe": {"model": "digits-cnn", "batch_size": 2, "seed": 0},
        "world_size": 2,
        "device": "cpu",
        "torch": "2.0",
        "epochs": epochs,
        "steps": 4 * epochs,
        "seconds": 4.5,
        "images_per_second": 4.0,
        "resumed_from": None,
        "history": history,
    }


def some_logits(labels: IntArray, classes: int, *, skill: float = 2.0, seed: int = 0) -> FloatArray:
    """Noise that favors what is true the more, the greater the skill; shape (samples, classes)."""
    logits = np.random.default_rng(seed).normal(size=(len(labels), classes))
    if labels.ndim == 1:
        logits[np.arange(len(labels)), labels] += skill
    else:
        logits += skill * (labels - 0.5)
    return logits.astype(np.float32)


def a_subject(**changes: object) -> Subject:
    """What an evaluation says it evaluated, different from the usual in `changes`."""
    fields: dict[str, object] = {
        "training": "runs/a/training",
        "dataset": "store/datasets/toys/manifest.json",
        "dataset_id": "d" * 64,
        "split": "test",
        "model": "digits-cnn",
        "epoch": 3,
        "device": "cpu",
        "processes": 1,
        "seconds": 0.1,
    }
    return Subject(**(fields | changes))  # type: ignore[arg-type]


def an_evaluation(
    store: Store, labels: IntArray, logits: FloatArray, classes: Sequence[str] = ("ball", "kité")
) -> Evaluation:
    """An evaluation published to a store."""
    return publish(store, a_subject(), measure(logits, labels, classes), logits, labels)


def a_record(
    classes: Sequence[str] = ("ball", "kité"),
    *,
    task: str = "multiclass",
    skill: float = 1.0,
    absent: int = 0,
    samples: int = 60,
) -> RunRecord:
    """A run that was never exported; no test sample shows one of the last `absent` classes."""
    if task == "multiclass":
        labels = np.arange(samples) % (len(classes) - absent)
    else:
        labels = some_labels(samples, len(classes)) * (np.arange(len(classes)) < len(classes) - absent)
    logits = some_logits(labels, len(classes), skill=skill)
    kind = TASKS[task]
    thresholds = best_thresholds(kind.probabilities(logits), kind.truth(labels, len(classes)))
    metrics = measure(logits, labels, classes, task=task, thresholds=None if kind.exclusive else thresholds)
    split = a_split(samples, len(classes), labels=labels)
    with tempfile.TemporaryDirectory() as folder:
        evaluation = publish(open_store(folder), a_subject(), metrics, logits, labels)
        curves, found = drawn(evaluation), wrong_answers(evaluation)
    return RunRecord(
        run="first",
        manifest=a_manifest(classes=tuple(classes), task=task, splits=dict.fromkeys(SPLITS, split)),
        training=a_training_record(),
        evaluation=evaluation,
        curves=curves,
        mistakes=[
            Mistake(
                sample_id=f"{one.sample}.png",
                image=some_images(1, (4, 6, 1), seed=one.sample)[0],
                true=None if one.true is None else classes[one.true],
                said=None if one.said is None else classes[one.said],
                confidence=one.confidence,
                expected=one.expected,
            )
            for one in found[:24]
        ],
    )
