"""`ddpipe.open`: a dataset version for a training loop of one's own.

data = ddpipe.open("photos")
loader = data.loader("train", batch_size=64)
for epoch in range(10):
    for images, labels in loader:
        ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ddpipe.data.manifest import DatasetManifest, Shape, load_manifest
from ddpipe.data.reader import open_split
from ddpipe.data.versions import address
from ddpipe.distributed import World, rank
from ddpipe.errors import ParameterError
from ddpipe.train.batches import epoch_batches, steps_per_epoch
from ddpipe.train.recipe import AUGMENTATIONS


def open(dataset: str, store: str = "store") -> Dataset:  # noqa: A001 - it is called ddpipe.open
    """Open a dataset version for a training loop of your own.

    Args:
        dataset: The URI of its manifest, its ID in the store or a unique prefix of it, or the name of a
            dataset, for its newest version.
        store: URI of the store, unless `dataset` is one of a manifest.
    """
    uri = address(dataset, store)
    return Dataset(uri, load_manifest(uri))


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset version.

    Attributes:
        uri: Of its manifest.
        manifest: What it has: the classes' names, the images' shape, and mean and std of their pixels.
    """

    uri: str
    manifest: DatasetManifest

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names, in the order of the labels."""
        return self.manifest.classes

    @property
    def shape(self) -> Shape:
        """Height, width and channels of every image."""
        return self.manifest.shape

    def loader(
        self, split: str = "train", *, batch_size: int = 32, seed: int = 0, augmentation: str = "none"
    ) -> Loader:
        """Batches of a split, read ahead: those that `ddpipe train` would take.

        Each rank gets its share of a batch. Ranks are found in torch's process group or, as torchrun sets
        them, in RANK and WORLD_SIZE.

        Args:
            split: "train", "validation" or "test".
            batch_size: Images of a batch, over all ranks; at least one for each.
            seed: Of the order, and of the augmentation.
            augmentation: How images are changed at random: a name that `ddpipe train --augmentation` takes.
        """
        return Loader(self, split, batch_size, seed, augmentation)


class Loader:
    """The batches of a split. Each iteration is an epoch: every image once, in an order of its own.

    Attributes:
        epoch: Number of the next one, from 0; set it to resume a training.
    """

    def __init__(self, data: Dataset, split: str, batch_size: int, seed: int, augmentation: str) -> None:
        """Open the split; its shards are verified."""
        is_grouped = dist.is_initialized()
        here = dist.get_rank() if is_grouped else rank()
        ranks = dist.get_world_size() if is_grouped else int(os.environ.get("WORLD_SIZE", "1"))
        if batch_size < ranks or augmentation not in AUGMENTATIONS:
            raise ParameterError(
                what="a dataset version cannot be read like this",
                which=data.uri,
                seen=f"batch_size is {batch_size} for {ranks} ranks, augmentation is {augmentation!r}",
                do=f"Give each rank an image at least, and choose one of {', '.join(AUGMENTATIONS)}.",
            )
        self.epoch = 0
        self._split = open_split(data.uri, split)
        self._world = World(here, ranks, torch.device("cpu"))
        self._batch_size, self._seed, self._augmentation = batch_size, seed, AUGMENTATIONS[augmentation]
        self._mean, self._std = (
            torch.tensor(values).view(-1, 1, 1) for values in (data.manifest.mean, data.manifest.std)
        )

    def __len__(self) -> int:
        """Batches in an epoch, the same on all ranks."""
        return steps_per_epoch(len(self._split), self._batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's images and labels of each batch of the next epoch.

        Images: float32, shape (n, channels, height, width), with the mean 0 and the deviation 1 over the
        training split, as ddpipe's networks get them. Labels: int64, shape (n,), numbers of classes; or of
        several labels float32, shape (n, classes), 0 or 1.
        """
        epoch, self.epoch = self.epoch, self.epoch + 1
        for batch in epoch_batches(
            self._split,
            self._world,
            seed=self._seed,
            epoch=epoch,
            batch_size=self._batch_size,
            augmentation=self._augmentation,
        ):
            yield (batch.images.permute(0, 3, 1, 2).float() / 255 - self._mean) / self._std, batch.labels
