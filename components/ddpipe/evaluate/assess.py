"""Evaluate any model package on any split of any dataset version.

A package answers with its ONNX model, its own temperature and thresholds: what it would answer when served.
Images that the model was trained on are scored like the others, and counted in a warning.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddpipe.data.manifest import load_manifest
from ddpipe.data.reader import SplitReader
from ddpipe.errors import ParameterError
from ddpipe.evaluate.champion import BATCH, differences_to
from ddpipe.evaluate.evaluate import Answered, Judged, judge, score
from ddpipe.model.evaluation import Evaluation
from ddpipe.model.package import ONNX, load_package, seen_by
from ddpipe.model.session import session_of
from ddpipe.storage import open_store


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
