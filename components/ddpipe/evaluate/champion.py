"""The champion of a model, and its answers to the images that judge its rival.

The champion's package is verified against the promotion, then answers in one of two ways:

    stored     its own evaluation, if that was on the same dataset version and is what its package names
    computed   its ONNX model, with onnxruntime
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ddpipe.data.manifest import DatasetManifest
from ddpipe.data.reader import SplitReader
from ddpipe.data.shards import working_shape
from ddpipe.errors import CorruptObject, ModelError, NoSuchObject, ParameterError
from ddpipe.model.evaluation import FORMAT as EVALUATION
from ddpipe.model.evaluation import load_evaluation
from ddpipe.model.history import NamedModel, Promotion
from ddpipe.model.package import FORMAT, ONNX, ModelPackage, Signature, load_package
from ddpipe.model.scoring import answers_to
from ddpipe.model.session import session_of
from ddpipe.storage.sealed import sha256

BATCH = 64  # images that onnxruntime computes at once; fewer where they are large


class NotComparable(Exception):
    """The champion cannot answer the same images; the text is a clause that says why, and what to do."""


def champion_of(model: NamedModel, promotion: Promotion, manifest: DatasetManifest) -> ModelPackage:
    """The package of a promotion, if it answers the question of this dataset."""
    name = f"{model.name}@{promotion.version}"
    fix = f"roll back (`ddpipe models rollback {model.name}`) or promote another version"
    try:
        package = load_package(model.find(promotion.version).uri)
        seal = sha256(package.folder.store.read(FORMAT.seal))
    except (ModelError, NoSuchObject, CorruptObject, ParameterError) as error:
        raise NotComparable(f"the champion {name} cannot be read ({error.seen}): {fix}") from error
    if seal != promotion.package:
        raise NotComparable(f"the champion {name} is not the package that was promoted: {fix}")
    if problems := list(differences_to(package.signature, manifest)):
        raise NotComparable(
            f"the champion {name} is for another task ({'; '.join(problems)}): give the new model another "
            "name with gate, or export it without a gate and promote it with `ddpipe models promote`"
        )
    return package


def differences_to(signature: Signature, manifest: DatasetManifest) -> Iterator[str]:
    """What makes a model one of something else than a dataset version, in clauses."""
    if signature.task != manifest.task:
        yield f"it is {signature.task}, the dataset {manifest.task}"
    if signature.shape != working_shape(manifest.shape, min(signature.shape[:2])):
        yield f"its images are {signature.shape}, the dataset's {manifest.shape}"
    if signature.classes != manifest.classes:
        missing = [name for name in manifest.classes if name not in signature.classes]
        gone = [name for name in signature.classes if name not in manifest.classes]
        changes = {"new": missing, "gone": gone}
        parts = [f"{kind}: {', '.join(names[:5])}" for kind, names in changes.items() if names]
        yield f"other classes, {', '.join(parts) or 'in another order'}"


def logits_of_champion(
    package: ModelPackage, manifest: DatasetManifest, samples: SplitReader, split: str
) -> tuple[npt.NDArray[np.float32], str]:
    """The champion's logits, shape (samples, classes), over its temperature, and where they come from."""
    temperature = np.float32(package.signature.temperature)
    stored = _stored(package, manifest, split)
    if stored is not None and len(stored) == len(samples):
        return stored / temperature, "from its own evaluation"
    if ONNX not in package.folder.sha256:
        raise NotComparable(
            "the champion has no ONNX model, and its own evaluation was on another dataset version: promote "
            "another version by hand"
        )
    try:
        session = session_of(package.folder, package.signature)
    except CorruptObject as error:
        raise NotComparable(f"the ONNX model of the champion cannot run: {error.seen}") from error
    scaled = (answers_to(samples, session, BATCH) / temperature).astype(np.float32)
    return scaled, "computed again from its ONNX model"


def _stored(package: ModelPackage, manifest: DatasetManifest, split: str) -> npt.NDArray[np.float32] | None:
    """The logits of the evaluation that a package names, if that is still there and was on this data."""
    found = package.lineage.get("evaluation")
    named = found if isinstance(found, dict) else {}
    uri = named.get("uri")
    if not isinstance(uri, str):
        return None
    try:
        if dict(EVALUATION.open(uri).sha256) != named.get("sha256"):
            return None
        evaluation = load_evaluation(uri)
        same = (evaluation.subject.dataset_id, evaluation.subject.split) == (manifest.dataset_id, split)
        return evaluation.predictions()[0] if same else None
    except (NoSuchObject, CorruptObject, ParameterError):
        return None
