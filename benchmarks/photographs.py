"""Pictures of photographic size for benchmarks, made of real small images: mosaics, enlarged."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

SIZE = (768, 576)
TILES = 4
"""Small images along each side of a mosaic."""


def real_images() -> list[Path]:
    """The JPEGs below the folder that $DDPIPE_IMAGES names; exits with a message if there is none."""
    folder = os.environ.get("DDPIPE_IMAGES")
    if not folder:
        sys.exit("set DDPIPE_IMAGES to a folder of small JPEGs, such as CIFAR-10 in class folders")
    return sorted(Path(folder).rglob("*.jpg"))


def photographs(root: Path, count: int) -> Path:
    """Write `count` pictures into ten class folders below `root`."""
    files = real_images()
    for number in range(count):
        mosaic = Image.new("RGB", (32 * TILES, 24 * TILES))
        for tile in range(TILES**2):
            with Image.open(files[(number * TILES**2 + tile) * 7 % len(files)]) as image:
                part = image.convert("RGB").resize((32, 32)).crop((0, 4, 32, 28))
            mosaic.paste(part, (tile % TILES * 32, tile // TILES * 24))
        path = root / f"c{number % 10}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        mosaic.resize(SIZE, Image.Resampling.BICUBIC).save(path, quality=92)
    return root


def compared(rates: Mapping[str, Sequence[float]], base: str) -> list[tuple[object, ...]]:
    """Rows of a table: each one's median rate, and the median of its ratios to `base` in the same round."""
    return [
        (
            name,
            f"{statistics.median(found):,.0f}",
            f"{statistics.median(one / other for one, other in zip(found, rates[base], strict=True)):.2f}",
        )
        for name, found in rates.items()
    ]


def table(title: str, header: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A markdown table with a heading."""
    lines = [header, ("---",) * len(header), *rows]
    return f"## {title}\n" + "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"
