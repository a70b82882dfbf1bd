"""Evaluate any model on any split of any dataset version: a package, or the checkpoint of a training.

A package answers with its ONNX model, its own temperature and thresholds: what it would answer when served.
A training has neither; both are fitted on the validation split of this dataset version. Images that the model
was trained on are scored like the others, and counted in a warning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ddpipe.data.index import Hashes, are_in
from ddpipe.data.manifest import DatasetManifest, load_manifest, store_of
from ddpipe.data.reader import SplitReader, open_split
from ddpipe.errors import DdpipeError, ParameterError
from ddpipe.evaluate.champion import BATCH, differences_to
from ddpipe.evaluate.evaluate import VALIDATION, check_any, check_finite, measured, rough, score
from ddpipe.evaluate.measure import measure, unproven
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model.classifier import load_model, samples_seen
from ddpipe.model.evaluation import Evaluation, Subject, publish
from ddpipe.model.package import FORMAT, ONNX, Signature, load_package, seen_by
from ddpipe.model.scoring import Answer, logits_by, with_views
from ddpipe.model.session import session_of
from ddpipe.model.tasks import TASKS
from ddpipe.model.training_record import training_record
from ddpipe.parameters import AUTO
from ddpipe.storage import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A model as it is evaluated; temperature and thresholds of its signature count if it `is_whole`."""

    answer: Answer
    signature: Signature
    epoch: int
    seen: Hashes | None  # what it was trained on, if that is known
    is_whole: bool
    warnings: tuple[str, ...] = ()


def assess(
    model: str,
    manifest_uri: str,
    output_uri: str,
    split: str,
    spec: EvaluateSpec | None = None,
    network: str = "",
) -> Evaluation:
    """Score a package, or a training, on a split and publish it; the spec's views are a training's only."""
    spec = (spec or EvaluateSpec()).validated()
    store = open_store(output_uri)
    store.check_writable()
    manifest = load_manifest(manifest_uri)
    is_package = open_store(model).exists(FORMAT.seal)
    judged = _packaged(model) if is_package else _trained(model, manifest, spec, network)
    if problems := list(differences_to(judged.signature, manifest)):
        raise ParameterError(
            what="the model cannot be evaluated on this dataset",
            which=f"{model}, {manifest_uri}",
            seen="; ".join(problems),
            do="Name a dataset version with the same classes, and images of the same shape.",
        )
    check_any(manifest, split, manifest_uri)
    data, task = (manifest, store_of(manifest_uri)), TASKS[manifest.task]
    samples = open_split(data, split, shape=judged.signature.shape)
    started = time.monotonic()
    classes = len(judged.signature.classes)
    answers = {split: score(judged.answer, samples, classes, BATCH)}
    seconds = time.monotonic() - started
    if not judged.is_whole:
        validation = open_split(data, VALIDATION, shape=judged.signature.shape)
        answers[VALIDATION] = score(judged.answer, validation, classes, BATCH)
    check_finite(answers, model)
    seen = answers[split]
    if judged.is_whole:
        temperature = judged.signature.temperature
        metrics = measure(
            seen.logits / np.float32(temperature),
            seen.labels,
            manifest.classes,
            task=manifest.task,
            thresholds=None if task.exclusive else judged.signature.thresholds,
            groups=seen.groups,
        )
        metrics = replace(metrics, temperature=temperature)
    else:
        metrics = measured(answers, manifest, split)
    warnings = (
        *unproven(metrics),
        *rough(len(samples), task.scores[0], split),
        *judged.warnings,
        *_flattery(judged, samples, split),
    )
    metrics = replace(metrics, warnings=warnings)
    subject = Subject(
        training=model,
        dataset=manifest_uri,
        dataset_id=manifest.dataset_id,
        split=split,
        model=judged.signature.architecture,
        epoch=judged.epoch,
        device="cpu",
        processes=1,
        seconds=round(seconds, 3),
        views=judged.signature.views,
    )
    return publish(store, subject, metrics, seen.logits, seen.labels)


def _packaged(uri: str) -> Judged:
    package = load_package(uri)
    if ONNX not in package.folder.sha256:
        raise ParameterError(
            what="the model cannot be evaluated",
            which=uri,
            seen=f"it has no {ONNX}, as ONNX cannot express its network",
            do="Name the output of its training instead.",
        )
    training = package.lineage.get("training")
    epoch = training.get("epoch") if isinstance(training, dict) else 0
    return Judged(
        answer=session_of(package.folder, package.signature),
        signature=package.signature,
        epoch=epoch if isinstance(epoch, int) else 0,
        seen=seen_by(package.folder),
        is_whole=True,
    )


def _trained(uri: str, manifest: DatasetManifest, spec: EvaluateSpec, network: str) -> Judged:
    classifier, checkpoint = load_model(uri, network=network)
    views = "plain" if spec.test_time_views == AUTO else spec.test_time_views
    known, warnings = _trained_on(uri, checkpoint.dataset_id, manifest)
    count = checkpoint.network["classes"]
    # A checkpoint does not name its classes; with as many as the dataset, they are taken for the same.
    classes = known.classes if len(known.classes) == count else tuple(map(str, range(count)))
    return Judged(
        answer=logits_by(with_views(classifier, views).eval()),
        signature=Signature(
            architecture=checkpoint.network["name"],
            shape=tuple(checkpoint.network["shape"]),
            classes=classes,
            task=known.task,
            thresholds=() if TASKS[known.task].exclusive else (None,) * len(classes),
            views=views,
        ),
        epoch=checkpoint.epoch,
        seen=samples_seen(uri),
        is_whole=False,
        warnings=warnings,
    )


def _trained_on(
    uri: str, dataset_id: str, manifest: DatasetManifest
) -> tuple[DatasetManifest, tuple[str, ...]]:
    """The dataset version of a training, for classes and task; if it is gone, this one, with a warning."""
    if dataset_id == manifest.dataset_id:
        return manifest, ()
    place = training_record(uri).get("dataset")
    reason = "its record does not name it"
    if place:
        try:
            found = load_manifest(place)
        except DdpipeError as problem:
            reason = f"{place}: {problem.seen}"
        else:
            if found.dataset_id == dataset_id:
                return found, ()
            reason = f"{place} is another version"
    warning = (
        f"the dataset version of the training cannot be read ({reason}): its classes are taken for those of "
        "this dataset, in the same order"
    )
    return manifest, (warning,)


def _flattery(judged: Judged, samples: SplitReader, split: str) -> Iterator[str]:
    """Warnings where the images that judge a model have adjusted it, or it was trained on them."""
    if split == VALIDATION:
        yield "temperature, and thresholds of labels, are fitted on validation images: scores are too good"
    if judged.seen is None:
        yield "the model does not say what it was trained on, so that an overlap cannot be found"
    elif known := int(are_in(samples.sample_ids.column, judged.seen).sum()):
        images = f"{known:,} of these {len(samples):,} {split} images"
        yield f"the model was trained on {images}: scores are too good"
