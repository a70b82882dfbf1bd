"""Datasets, trainings, evaluations and reports for tests, each whole but small."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import torch
from samples import a_manifest, published, some_images

from ddpipe.data.manifest import load_manifest
from ddpipe.evaluate.metrics import FloatArray, IntArray, measure
from ddpipe.evaluate.report import Mistake, RunRecord
from ddpipe.model.architectures import Classifier, build
from ddpipe.model.checkpoint import Checkpoint, save
from ddpipe.model.evaluation import Evaluation, Subject, publish
from ddpipe.storage import Store, open_store
from ddpipe.storage.sealed import Folder

SHAPE = (8, 8, 1)


def a_dataset(store_uri: str, test: int = 37) -> str:
    """Noise of two classes, with `test` samples in two test shards; the manifest's URI."""
    images = some_images(test, SHAPE, seed=1)
    splits = {
        "train": [some_images(6, SHAPE)],
        "validation": [some_images(2, SHAPE)],
        "test": [images[: test // 2], images[test // 2 :]],
    }
    return published(open_store(store_uri), splits)


def a_training(uri: str, manifest_uri: str, *, seed: int = 0, bias: float = 0.0) -> str:
    """A finished training whose network has fresh weights, `bias` added to the first; its URI."""
    manifest, store = load_manifest(manifest_uri), open_store(uri)
    network = {"name": "digits-cnn", "shape": list(manifest.shape), "classes": len(manifest.classes)}
    torch.manual_seed(seed)
    classifier = Classifier(
        build("digits-cnn", manifest.shape, len(manifest.classes)), manifest.mean, manifest.std
    )
    with torch.no_grad():
        next(classifier.parameters()).add_(bias)
    save(
        store,
        Checkpoint(
            step=12,
            epoch=3,
            recipe={"model": "digits-cnn", "seed": seed},
            dataset_id=manifest.dataset_id,
            network=network,
            world_size=1,
            states={"model": classifier.state_dict()},
            history=[],
        ),
    )
    store.write("training.json", json.dumps(a_training_record()).encode())
    return store.uri


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
    """Noise that favours the true class the more, the greater the skill; shape (samples, classes)."""
    logits = np.random.default_rng(seed).normal(size=(len(labels), classes))
    logits[np.arange(len(labels)), labels] += skill
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


def a_record(classes: Sequence[str] = ("ball", "kité"), *, skill: float = 1.0, absent: int = 0) -> RunRecord:
    """A run that was never exported; the test split lacks the last `absent` classes."""
    labels = np.arange(60) % (len(classes) - absent)
    logits = some_logits(labels, len(classes), skill=skill)
    wrong = np.flatnonzero(logits.argmax(axis=1) != labels)
    return RunRecord(
        run="first",
        manifest=a_manifest(classes=tuple(classes)),
        training=a_training_record(),
        evaluation=Evaluation(
            subject=a_subject(),
            metrics=measure(logits, labels, classes),
            folder=Folder(open_store("nowhere"), {}, {}),
        ),
        mistakes=[
            Mistake(
                sample_id=f"{index}.png",
                image=some_images(1, (4, 6, 1), seed=index)[0],
                true=classes[labels[index]],
                predicted=classes[logits[index].argmax()],
                confidence=0.9,
                doubt=0.05,
            )
            for index in wrong[:24]
        ],
    )
