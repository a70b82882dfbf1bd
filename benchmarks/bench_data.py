"""Preparing, compared with a plain loop, on photographs made of the real images in $DDPIPE_IMAGES.

    DDPIPE_IMAGES=... [DDPIPE_MNIST=...] python benchmarks/bench_data.py [--count 2000] [--rounds 3]

$DDPIPE_MNIST names a folder with MNIST's test images, which are repeated up to the size of ImageNet. Writes
benchmarks/results/data.md. The programs take turns, each in its own process; rates are per second of CPU
time, summed over all threads, so that ratios hold on a busy machine.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from photographs import compared, photographs, table
from PIL import Image

from ddpipe.data.manifest import SPLITS
from ddpipe.data.reader import open_split
from ddpipe.data.versions import versions
from ddpipe.prepare.duplicates import perceptual_hash
from ddpipe.prepare.encoding import moments
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.sources.images import probe, scaled
from ddpipe.storage import open_store

RESULTS = Path(__file__).parent / "results" / "data.md"
SIDE = 256


SIZE = (SIDE * 4 // 3, SIDE)
"""Of a photograph that is prepared."""


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jpg"))


def plain(folder: Path, out: Path) -> None:
    """The loop that one writes."""
    for path in _files(folder):
        image = Image.open(path).convert("RGB")
        factor = SIDE / min(image.size)
        small = image.resize((round(image.width * factor), round(image.height * factor)))
        small.save(out / path.name, quality=90)


def torchvision(folder: Path, out: Path) -> None:
    """The transform that one uses."""
    from torchvision.transforms.v2 import Resize  # noqa: PLC0415

    resize = Resize(SIDE)
    for path in _files(folder):
        resize(Image.open(path).convert("RGB")).save(out / path.name, quality=90)


def decoding(folder: Path, _out: Path) -> None:
    """Full decoding and nothing else."""
    for path in _files(folder):
        Image.open(path).convert("RGB")


def scaled_decoding(folder: Path, _out: Path) -> None:
    """Scaled decoding and nothing else: the limit for any user of this decoder."""
    for path in _files(folder):
        image = Image.open(io.BytesIO(path.read_bytes()))
        factor = SIDE / min(image.size)
        image.draft(None, (round(image.width * factor), round(image.height * factor)))
        image.load()


def ddpipe(folder: Path, out: Path) -> None:
    """All of it: reading, hashing, scaling, encoding, statistics, shards, manifest."""
    prepare(
        PrepareSpec(
            source="folder", source_path=str(folder), dataset_name="photos", store=str(out), image_size=SIDE
        )
    )


def _decoded(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    image.draft(None, SIZE)
    image.load()
    return image


def _looked_at(content: bytes) -> bytes:
    hashlib.sha256(content).digest()
    probe(content)
    return content


def _encoded(image: Image.Image) -> Image.Image:
    image.save(io.BytesIO(), "JPEG", quality=90)
    return image


def _summed(image: Image.Image) -> Image.Image:
    moments(image)
    return image


PARTS: dict[str, Callable[[Any], Any]] = {
    "reading the file": Path.read_bytes,
    "its hash, size and orientation": _looked_at,
    "decoding, to half the size": _decoded,
    f"scaling to {SIDE} pixels": lambda image: scaled(image, SIZE),
    "encoding": _encoded,
    "statistics": _summed,
    "looks, to find duplicates": perceptual_hash,
}
"""What prepare does with a photograph; each part is given what the one before it returned."""


def parts(folder: Path, _out: Path) -> None:
    """Prepare's parts alone, in one thread; prints the CPU seconds of each."""
    spent = dict.fromkeys(PARTS, 0.0)
    for path in _files(folder):
        state: Any = path
        for name, part in PARTS.items():
            started = time.process_time()
            state = part(state)
            spent[name] += time.process_time() - started
    print(json.dumps(spent))  # noqa: T201


def ddpipe_idx(folder: Path, out: Path) -> None:
    """Idx files of digits."""
    prepare(PrepareSpec(source="mnist", source_path=str(folder), store=str(out)))


def opening(_folder: Path, out: Path) -> None:
    """What a rank of a training does before its first batch."""
    (version,) = versions(open_store(str(out)))
    for split in SPLITS:
        open_split(version.uri, split, out / "cache").images([0])


CONTENDERS: dict[str, Callable[[Path, Path], None]] = {
    "a plain PIL loop": plain,
    "torchvision's Resize": torchvision,
    "decoding alone, full size": decoding,
    "decoding alone, scaled": scaled_decoding,
    "ddpipe prepare": ddpipe,
}

OURS: dict[str, Callable[[Path, Path], None]] = {"prepare": ddpipe_idx, "open": opening, "parts": parts}


def measured(name: str, folder: Path, out: Path, cpus: int) -> tuple[float, float, int]:
    """CPU seconds, seconds and peak megabytes of one contender on so many CPUs."""
    busy, seconds, megabytes = _output(name, folder, out, cpus).split()
    return float(busy), float(seconds), int(megabytes)


def _output(name: str, folder: Path, out: Path, cpus: int) -> str:
    out.mkdir(parents=True, exist_ok=True)
    allowed = ",".join(map(str, sorted(os.sched_getaffinity(0))[:cpus]))
    command = ["taskset", "-c", allowed, sys.executable, __file__, "--one", name, str(folder), str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def one(name: str, folder: str, out: str) -> None:
    started, busy = time.perf_counter(), time.process_time()
    (CONTENDERS | OURS)[name](Path(folder), Path(out))
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    print(busy, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)  # noqa: T201


def speed(work: Path, folder: Path, rounds: int) -> str:
    """Images in a second of CPU time, each on one CPU: on several, threads wait for each other's memory."""
    count = len(_files(folder))
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name, found in rates.items():
            out = work / "out"
            found.append(count / measured(name, folder, out, 1)[0])
            shutil.rmtree(out)
    return table(
        f"Preparing {count:,} photographs of 768 by 576 for 256 pixels, on one CPU",
        ("what", "images per CPU second", "to the plain loop"),
        compared(rates, "a plain PIL loop"),
    )


def profile(work: Path, folder: Path, rounds: int) -> str:
    """The CPU time of prepare's parts, each timed alone, next to the whole and to full decoding; medians."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        out = work / "out"
        alone = json.loads(_output("parts", folder, out, 1).splitlines()[0])
        whole = measured("ddpipe prepare", folder, out, 1)[0]
        full = measured("decoding alone, full size", folder, out, 1)[0]
        shutil.rmtree(out)
        for name, spent in {**alone, "prepare as a whole": whole, "decoding alone, full size": full}.items():
            found.setdefault(name, []).append(spent / len(_files(folder)) * 1000)
    rows = [(name, f"{statistics.median(each):.2f}") for name, each in found.items()]
    return table("Where prepare's time goes", ("part, timed alone", "CPU ms for a photograph"), rows)


def incremental(work: Path, folder: Path) -> str:
    """What it costs to prepare again."""
    count, store, rows = len(_files(folder)), work / "store", []
    rows.append(("all are new", f"{measured('ddpipe prepare', folder, store, 2)[1]:.2f}"))
    rows.append(("none changed", f"{measured('ddpipe prepare', folder, store, 2)[1]:.2f}"))
    photographs(work / "more", count // 100)
    for number, path in enumerate(_files(work / "more")):
        shutil.copy(path, folder / "c0" / f"new{number}.jpg")
    rows.append((f"1 % new ({count // 100})", f"{measured('ddpipe prepare', folder, store, 2)[1]:.2f}"))
    for path in _files(folder):
        path.touch()
    rows.append(("all touched, same content", f"{measured('ddpipe prepare', folder, store, 2)[1]:.2f}"))
    many, store = work / "times100", work / "memory100"  # as `memory` left them
    name = f"none of {len(_files(many)):,} changed"
    rows.append((name, f"{measured('ddpipe prepare', many, store, 2)[1]:.2f}"))
    return table(f"Preparing {count:,} photographs again", ("what changed", "seconds"), rows)


def memory(work: Path, folder: Path) -> str:
    """Peak memory for more and more images (of the same content under other names)."""
    files, rows = _files(folder)[:300], []
    for factor in (1, 10, 30, 100):
        root = work / f"times{factor}"
        for copy in range(factor):
            for path in files:
                target = root / path.parent.name / f"{copy}-{path.name}"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.hardlink_to(path)
        *_, megabytes = measured("ddpipe prepare", root, work / f"memory{factor}", 2)
        rows.append((f"{len(files) * factor:,}", megabytes))
    return table("Peak memory of prepare", ("photographs", "MB"), rows)


def many(work: Path, mnist: Path, count: int) -> str:
    """As many images as ImageNet has, of 28 by 28 pixels."""
    folder, store = digits(work / "digits", mnist, count), work / "many"
    rows = [
        (what, *(f"{seconds:.1f}" for seconds in found[:2]), found[2])
        for what, name in (
            ("all are new", "prepare"),
            ("none changed", "prepare"),
            ("a rank opens all splits", "open"),
            ("the next rank does", "open"),
        )
        for found in [measured(name, folder, store, 2)]
    ]
    return table(f"Preparing {count:,} digits", ("what", "CPU seconds", "seconds", "peak MB"), rows)


def digits(folder: Path, mnist: Path, count: int) -> Path:
    """Idx files of `count` images; each copy of MNIST's has other values in its first row."""
    raw = gzip.decompress((mnist / "t10k-images-idx3-ubyte.gz").read_bytes())
    images = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 28, 28).copy()
    labels = gzip.decompress((mnist / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    folder.mkdir()
    with (folder / "train-images-idx3-ubyte").open("wb") as file:
        file.write(struct.pack(">4I", 0x803, count, 28, 28))
        for copy, start in enumerate(range(0, count, len(images))):
            images[:, 0, :2] = divmod(copy, 256)
            file.write(images[: count - start].tobytes())
    repeated = labels * (-(-count // len(labels)))
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + repeated[:count])
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--digits", type=int, default=1_280_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        folder = photographs(work / "photos", given.count)
        parts = [
            speed(work, folder, given.rounds),
            profile(work, folder, given.rounds),
            memory(work, folder),
            incremental(work, folder),
        ]
        if mnist := os.environ.get("DDPIPE_MNIST"):
            parts.append(many(work, Path(mnist), given.digits))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("# Preparing data\n\n" + "\n".join(parts))
    print(RESULTS.read_text())  # noqa: T201


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        main()
