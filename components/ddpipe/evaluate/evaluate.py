"""Score a model on a split, every sample exactly once: the step, and any package on any split.

A package answers with its ONNX model, its own temperature and thresholds: what it would answer when served.
Images that the model was trained on are scored like the others, and counted in a warning.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ddpipe.data.index import Hashes, are_in, counted, held_out_seen, samples_seen
from ddpipe.data.manifest import DatasetManifest, load_manifest, store_of
from ddpipe.data.reader import SplitReader, open_split
from ddpipe.errors import CheckpointError, DatasetError, Diverged, ParameterError
from ddpipe.evaluate.champion import BATCH, differences_to
from ddpipe.evaluate.measure import best_thresholds, fitted, measure, unproven
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model import VIEWS
from ddpipe.model.classifier import load_model
from ddpipe.model.evaluation import Evaluation, Metrics, Subject, publish
from ddpipe.model.metrics import METRICS, Answers
from ddpipe.model.package import ONNX, Signature, load_package, seen_by
from ddpipe.model.scoring import Answer, Averaged, Compared, answers_to, logits_by, with_views
from ddpipe.model.session import session_of
from ddpipe.model.tasks import TASKS
from ddpipe.model.training_record import training_record
from ddpipe.parameters import AUTO
from ddpipe.storage import Store, open_store

SPLIT = "test"

BATCH_SIZE = 64  # samples per forward pass: on a CPU, more are rarely faster; fewer where images are large
VALIDATION = "validation"  # where temperature and thresholds are chosen: the test split would flatter
CALIBRATED = ("log_loss", "calibration_error")  # the scores that a temperature changes
FEW = 100  # test images; with fewer, the 95 % interval of an accuracy is up to a fifth wide
WORSE_EPOCH = 0.05  # largest drop of the score from the best epoch to the evaluated one without a warning

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scored:
    """A split as a model sees it: logits, shape (samples, classes), labels, and groups of samples."""

    logits: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64] | None = None


# Each split as a model sees it; with views, also without them.
Answered = tuple[dict[str, Scored], dict[str, Scored] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A model that is to be scored, and how it answers."""

    uri: str
    signature: Signature
    epoch: int
    answer: Callable[[Mapping[str, SplitReader]], Answered]
    seen: Hashes | None  # what it was trained on, if that is known
    is_whole: bool = False  # its signature has temperature and thresholds
    device: str = "cpu"
    history: Sequence[Mapping[str, Any]] = ()  # of its training, an entry per epoch


def evaluate(
    training_uri: str,
    manifest_uri: str,
    output_uri: str,
    spec: EvaluateSpec | None = None,
    network: str = "",
) -> Evaluation:
    """Score the trained model on the test split of its own dataset version, and publish the result."""
    spec = (spec or EvaluateSpec()).validated()
    manifest, store = load_manifest(manifest_uri), open_store(output_uri)
    store.check_writable()
    classifier, checkpoint = load_model(training_uri, network=network)
    if checkpoint.dataset_id != manifest.dataset_id:
        raise CheckpointError(
            what="a model cannot be evaluated on this dataset",
            which=training_uri,
            seen=f"it was trained on version {checkpoint.dataset_id}, this is {manifest.dataset_id}",
            do="Name the dataset version of its training: another version's test samples may be "
            "among its training samples.",
        )
    seen = samples_seen(training_uri)
    if seen is not None and (known := held_out_seen(manifest, store_of(manifest_uri), seen)):
        raise CheckpointError(
            what="a model cannot be evaluated on this dataset",
            which=training_uri,
            seen=f"it was trained on {counted(known, manifest)}",
            do="Train from random weights, or from a model that has not seen these images.",
        )
    views, device = views_of(training_uri, spec), "cuda" if torch.cuda.is_available() else "cpu"

    def answer(splits: Mapping[str, SplitReader]) -> Answered:
        return score_views(classifier.to(device), views, splits, len(manifest.classes), device)

    model = Judged(
        uri=training_uri,
        signature=Signature(
            architecture=checkpoint.network["name"],
            shape=tuple(checkpoint.network["shape"]),
            classes=manifest.classes,
            task=manifest.task,
            views=views,
        ),
        epoch=checkpoint.epoch,
        answer=answer,
        seen=seen,
        device=device,
        history=checkpoint.history,
    )
    return judge(model, manifest, manifest_uri, SPLIT, store)


def assess(model: str, manifest_uri: str, output_uri: str, split: str) -> Evaluation:
    """Score a package on a split, and publish the evaluation."""
    store = open_store(output_uri)
    store.check_writable()
    manifest, package = load_manifest(manifest_uri), load_package(model)
    if ONNX not in package.folder.sha256:
        raise ParameterError(
            what="the model cannot be evaluated",
            which=model,
            seen=f"it has no {ONNX}, as ONNX cannot express its network",
            do="See the evaluation of its run, which PyTorch made.",
        )
    if problems := list(differences_to(package.signature, manifest)):
        raise ParameterError(
            what="the model cannot be evaluated on this dataset",
            which=f"{model}, {manifest_uri}",
            seen="; ".join(problems),
            do="Name a dataset version with the same classes, and images of the same shape.",
        )
    training = package.lineage.get("training")
    epoch = training.get("epoch") if isinstance(training, dict) else 0
    session, classes = session_of(package.folder, package.signature), len(package.signature.classes)

    def answer(splits: Mapping[str, SplitReader]) -> Answered:
        return {name: score(session, split, classes, BATCH) for name, split in splits.items()}, None

    judged = Judged(
        uri=model,
        signature=package.signature,
        epoch=epoch if isinstance(epoch, int) else 0,
        answer=answer,
        seen=seen_by(package.folder),
        is_whole=True,
    )
    return judge(judged, manifest, manifest_uri, split, store)


def judge(
    model: Judged, manifest: DatasetManifest, manifest_uri: str, split: str, store: Store
) -> Evaluation:
    """Score a model on a split and publish the result; what it lacks is fitted on the validation split."""
    if not manifest.splits[split].count:
        raise DatasetError(
            what="a model cannot be evaluated on this dataset",
            which=manifest_uri,
            seen=f"its {split} split is empty",
            do=f"Name another split, or prepare the dataset again with a larger {split} fraction.",
        )
    signature, task, data = model.signature, TASKS[manifest.task], (manifest, store_of(manifest_uri))
    needed = dict.fromkeys([split] if model.is_whole else [split, VALIDATION])
    splits = {name: open_split(data, name, shape=signature.shape) for name in needed}
    started = time.monotonic()
    answers, plain = model.answer(splits)
    seconds, seen = time.monotonic() - started, answers[split]
    _check_finite(answers, model.uri)
    metrics = measured(answers, manifest, split, signature if model.is_whole else None)
    images = manifest.splits[VALIDATION].count
    if plain:
        values = {name: score.value for name, score in measured(plain, manifest, split).scores.items()}
        both = {"plain": plain[VALIDATION], signature.views: answers[VALIDATION]} if images else {}
        on_validation = {
            name: task.headline(one.logits, task.truth(one.labels, len(manifest.classes)))
            for name, one in both.items()
        }
        metrics = replace(metrics, plain=values, validation=on_validation)
    warnings = (
        *unproven(metrics),
        *rough(metrics.samples, task.scores[0], split),
        *warnings_about(metrics.validation, model.history, task.scores[0], images),
        *_flattery(model, splits[split], split),
    )
    for text in warnings:
        _log.warning("%s", text)
    subject = Subject(
        training=model.uri,
        dataset=manifest_uri,
        dataset_id=manifest.dataset_id,
        split=split,
        model=signature.architecture,
        epoch=model.epoch,
        device=model.device,
        processes=1,
        seconds=round(seconds, 3),
        views=signature.views,
    )
    published = publish(store, subject, replace(metrics, warnings=warnings), seen.logits, seen.labels)
    _log.info("%s", published.summary())
    return published


def views_of(training_uri: str, spec: EvaluateSpec) -> str:
    """The test-time views of an evaluation; `auto` is what the training chose, plain if it chose none."""
    if spec.test_time_views != AUTO:
        return spec.test_time_views
    try:
        views = training_record(training_uri)["choice"]["chosen"]["test_time_views"]["value"]
    except (KeyError, TypeError):
        return "plain"
    return views if views in VIEWS else "plain"


def score_views(
    classifier: nn.Module, views: str, splits: Mapping[str, SplitReader], classes: int, device: str = "cpu"
) -> Answered:
    """Logits and labels of each split over views, and those of plain images, which are among the views."""
    model = with_views(classifier, views)
    both = Compared(model) if isinstance(model, Averaged) else None
    answer, width = logits_by(both or model, device), 2 * classes if both else classes
    cudnn = torch.backends.cudnn
    # Only TF32 changes: what flags() is not given is switched off, cuDNN itself and its determinism included.
    with cudnn.flags(
        enabled=cudnn.enabled,
        benchmark=cudnn.benchmark,
        deterministic=cudnn.deterministic,
        allow_tf32=False,
    ):
        found = {name: score(answer, split, width, BATCH_SIZE) for name, split in splits.items()}
    if not both:
        return found, None
    averaged, plain = (
        {
            name: replace(seen, logits=np.ascontiguousarray(seen.logits[:, first : first + classes]))
            for name, seen in found.items()
        }
        for first in (0, classes)
    )
    return averaged, plain


def score(answer: Answer, samples: SplitReader, classes: int, batch_size: int) -> Scored:
    """What a model answers to a split, which may be empty."""
    none = np.empty((0, classes), np.float32)
    logits = answers_to(samples, answer, batch_size) if len(samples) else none
    return Scored(logits, samples.labels, samples.groups)


def measured(
    answers: Mapping[str, Scored], manifest: DatasetManifest, split: str, whole: Signature | None = None
) -> Metrics:
    """The metrics of a split; temperature and thresholds are those of a whole model, or fitted here."""
    task, test = TASKS[manifest.task], answers[split]
    if whole:
        temperature, thresholds = whole.temperature, whole.thresholds
    else:
        seen = answers[VALIDATION]
        truth = task.truth(seen.labels, len(manifest.classes))
        temperature = fitted(seen.logits, truth, task, seen.groups)
        thresholds = best_thresholds(task.probabilities(seen.logits / np.float32(temperature)), truth)
    metrics = measure(
        test.logits / np.float32(temperature),
        test.labels,
        manifest.classes,
        task=manifest.task,
        thresholds=None if task.exclusive else thresholds,
        groups=test.groups,
    )
    if temperature == 1:
        return metrics
    before = Answers.of(task, test.logits, test.labels, [None] * len(manifest.classes))
    return replace(
        metrics,
        temperature=temperature,
        uncalibrated={name: METRICS[name].measured(before) for name in CALIBRATED},
        before=before.bins,
    )


def _check_finite(answers: Mapping[str, Scored], model: str) -> None:
    """Raise Diverged if the model answers with NaN or infinity."""
    for split, seen in answers.items():
        if broken := int((~np.isfinite(seen.logits)).any(axis=1).sum()):
            raise Diverged(
                what="a model cannot be evaluated",
                which=model,
                seen=f"it outputs NaN or infinity for {broken} of {len(seen.logits)} {split} samples",
                do="Train again with a smaller learning rate.",
            )


def rough(samples: int, metric: str, split: str = "test") -> Iterator[str]:
    """A warning that scores on so few images are a guess."""
    if samples < FEW:
        share = f", so each is worth {100 / samples:.1f} points of accuracy" if metric == "accuracy" else ""
        yield f"the scores are a rough guess: there are only {samples} {split} images{share}"


def warnings_about(
    views: Mapping[str, float], history: Sequence[Mapping[str, Any]], metric: str, images: int
) -> Iterator[str]:
    """Warnings about views and epoch, where more than chance among the validation images speaks for them."""
    chance = 1 / math.sqrt(max(1, images))  # half the 95 % interval of an accuracy, where it is widest
    for name, score in views.items():
        if views["plain"] - score > chance:
            yield (
                f"test_time_views {name} make the model worse: validation {metric} {score:.4f} instead of "
                f"{views['plain']:.4f}; evaluate with test_time_views plain"
            )
    key = f"validation_{metric}"
    scores = [(record[key], record.get("epoch")) for record in history if isinstance(record.get(key), float)]
    best = max(scores, key=lambda one: one[0], default=None)
    if best and best[0] - scores[-1][0] > max(WORSE_EPOCH, chance):
        yield (
            f"the evaluated epoch is much worse than the best: validation {metric} {scores[-1][0]:.4f} in "
            f"epoch {scores[-1][1]}, {best[0]:.4f} in epoch {best[1]}; train with model_selection best"
        )


def _flattery(model: Judged, samples: SplitReader, split: str) -> Iterator[str]:
    """Warnings where the images that judge a model have adjusted it, or it was trained on them."""
    if split == VALIDATION:
        yield "temperature, and thresholds of labels, are fitted on validation images: scores are too good"
    if model.seen is None:
        yield "the model does not say what it was trained on, so that an overlap cannot be found"
    elif known := int(are_in(samples.sample_ids.column, model.seen).sum()):
        images = f"{known:,} of these {len(samples):,} {split} images"
        yield f"the model was trained on {images}: scores are too good"
