"""The step: turn an evaluated model into a package, and prove that both compute the same."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch
from markupsafe import Markup, escape
from safetensors.torch import save
from torch import nn

from ddpipe.data.index import samples_seen
from ddpipe.data.manifest import DatasetManifest, load_manifest, store_of
from ddpipe.data.reader import SplitReader, open_split
from ddpipe.errors import ExportError, ParameterError, listed
from ddpipe.export.agreement import check
from ddpipe.model import VIEWS, is_own_function
from ddpipe.model.checkpoint import Checkpoint
from ddpipe.model.classifier import load_model
from ddpipe.model.evaluation import Evaluation, load_evaluation
from ddpipe.model.metrics import TITLES
from ddpipe.model.onnx import OPSET, NotExportable, to_onnx
from ddpipe.model.package import ModelPackage, Signature, pattern_of, publish, surroundings
from ddpipe.model.preprocessing import Preprocessing
from ddpipe.model.scoring import logits_by, with_views
from ddpipe.model.session import Session
from ddpipe.model.tasks import TASKS
from ddpipe.model.training_record import how_far, training_record
from ddpipe.storage import open_store
from ddpipe.templates import environment

LIBRARIES = ("ddpipe", "torch", "onnx", "onnxruntime", "onnxscript", "safetensors", "numpy")

_log = logging.getLogger(__name__)


def export(
    training_uri: str,
    manifest_uri: str,
    evaluation_uri: str,
    output_uri: str,
    network: str = "",
) -> ModelPackage:
    """Export the evaluated model, check it on the whole test split, and publish the package."""
    store = open_store(output_uri)
    store.check_writable()
    manifest, evaluation = load_manifest(manifest_uri), load_evaluation(evaluation_uri)
    classifier, checkpoint = load_model(training_uri, network=network)
    _check_same_dataset(manifest, checkpoint, evaluation, manifest_uri)
    signature = Signature(
        architecture=checkpoint.network["name"],
        shape=checkpoint.network["shape"],
        classes=manifest.classes,
        task=manifest.task,
        thresholds=() if TASKS[manifest.task].exclusive else evaluation.metrics.thresholds,
        views=evaluation.subject.views,
        temperature=evaluation.metrics.temperature,
        preprocessing=Preprocessing.of_dataset(
            manifest.source.get("encoding", {}), manifest.shape, checkpoint.network["shape"]
        ),
    )
    evaluated = with_views(classifier, signature.views).eval()
    samples = open_split((manifest, store_of(manifest_uri)), evaluation.subject.split, shape=signature.shape)
    model, checks = _onnx(evaluated, signature, samples, evaluation)
    answers = logits_by(evaluated) if model is None else Session(model, torch.get_num_threads())
    lineage = {
        "dataset": {"id": manifest.dataset_id, "name": manifest.name, "uri": manifest_uri},
        "training": {
            "uri": training_uri,
            "recipe": checkpoint.recipe,
            "epoch": checkpoint.epoch,
            "step": checkpoint.step,
            "processes": checkpoint.world_size,
            "how_far": how_far(training_record(training_uri)),
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
        seen=samples_seen(training_uri),
        pattern=signature.probabilities(answers(pattern_of(signature.shape)))[0].tolist(),
    )


def _onnx(
    evaluated: nn.Module, signature: Signature, samples: SplitReader, evaluation: Evaluation
) -> tuple[bytes | None, dict[str, Any]]:
    """The ONNX model, and how it was checked; None, and the reason, if ONNX cannot express the network."""
    try:
        model = to_onnx(evaluated, signature)
    except NotExportable as problem:
        if not is_own_function(signature.architecture):
            raise ExportError(
                what="the model cannot be exported as ONNX",
                which=f"network {signature.architecture}",
                seen=str(problem),
                do="Report this network and the versions of torch and onnxscript; its checkpoint is intact.",
            ) from problem
        _log.warning(
            "%s cannot be exported as ONNX (%s): the package holds safetensors only",
            signature.architecture,
            problem,
        )
        return None, {"samples": 0, "not_exported": str(problem)}
    checks = check(Session(model, torch.get_num_threads()), evaluated, samples, evaluation)
    _log.info(
        "the ONNX model agrees with the evaluated one on all %d samples: logits within %.1g, probabilities "
        "within %.1g",
        *(checks[name] for name in ("samples", "largest_difference", "largest_probability_difference")),
    )
    return model, checks


def made_by(environment: Mapping[str, str]) -> dict[str, Any]:
    """The software that made a package, and the run, job and image as far as the environment names them."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}
    return {**surroundings(environment), "versions": versions}


def _check_same_dataset(
    manifest: DatasetManifest, checkpoint: Checkpoint, evaluation: Evaluation, manifest_uri: str
) -> None:
    ids = {"training": checkpoint.dataset_id, "evaluation": evaluation.subject.dataset_id}
    if problems := [
        f"the {name} used dataset version {dataset_id}"
        for name, dataset_id in ids.items()
        if dataset_id != manifest.dataset_id
    ]:
        raise ParameterError(
            what="training, evaluation and dataset do not belong together",
            which=manifest_uri,
            seen=listed(problems),
            do="Name the dataset version that was trained and evaluated on.",
        )


def _card(
    signature: Signature, manifest: DatasetManifest, evaluation: Evaluation, lineage: Mapping[str, Any]
) -> str:
    cards = environment("ddpipe.export")
    # Text stays within its cell of a Markdown table.
    cards.filters["cell"] = lambda text: escape(" ".join(text.split())).replace("|", Markup("&#124;"))
    return cards.get_template("card.md.j2").render(
        signature=signature,
        manifest=manifest,
        metrics=evaluation.metrics,
        views=VIEWS[signature.views],
        task=TASKS[signature.task],
        titles=TITLES,
        lineage=lineage,
        own=is_own_function(signature.architecture),
        how=signature.preprocessing,
        opset=OPSET,
    )
