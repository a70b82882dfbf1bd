"""The step: score a trained model on a split, every sample exactly once, by any number of processes."""

from __future__ import annotations

import logging
import time

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ddpipe.data.manifest import DatasetManifest, load_manifest
from ddpipe.data.reader import SplitReader, open_split
from ddpipe.distributed import World, process_group
from ddpipe.errors import CheckpointError, DatasetError, Diverged
from ddpipe.evaluate.metrics import measure
from ddpipe.model.checkpoint import Checkpoint, load_model
from ddpipe.model.evaluation import Evaluation, Subject, load_evaluation, publish
from ddpipe.storage import open_store

SPLIT = "test"

_log = logging.getLogger(__name__)


def evaluate(training_uri: str, manifest_uri: str, output_uri: str, *, batch_size: int = 128) -> Evaluation:
    """Score the trained model on the test split and publish the result; every rank returns it.

    The processes of the group, one or many, share the batches; the result is the same bit for bit.

    Args:
        training_uri: Output of a finished training.
        manifest_uri: The dataset version that it was trained on.
        output_uri: Folder for the evaluation; an older one in it is replaced.
        batch_size: Samples per forward pass.

    Raises:
        CheckpointError: There is no finished training, or it used another dataset version.
        DatasetError: The dataset is damaged, or has no test samples.
        Diverged: The model gives no numbers.
        StoreError: Something can not be read or written.
    """
    with process_group() as world:
        manifest, store = load_manifest(manifest_uri), open_store(output_uri)
        if world.is_main:
            store.check_writable()
        classifier, checkpoint = load_model(training_uri)
        _check(checkpoint, manifest, training_uri, manifest_uri)
        samples = open_split(manifest_uri, SPLIT)
        started = time.monotonic()
        logits = predict(classifier, samples, world, len(manifest.classes), batch_size)
        if world.is_main:
            _check_finite(logits, training_uri)
            subject = Subject(
                training=training_uri,
                dataset=manifest_uri,
                dataset_id=manifest.dataset_id,
                split=SPLIT,
                model=checkpoint.network["name"],
                epoch=checkpoint.epoch,
                device=world.device.type,
                processes=world.size,
                seconds=round(time.monotonic() - started, 3),
            )
            metrics = measure(logits, samples.labels, manifest.classes)
            _log.info("%s", publish(store, subject, metrics, logits, samples.labels).summary())
        world.barrier()
    return load_evaluation(output_uri)


def predict(
    classifier: nn.Module, samples: SplitReader, world: World, classes: int, batch_size: int
) -> npt.NDArray[np.float32]:
    """Logits of all samples in their order, shape (samples, classes), on rank 0; elsewhere no rows.

    Ranks share whole batches, not samples: the same batches at any number of processes give the same bits.
    """
    starts = range(0, len(samples), batch_size)
    mine = [starts[number] for number in world.share(len(starts))]
    # The last batch may be smaller; what it leaves empty lies behind the last sample and is cut off.
    logits = np.empty((len(mine), batch_size, classes), np.float32)
    classifier.to(world.device)
    with torch.inference_mode(), torch.backends.cudnn.flags(allow_tf32=False):
        for start, rows in zip(mine, logits, strict=True):
            images = samples.images(range(start, min(start + batch_size, len(samples))))
            rows[: len(images)] = classifier(torch.from_numpy(images).to(world.device)).cpu().numpy()
    return world.gather(logits).reshape(-1, classes)[: len(samples)]


def _check(checkpoint: Checkpoint, manifest: DatasetManifest, training_uri: str, manifest_uri: str) -> None:
    if checkpoint.dataset_id != manifest.dataset_id:
        raise CheckpointError(
            what="a model can not be evaluated on this dataset",
            which=training_uri,
            seen=f"it was trained on version {checkpoint.dataset_id}, this is {manifest.dataset_id}",
            do="Name the dataset version of its training: another one's test samples may be in its training.",
        )
    if not manifest.splits[SPLIT].sample_ids:
        raise DatasetError(
            what="a model can not be evaluated on this dataset",
            which=manifest_uri,
            seen=f"its {SPLIT} split is empty",
            do=f"Prepare it again with a larger {SPLIT} fraction.",
        )


def _check_finite(logits: npt.NDArray[np.float32], training_uri: str) -> None:
    if broken := int((~np.isfinite(logits)).any(axis=1).sum()):
        raise Diverged(
            what="a model can not be evaluated",
            which=training_uri,
            seen=f"it gives no numbers for {broken} of {len(logits)} {SPLIT} samples",
            do="Train again with a smaller learning rate.",
        )
