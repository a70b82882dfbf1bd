"""The step: turn an evaluated model into a package, and prove that it answers as the evaluated one."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from markupsafe import Markup, escape
from safetensors.torch import save
from torch import nn

from ddpipe.data.manifest import DatasetManifest, load_manifest, store_of
from ddpipe.data.reader import SplitReader, open_split
from ddpipe.errors import ExportError, ParameterError, listed
from ddpipe.export.onnx import Session, to_onnx
from ddpipe.export.rounding import tolerance
from ddpipe.model import VIEWS
from ddpipe.model.checkpoint import Checkpoint
from ddpipe.model.evaluation import TITLES, Evaluation, Metrics, load_evaluation
from ddpipe.model.lineage import surroundings
from ddpipe.model.package import ModelPackage, Signature, publish
from ddpipe.model.tasks import TASKS
from ddpipe.model.trained import load_model
from ddpipe.model.views import with_views
from ddpipe.storage import open_store
from ddpipe.templates import environment

BATCH_SIZES = (1, 2, 7, 64)

LIBRARIES = ("ddpipe", "torch", "onnx", "onnxruntime", "onnxscript", "safetensors", "numpy")

_log = logging.getLogger(__name__)


def export(
    training_uri: str, manifest_uri: str, evaluation_uri: str, output_uri: str, network: str = ""
) -> ModelPackage:
    """Export the evaluated model, check it on the whole test split, and publish the package.

    Args:
        training_uri: Output of a finished training.
        manifest_uri: The dataset version that it was trained and evaluated on.
        evaluation_uri: Its evaluation.
        output_uri: Folder for the package; an older one in it is replaced.
        network: The network of the user's own recipe: the one function that may be imported.

    Raises:
        ParameterError: Training, evaluation and dataset do not belong together.
        ExportError: The exported model answers unlike the trained or the evaluated one; nothing is published.
        CheckpointError: There is no finished training.
        DatasetError: The dataset is damaged.
        StoreError: Something cannot be read or written.
    """
    store = open_store(output_uri)
    store.check_writable()
    manifest, evaluation = load_manifest(manifest_uri), load_evaluation(evaluation_uri)
    classifier, checkpoint = load_model(training_uri, network=network)
    _check_kinship(manifest, checkpoint, evaluation, manifest_uri)
    signature = Signature(
        architecture=checkpoint.network["name"],
        shape=manifest.shape,
        classes=manifest.classes,
        task=manifest.task,
        thresholds=() if TASKS[manifest.task].exclusive else evaluation.metrics.thresholds,
        views=evaluation.subject.views,
    )
    evaluated = with_views(classifier, signature.views).eval()
    model = to_onnx(evaluated, signature)
    samples = open_split((manifest, store_of(manifest_uri)), evaluation.subject.split)
    checks = check(Session(model), evaluated, samples, evaluation)
    _log.info("the ONNX model answers as the evaluated one on all %d samples", checks["samples"])
    lineage = {
        "dataset": {"id": manifest.dataset_id, "name": manifest.name, "uri": manifest_uri},
        "training": {
            "uri": training_uri,
            "recipe": checkpoint.recipe,
            "epoch": checkpoint.epoch,
            "step": checkpoint.step,
            "processes": checkpoint.world_size,
        },
        "evaluation": {
            "uri": evaluation_uri,
            "sha256": dict(evaluation.folder.sha256),
            "views": evaluation.subject.views,
        },
        "checks": checks,
        "made_by": {**checkpoint.lineage, **made_by(os.environ)},
        "exported": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return publish(
        store,
        onnx=model,
        weights=save(classifier.state_dict()),
        signature=signature,
        metrics=evaluation.metrics,
        lineage=lineage,
        card=_card(signature, manifest, evaluation, lineage),
    )


def check(session: Session, model: nn.Module, samples: SplitReader, evaluation: Evaluation) -> dict[str, Any]:
    """Prove that an ONNX model answers as the trained and as the evaluated one.

    In batches of several sizes its logits are compared with PyTorch's; over the whole split with those that
    were evaluated, on whatever device that was.

    Args:
        session: The ONNX model.
        model: What was evaluated, in evaluation mode, on the CPU.
        samples: The split that was evaluated.
        evaluation: Of the trained model.

    Returns:
        What was seen: `samples`, `batch_sizes`, `largest_difference` and `tolerance` in logits, and
        `same_decisions`: of how many samples the ONNX model says just what the evaluation did.

    Raises:
        ExportError: It does not.
    """
    logits, _ = evaluation.predictions()
    answers = _answers(session, samples, max(BATCH_SIZES))
    differences = {"the evaluated logits": _difference(answers, logits)}
    for size in BATCH_SIZES:
        images = samples.images(range(min(size, len(samples))))
        with torch.inference_mode():
            trained = model(torch.from_numpy(images)).numpy()
        differences[f"PyTorch's logits of {len(images)} images"] = _difference(session(images), trained)
    allowed = tolerance(model, torch.from_numpy(images), float(np.abs(logits).max()))
    if problems := [
        f"{difference:.2g} away from {other} (at most {allowed:.2g})"
        for other, difference in differences.items()
        if not difference <= allowed
    ]:
        raise ExportError(
            what="the exported model answers differently from the trained one",
            which=evaluation.subject.training,
            seen=listed(problems),
            do="Evaluate again, then export; failing that, torch.onnx cannot export this network faithfully.",
        )
    return {
        "samples": len(logits),
        "batch_sizes": list(BATCH_SIZES),
        "largest_difference": max(differences.values()),
        "tolerance": allowed,
        "same_decisions": _same_decisions(answers, logits, evaluation.metrics),
    }


def _same_decisions(
    answers: npt.NDArray[np.float32], evaluated: npt.NDArray[np.float32], metrics: Metrics
) -> int:
    """Of how many samples both say the same; only near a tie may rounding decide."""
    task = TASKS[metrics.task]
    said, expected = (
        task.decisions(task.probabilities(logits), metrics.thresholds) for logits in (answers, evaluated)
    )
    return int((said == expected).all(axis=1).sum())


def made_by(environment: Mapping[str, str]) -> dict[str, Any]:
    """The software that made a package, and the run, job and image as far as they are told."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}
    return {**surroundings(environment), "versions": versions}


def _answers(session: Session, samples: SplitReader, batch_size: int) -> npt.NDArray[np.float32]:
    indices = np.arange(len(samples))
    batches = np.split(indices, indices[batch_size::batch_size])
    return np.concatenate([session(samples.images(batch)) for batch in batches])


def _difference(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    return float(np.abs(found - expected).max())


def _check_kinship(
    manifest: DatasetManifest, checkpoint: Checkpoint, evaluation: Evaluation, manifest_uri: str
) -> None:
    ids = {"training": checkpoint.dataset_id, "evaluation": evaluation.subject.dataset_id}
    strangers = [
        f"the {name} used dataset version {dataset_id}"
        for name, dataset_id in ids.items()
        if dataset_id != manifest.dataset_id
    ]
    if strangers:
        raise ParameterError(
            what="training, evaluation and dataset do not belong together",
            which=manifest_uri,
            seen=listed(strangers),
            do="Name the dataset version that was trained and evaluated on.",
        )


def _card(
    signature: Signature, manifest: DatasetManifest, evaluation: Evaluation, lineage: Mapping[str, Any]
) -> str:
    cards = environment("ddpipe.export")
    cards.filters["cell"] = _cell
    return cards.get_template("card.md.j2").render(
        signature=signature,
        manifest=manifest,
        metrics=evaluation.metrics,
        views=VIEWS[signature.views],
        task=TASKS[signature.task],
        titles=TITLES,
        lineage=lineage,
    )


def _cell(text: str) -> Markup:
    """Text that stays within its cell of a Markdown table."""
    return escape(" ".join(text.split())).replace("|", "&#124;")
