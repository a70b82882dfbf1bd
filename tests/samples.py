"""Small raw data and small datasets for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from ddpipe.data.manifest import DatasetManifest, ShardRef, Split, manifest_key
from ddpipe.data.shards import Images, encode, shard_key
from ddpipe.storage import Store


def an_image(path: Path, size: tuple[int, int] = (6, 4), *, mode: str = "L", seed: int = 0) -> Path:
    """Write an image file of noise; `size` is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = len(Image.new(mode, (1, 1)).getbands())
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    Image.frombytes(mode, size, noise.tobytes()).save(path)
    return path


def a_folder(root: Path, counts: dict[str, int], *, start: int = 0) -> Path:
    """Write class folders of small grey images, each image different; `start` is the first one's number."""
    for number, name in enumerate(counts):
        for index in range(start, start + counts[name]):
            an_image(root / name / f"{index:04d}.png", seed=1000 * number + index)
    return root


def some_images(count: int, shape: tuple[int, int, int] = (4, 6, 1), seed: int = 0) -> Images:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def a_split(count: int, classes: int = 2, shards: tuple[ShardRef, ...] | None = None) -> Split:
    """A split of `count` samples; without `shards`, of one that nobody ever wrote."""
    return Split(
        shards=shards or (ShardRef("0" * 64, 1000, count),),
        sample_ids=tuple(f"{index % classes}/{index}.png" for index in range(count)),
        labels=tuple(index % classes for index in range(count)),
    )


def a_manifest(**changes: object) -> DatasetManifest:
    """A manifest, different from the usual one in `changes`."""
    fields: dict[str, object] = {
        "name": "toys",
        "task": "multiclass",
        "classes": ("ball", "kité"),
        "shape": (4, 6, 1),
        "dtype": "uint8",
        "splits": {"train": a_split(6), "validation": a_split(2), "test": a_split(2)},
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
        splits[name] = a_split(sum(map(len, parts)), shards=tuple(shard for shard, _ in encoded))
    manifest = a_manifest(splits=splits, shape=next(iter(images.values()))[0].shape[1:])
    store.write(manifest_key(manifest.name, manifest.dataset_id), manifest.to_json().encode())
    return f"{store.uri}/{manifest_key(manifest.name, manifest.dataset_id)}"


def a_picture(seed: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """Soft random shapes, as different from each other as photographs."""
    noise = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
