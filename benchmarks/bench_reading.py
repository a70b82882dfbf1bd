"""Reading, compared with other loaders, and training on what is read, compared with training from memory.

    DDPIPE_IMAGES=... [DDPIPE_BENCH_PYTHON=...] python benchmarks/bench_reading.py [--count 1000]

Writes benchmarks/results/reading.md. $DDPIPE_BENCH_PYTHON is the Python of a separate environment with
torch, webdataset and litdata; without it, these two are skipped. All read the same photographs, squares of
256 pixels, in batches of 64 in random order, in one process; they take turns.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import nn

    from ddpipe.data.reader import SplitReader
    from ddpipe.train.batches import Batch

ROUNDS = 3
BATCH = 64
SIZE = 256


def crop(image):  # noqa: ANN001, ANN201 - also runs where ddpipe and its types are not
    left, top = (image.width - SIZE) // 2, (image.height - SIZE) // 2
    return np.asarray(image.convert("RGB").crop((left, top, left + SIZE, top + SIZE)))


def _loaded(dataset: object, **more: object) -> int:
    from torch.utils.data import DataLoader  # noqa: PLC0415

    return sum(len(images) for images, _ in DataLoader(dataset, batch_size=BATCH, **more))  # type: ignore[arg-type]


def image_folder(folder: Path) -> int:
    """The original files."""
    from torchvision.datasets import ImageFolder  # noqa: PLC0415
    from torchvision.transforms.v2 import Compose, Resize  # noqa: PLC0415

    return _loaded(ImageFolder(folder / "photos", Compose([Resize(256), crop])), shuffle=True)


def small_folder(folder: Path) -> int:
    """Files that were scaled before, as ours."""
    from torchvision.datasets import ImageFolder  # noqa: PLC0415

    return _loaded(ImageFolder(folder / "small", crop), shuffle=True)


def webdataset(folder: Path) -> int:
    """Its own pipeline over tars of the scaled files."""
    import webdataset as wds  # noqa: PLC0415

    pattern = str(folder / "tars" / "small-000000.tar")
    dataset = wds.WebDataset(pattern, shardshuffle=False).shuffle(1000).decode("pil").to_tuple("jpg", "cls")
    return _loaded(dataset.map_tuple(crop, int))


def litdata(folder: Path) -> int:
    """Its own format of the scaled files."""
    from litdata import StreamingDataset  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    class Pictures(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: object) -> object:
            data = super().__getitem__(index)
            return crop(Image.open(io.BytesIO(data["image"]))), data["label"]

    return _loaded(Pictures(str(folder / "litdata"), shuffle=True))


@cache
def _opened(folder: Path, kind: str) -> SplitReader:
    """Opened and verified once, as for a training of many epochs."""
    from ddpipe.data.reader import open_split  # noqa: PLC0415
    from ddpipe.data.versions import versions  # noqa: PLC0415
    from ddpipe.storage import open_store  # noqa: PLC0415

    (version,) = versions(open_store(str(folder / "store")), kind)
    return open_split(version.uri, "train")


def _ddpipe(folder: Path, kind: str) -> int:
    reader = _opened(folder, kind)
    order = np.random.default_rng(0).permutation(len(reader))
    return sum(len(reader.images(order[start : start + BATCH])) for start in range(0, len(order), BATCH))


def memory_map(folder: Path) -> int:
    """One array in one file, as FFCV's raw mode has it: pixels and nothing around them."""
    images = np.load(folder / "images.npy", mmap_mode="r")
    order = np.random.default_rng(0).permutation(len(images))
    return sum(len(images[order[start : start + BATCH]]) for start in range(0, len(order), BATCH))


CONTENDERS: dict[str, Callable[[Path], int]] = {
    "ImageFolder, original files": image_folder,
    "ImageFolder, scaled files": small_folder,
    "WebDataset": webdataset,
    "LitData": litdata,
    "a bare memory map, as FFCV's raw": memory_map,
    "ddpipe, jpeg shards": lambda folder: _ddpipe(folder, "jpeg"),
    "ddpipe, raw shards": lambda folder: _ddpipe(folder, "raw"),
}
ELSEWHERE = ("WebDataset", "LitData")


def write_rivals(folder: Path) -> None:
    """The scaled files in the formats of WebDataset and LitData."""
    import webdataset as wds  # noqa: PLC0415
    from litdata import optimize  # noqa: PLC0415

    files = sorted((folder / "small").rglob("*.jpg"))
    (folder / "tars").mkdir()
    with wds.TarWriter(str(folder / "tars" / "small-000000.tar")) as tar:
        for path in files:
            tar.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": int(path.parent.name[1:])})
    optimize(
        _litdata_sample,
        [str(path) for path in files],
        str(folder / "litdata"),
        chunk_bytes="64MB",
        num_workers=1,
    )


def _litdata_sample(path: str) -> dict[str, object]:
    return {"image": Path(path).read_bytes(), "label": int(Path(path).parent.name[1:])}


def write_ours(folder: Path, count: int) -> None:
    """The photographs, their scaled files and both kinds of dataset version."""
    from photographs import photographs  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    from ddpipe.data.reader import open_split  # noqa: PLC0415
    from ddpipe.data.shards import JpegShard, shard_key  # noqa: PLC0415
    from ddpipe.prepare.prepare import prepare  # noqa: PLC0415
    from ddpipe.prepare.spec import PrepareSpec  # noqa: PLC0415

    photographs(folder / "photos", count)
    resized = [np.asarray(Image.open(path).resize((SIZE, SIZE))) for path in folder.glob("photos/*/*.jpg")]
    np.save(folder / "images.npy", resized[: count * 8 // 10])
    for kind in ("jpeg", "raw"):
        spec = PrepareSpec(
            source="folder",
            source_path=str(folder / "photos"),
            dataset_name=kind,
            store=str(folder / "store"),
            image_format=kind,
            image_size=SIZE,
        )
        prepared = prepare(spec)
        if kind == "jpeg":
            train = prepared.manifest.splits["train"]
            names = iter(open_split(prepared.manifest_uri, "train").sample_ids)
            for shard in train.shards:
                opened = JpegShard(folder / "store" / shard_key(shard), shard, prepared.manifest.shape)
                for index, name in zip(range(len(opened)), names, strict=False):
                    path = folder / "small" / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(opened.file(index))


def measured(name: str, folder: Path) -> float:
    """Images per second of CPU time, without the start of the process."""
    python = os.environ.get("DDPIPE_BENCH_PYTHON", "") if name in ELSEWHERE else sys.executable
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, python, "-W", "ignore", __file__, "--one", name, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def reading(folder: Path) -> str:
    from photographs import compared, table  # noqa: PLC0415

    names = [name for name in CONTENDERS if name not in ELSEWHERE or "DDPIPE_BENCH_PYTHON" in os.environ]
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            rates[name].append(measured(name, folder))
    header = ("what", "images per CPU second", "to ddpipe's jpeg shards")
    return table("Reading photographs", header, compared(rates, "ddpipe, jpeg shards"))


def training(folder: Path) -> str:
    """Steps on batches that are read, and on one that lies in memory; they take turns."""
    from photographs import table  # noqa: PLC0415
    from torchvision.models import resnet18  # noqa: PLC0415

    from ddpipe.model.classifier import build  # noqa: PLC0415
    from ddpipe.prepare.prepare import prepare  # noqa: PLC0415
    from ddpipe.prepare.spec import PrepareSpec  # noqa: PLC0415

    store = str(folder / "store")
    spec = PrepareSpec(
        source="folder", source_path=os.environ["DDPIPE_IMAGES"], dataset_name="small", store=store
    )
    small = prepare(spec).manifest
    prepare(
        replace(
            spec,
            source_path=str(folder / "photos"),
            dataset_name="photos",
            image_format="jpeg",
            image_size=224,
        )
    )
    rows = [
        ("ResNet-18, 224 pixels, jpeg shards", *_steps(folder, "photos", resnet18(num_classes=10), 16, 4)),
        (
            "digits-cnn, 32 pixels, raw shards, shift-flip-cutout",
            *_steps(folder, "small", build("digits-cnn", small.shape, len(small.classes)), 256, 24),
        ),
    ]
    header = ("what", "images/s as read", "images/s from memory", "ratio")
    return table("Training on the CPU", header, [tuple(row) for row in rows])


def _steps(folder: Path, name: str, network: nn.Module, size: int, steps: int) -> tuple[str, str, str]:
    """Rates of training steps on batches as read and on one batch again and again, and their ratio."""
    import torch  # noqa: PLC0415

    from ddpipe.distributed import World  # noqa: PLC0415
    from ddpipe.train.batches import epoch_batches  # noqa: PLC0415
    from ddpipe.train.recipe import AUGMENTATIONS  # noqa: PLC0415

    how = AUGMENTATIONS["shift-flip-cutout" if name == "small" else "none"]
    reader, world = _opened(folder, name), World(0, 1, torch.device("cpu"))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def rate(batches: Iterator[Batch]) -> float:
        started = time.perf_counter()
        for batch in islice(batches, steps):
            images = batch.images.permute(0, 3, 1, 2).float() / 255
            torch.nn.functional.cross_entropy(network(images), batch.labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        return steps * size / (time.perf_counter() - started)

    def read(epoch: int) -> Iterator[Batch]:
        return epoch_batches(reader, world, seed=0, epoch=epoch, batch_size=size, augmentation=how)

    same = next(read(0))
    rate(repeat(same))
    pairs = [(rate(read(number)), rate(repeat(same))) for number in range(2 * ROUNDS)]
    ratio = statistics.median(real / still for real, still in pairs)
    real, still = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    return f"{real:,.0f}", f"{still:,.0f}", f"{ratio:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_ours(folder, given.count)
        if rival := os.environ.get("DDPIPE_BENCH_PYTHON"):
            subprocess.run([rival, __file__, "--rivals", str(folder)], check=True)
        parts = [reading(folder), training(folder)]
    results = Path(__file__).parent / "results" / "reading.md"
    results.parent.mkdir(exist_ok=True)
    results.write_text("# Reading data\n\n" + "\n".join(parts))
    print(results.read_text())  # noqa: T201


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--one", name, folder]:
            CONTENDERS[name](Path(folder))  # imports, and fills the page cache
            busy = time.process_time()
            count = CONTENDERS[name](Path(folder))
            print(count / (time.process_time() - busy))  # noqa: T201
        case ["--rivals", folder]:
            write_rivals(Path(folder))
        case _:
            main()
