"""Evaluate any model on any split of any dataset version: a package, or the checkpoint of a training.

A package answers with its ONNX model, its own temperature and thresholds: what it would answer when served.
A training has neither; both are fitted on the validation split of this dataset version. Images that the model
was trained on are scored like the others, and counted in a warning.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ddpipe.data.index import Hashes, are_in
from ddpipe.data.manifest import DatasetManifest, load_manifest, store_of
from ddpipe.data.reader import SplitReader, open_split
from ddpipe.errors import DatasetError, DdpipeError, Diverged, ParameterError
from ddpipe.evaluate.champion import BATCH, differences_to, session_of
from ddpipe.evaluate.evaluate import rough
from ddpipe.evaluate.measure import best_thresholds, fitted, measure
from ddpipe.evaluate.slices import publish_in_detail, sliced
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model.classifier import load_model, samples_seen
from ddpipe.model.evaluation import Evaluation, Subject
from ddpipe.model.package import FORMAT, ONNX, Signature, load_package, seen_by
from ddpipe.model.scoring import Answer, answers_to, logits_by, with_views
from ddpipe.model.tasks import TASKS, FloatArray, Thresholds
from ddpipe.model.training_record import training_record
from ddpipe.parameters import AUTO
from ddpipe.storage import open_store

VALIDATION = "validation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A model as it is evaluated.

    Attributes:
        answer: Pixels, shape (n, H, W, C) -> logits, shape (n, classes).
        signature: What it takes and gives; its temperature and thresholds count if `is_whole`.
        epoch: That it was trained for.
        seen: Hashes of what it was trained on; None if that is not known.
        is_whole: Whether it has a temperature and thresholds of its own.
        warnings: What is not known of it.
    """

    answer: Answer
    signature: Signature
    epoch: int
    seen: Hashes | None
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
    """Score a model on a split, and publish the evaluation.

    Args:
        model: URI of a package, or of the output of a training.
        manifest_uri: Any dataset version with the same classes and images of the same shape.
        output_uri: Folder for the evaluation; an older one in it is replaced.
        split: "train", "validation" or "test".
        spec: How to evaluate; views are a training's only, as a package has its own.
        network: The network of the user's own recipe: the one function that may be imported.
    """
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
    if not manifest.splits[split].count:
        raise DatasetError(
            what="the model cannot be evaluated on this dataset",
            which=manifest_uri,
            seen=f"its {split} split is empty",
            do="Name another split, or prepare the dataset again.",
        )
    data = (manifest, store_of(manifest_uri))
    samples = open_split(data, split, shape=judged.signature.shape)
    slicing = sliced(spec, samples.sample_ids) if spec.slice_columns else None
    started = time.monotonic()
    logits = _logits(judged, samples)
    seconds = time.monotonic() - started
    temperature, thresholds = (
        (judged.signature.temperature, judged.signature.thresholds)
        if judged.is_whole
        else _calibrated(judged, open_split(data, VALIDATION, shape=judged.signature.shape))
    )
    task = TASKS[manifest.task]
    metrics = measure(
        logits / np.float32(temperature),
        samples.labels,
        manifest.classes,
        task=manifest.task,
        thresholds=None if task.exclusive else thresholds,
        groups=samples.groups,
    )
    warnings = (
        *rough(len(samples), task.scores[0], split),
        *judged.warnings,
        *_fitted(split),
        *_overlap(judged, samples, split),
    )
    metrics = replace(metrics, temperature=temperature, warnings=warnings)
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
    return publish_in_detail(store, subject, metrics, logits, samples.labels, slicing, samples.groups)


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
        answer=session_of(package),
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


def _logits(judged: Judged, samples: SplitReader) -> npt.NDArray[np.float32]:
    logits = answers_to(samples, judged.answer, BATCH)
    if broken := int((~np.isfinite(logits)).any(axis=1).sum()):
        raise Diverged(
            what="a model cannot be evaluated",
            which=judged.signature.architecture,
            seen=f"it outputs NaN or infinity for {broken} of {len(logits)} samples",
            do="Train again with a smaller learning rate.",
        )
    return logits


def _calibrated(judged: Judged, samples: SplitReader) -> tuple[float, Thresholds]:
    """Temperature and thresholds of a training, from the validation split."""
    task, classes = TASKS[judged.signature.task], len(judged.signature.classes)
    if not len(samples):
        return 1.0, judged.signature.thresholds
    logits, truth = _logits(judged, samples), task.truth(samples.labels, classes)
    temperature = fitted(logits, truth, task)
    scaled: FloatArray = logits / np.float32(temperature)
    return temperature, () if task.exclusive else best_thresholds(task.probabilities(scaled), truth)


def _fitted(split: str) -> list[str]:
    """A warning where the images that judge a model have also adjusted it."""
    if split != VALIDATION:
        return []
    return ["temperature, and thresholds of labels, are fitted on validation images: scores are too good"]


def _overlap(judged: Judged, samples: SplitReader, split: str) -> list[str]:
    """A warning where the model knows the images that judge it."""
    if judged.seen is None:
        return ["the model does not say what it was trained on, so that an overlap cannot be found"]
    known = int(are_in(samples.sample_ids.column, judged.seen).sum())
    if not known:
        return []
    return [
        f"the model was trained on {known:,} of these {len(samples):,} {split} images: scores are too good"
    ]
