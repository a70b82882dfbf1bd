"""Evaluate any model on any split of any dataset version: a package, or the checkpoint of a training.

A package answers with its ONNX model, its own temperature and thresholds: what it would answer when served.
A training has neither; both are fitted on the validation split of this dataset version. Images that the model
was trained on are scored like the others, and counted in a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ddpipe.data.manifest import DatasetManifest, load_manifest
from ddpipe.data.reader import SplitReader
from ddpipe.errors import DdpipeError, ParameterError
from ddpipe.evaluate.champion import BATCH, differences_to
from ddpipe.evaluate.evaluate import Answered, Judged, judge, score, trained
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.model.classifier import load_model
from ddpipe.model.evaluation import Evaluation
from ddpipe.model.package import FORMAT, ONNX, load_package, seen_by
from ddpipe.model.session import session_of
from ddpipe.model.training_record import training_record
from ddpipe.storage import open_store


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
    return judge(judged, manifest, manifest_uri, split, store)


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
    session, classes = session_of(package.folder, package.signature), len(package.signature.classes)

    def answer(splits: Mapping[str, SplitReader]) -> Answered:
        return {name: score(session, split, classes, BATCH) for name, split in splits.items()}, None

    return Judged(
        uri=uri,
        signature=package.signature,
        epoch=epoch if isinstance(epoch, int) else 0,
        answer=answer,
        seen=seen_by(package.folder),
        is_whole=True,
    )


def _trained(uri: str, manifest: DatasetManifest, spec: EvaluateSpec, network: str) -> Judged:
    classifier, checkpoint = load_model(uri, network=network)
    known, warnings = _trained_on(uri, checkpoint.dataset_id, manifest)
    count = checkpoint.network["classes"]
    # A checkpoint does not name its classes; with as many as the dataset, they are taken for the same.
    classes = known.classes if len(known.classes) == count else tuple(map(str, range(count)))
    return replace(trained(uri, classifier, checkpoint, classes, known.task, spec), warnings=warnings)


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
