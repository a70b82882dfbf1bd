"""Small raw data and small datasets for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image
from stored import encode

from ddpipe.data.columns import text
from ddpipe.data.index import described, open_index
from ddpipe.data.manifest import (
    SPLITS,
    DatasetManifest,
    ShardRef,
    Split,
    load_manifest,
    manifest_key,
    store_of,
)
from ddpipe.data.shards import Images, shard_key
from ddpipe.storage import Store


def an_image(path: Path, size: tuple[int, int] = (6, 4), *, mode: str = "L", seed: int = 0) -> Path:
    """Write an image file of noise; `size` is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = len(Image.new(mode, (1, 1)).getbands())
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    Image.frombytes(mode, size, noise.tobytes()).save(path)
    return path


def a_folder(root: Path, counts: dict[str, int], *, start: int = 0) -> Path:
    """Write class folders of small gray images, each image different; `start` is the first one's number."""
    for number, name in enumerate(counts):
        for index in range(start, start + counts[name]):
            an_image(root / name / f"{index:04d}.png", seed=1000 * number + index)
    return root


def some_images(count: int, shape: tuple[int, int, int] = (4, 6, 1), seed: int = 0) -> Images:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def a_split(
    count: int,
    classes: int = 2,
    shards: Sequence[ShardRef] = (),
    *,
    ids: Sequence[str] = (),
    labels: ArrayLike = (),
    groups: Sequence[str] = (),
    store: Store | None = None,
) -> Split:
    """A split of `count` samples, with the columns stored if there is a store.

    Without `shards`, of one that nobody ever wrote; without `ids` and `labels`, of numbered ones in turn.
    """
    split, objects = described(
        shards or ((ShardRef("0" * 64, 1000, count),) if count else ()),
        text(ids or [f"{index % classes}/{index}.png" for index in range(count)]),
        np.asarray(labels if np.size(labels) else np.arange(count) % classes),
        classes,
        text(groups) if groups else None,
    )
    for key, data in objects.items() if store else ():
        store.write(key, data)
    return split


def a_manifest(**changes: object) -> DatasetManifest:
    """A manifest, different from the usual one in `changes`."""
    classes = changes.get("classes", ("ball", "kité"))
    assert isinstance(classes, tuple)
    fields: dict[str, object] = {
        "name": "toys",
        "task": "multiclass",
        "classes": classes,
        "shape": (4, 6, 1),
        "dtype": "uint8",
        "splits": {
            name: a_split(count, len(classes))
            for name, count in (("train", 6), ("validation", 2), ("test", 2))
        },
        "mean": (0.5,),
        "std": (0.25,),
        "split_rule": {"kind": "hash of id"},
        "seed": 0,
        "source": {"kind": "folder", "fingerprint": "f" * 64},
    }
    return DatasetManifest(**(fields | changes))  # type: ignore[arg-type]


def published(store: Store, images: dict[str, list[Images]]) -> str:
    """A dataset version in a store, each split from its list of shards; the manifest's URI."""
    splits = {}
    for name, parts in images.items():
        encoded = [encode(part) for part in parts]
        for shard, data in encoded:
            store.write(shard_key(shard), data)
        splits[name] = a_split(sum(map(len, parts)), shards=[shard for shard, _ in encoded], store=store)
    shape = next(iter(images.values()))[0].shape[1:]
    statistics = {"mean": (0.5,) * shape[2], "std": (0.25,) * shape[2]}
    return written(store, a_manifest(splits=splits, shape=shape, **statistics))


def written(store: Store, manifest: DatasetManifest) -> str:
    """Publish a manifest; its URI."""
    key = manifest_key(manifest.name, manifest.dataset_id)
    store.write(key, manifest.to_json().encode())
    return f"{store.uri}/{key}"


def sample_ids(manifest_uri: str, split: str) -> list[str]:
    """The ids of a split's samples."""
    return list(open_index(load_manifest(manifest_uri), split, store_of(manifest_uri)).sample_ids)


def labels_by_id(manifest_uri: str) -> dict[str, object]:
    """The label of every sample of a version."""
    manifest, store = load_manifest(manifest_uri), store_of(manifest_uri)
    indices = [open_index(manifest, split, store) for split in SPLITS]
    return {
        name: tuple(label) if isinstance(label, list) else label
        for index in indices
        for name, label in zip(index.sample_ids, index.labels.tolist(), strict=True)
    }


def a_picture(seed: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """Soft random shapes, as different from each other as photographs."""
    noise = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
