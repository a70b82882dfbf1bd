"""What a GPU node needs of its CPU cores: images per core, and what compiling a network costs at the start.

    python benchmarks/bench_gpu_node.py [--count 256] [--models resnet18 resnet50]

Writes benchmarks/results/gpu-node.md. Photographs are parts of the two that scikit-learn brings. Costs are
seconds of processor time, of all threads and child processes: another program on the machine changes them
little. Networks are compiled for the CPU; how long that takes on a GPU, only `make bench-gpu` shows.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from on_gpu import STEPS, WARM_UP, Case, jpegs
from photographs import table
from sklearn.datasets import load_sample_images

from ddpipe.data.reader import SplitReader, open_split
from ddpipe.distributed import World
from ddpipe.model.classifier import Classifier, build
from ddpipe.train.batches import epoch_batches
from ddpipe.train.recipe import AUGMENTATIONS

RESULTS = Path(__file__).parent / "results" / "gpu-node.md"
SIDE, BATCH, ROUNDS = 224, 32, 3
CORES = 16
KINDS = ("none", "shift-flip", "photo")
GPUS = {
    "V100, fp32": 367,
    "A100, TF32": 938,
    "V100, mixed precision": 1200,
    "A100, mixed precision": 2470,
}
"""Images per second of one GPU that trains ResNet-50 at 224 pixels.

Source: NVIDIA, DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5/README.md.
"""


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def photographs(count: int) -> list[bytes]:
    """JPEGs of parts of real photographs."""
    generator, sources = np.random.default_rng(0), load_sample_images().images
    found = []
    for number in range(count):
        image = sources[number % len(sources)]
        top, left = (int(generator.integers(0, side - SIDE + 1)) for side in image.shape[:2])
        part = np.ascontiguousarray(image[top : top + SIDE, left : left + SIDE])
        found.append(simplejpeg.encode_jpeg(part, quality=90))
    return found


def rates(reader: SplitReader, kind: str) -> Iterator[float]:
    """Images per second of one core, as training reads and augments them."""
    world = World(0, 1, torch.device("cpu"))
    for epoch in range(ROUNDS + 1):
        began = cpu_seconds()
        batches = epoch_batches(
            reader, world, seed=0, epoch=epoch, batch_size=BATCH, augmentation=AUGMENTATIONS[kind]
        )
        images = sum(len(batch.images) for batch in batches)
        if epoch:  # the first one warms up
            yield images / (cpu_seconds() - began)


def feeding(count: int) -> str:
    """The table of what cores can feed."""
    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        case = Case("resnet50", SIDE, max(1, count // (WARM_UP + STEPS)))
        reader = open_split(jpegs(Path(folder), case, photographs(64)), "train")
        for kind in KINDS:
            rate = statistics.median(rates(reader, kind))
            fed = [f"{CORES * rate / need:.1f}" for need in GPUS.values()]
            rows.append((kind, f"{rate:,.0f}", f"{CORES * rate:,.0f}", *fed))
    columns = (
        "augmentation",
        "images/s per core",
        f"of {CORES} cores",
        *(f"{name}: GPUs fed" for name in GPUS),
    )
    return table("Feeding a GPU: JPEG shards of 224 pixels", columns, rows)


def compiling(models: list[str]) -> str:
    """The table of what compiling costs."""
    rows: list[tuple[object, ...]] = []
    for model in models:
        side = 32 if model.startswith("fast") else SIDE
        network = Classifier(build(model, (side, side, 3), 10), [0.5] * 3, [0.25] * 3)
        images = torch.zeros(4, side, side, 3, dtype=torch.uint8)
        plain = [_step(network, images) for _ in range(ROUNDS)]
        network.compile()
        first = _step(network, images)
        rows.append((f"{model}, {side} pixels", f"{statistics.median(plain):.1f}", f"{first:.0f}"))
    columns = ("network, batch of 4", "CPU seconds of a step", "CPU seconds of the first step, compiled")
    return table("What compiling costs at the start", columns, rows)


def _step(network: torch.nn.Module, images: torch.Tensor) -> float:
    began = cpu_seconds()
    network(images).square().sum().backward()
    return cpu_seconds() - began


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=256, help="images of an epoch")
    parser.add_argument("--models", nargs="*", default=["fast-cnn", "resnet18"])
    given = parser.parse_args()
    torch.set_num_threads(1)  # threads that wait for each other would count as work
    RESULTS.write_text(f"# A GPU node\n\n{feeding(given.count)}\n{compiling(given.models)}")


if __name__ == "__main__":
    main()
