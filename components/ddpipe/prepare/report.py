"""What a dataset version holds, as one HTML file: a table of its classes and a sheet of its images."""

from __future__ import annotations

import base64
import io
from collections import Counter
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from ddpipe.data.manifest import SPLITS, DatasetManifest
from ddpipe.data.reader import SplitReader, open_split
from ddpipe.data.shards import Images
from ddpipe.storage import Store

PER_CLASS = 12
"""Images in a class's row of the contact sheet."""

TILE = 48
"""Smallest side of an image on the sheet, in pixels; smaller ones are enlarged."""

GAP = 2


def data_report_html(manifest: DatasetManifest, store: Store, cache: Path | None = None) -> str:
    """A self-contained page about a dataset version.

    Args:
        manifest: The version.
        store: The store of its shards.
        cache: See `ddpipe.data.reader.open_split`.
    """
    pages = Environment(
        loader=PackageLoader("ddpipe.prepare", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    counts = {split: Counter(manifest.splits[split].labels) for split in SPLITS}
    train = open_split((manifest, store), "train", cache)
    rows = [
        {
            "name": name,
            "counts": [counts[split][label] for split in SPLITS],
            "total": sum(counts[split][label] for split in SPLITS),
            "picture": _picture(_first_of(train, label)),
        }
        for label, name in enumerate(manifest.classes)
    ]
    totals = [len(manifest.splits[split].sample_ids) for split in SPLITS]
    return pages.get_template("report.html.j2").render(
        manifest=manifest, splits=SPLITS, rows=rows, totals=totals, total=sum(totals)
    )


def _first_of(reader: SplitReader, label: int) -> Images:
    return reader.images(np.flatnonzero(reader.labels == label)[:PER_CLASS])


def _picture(images: Images) -> str:
    """Images side by side, as a PNG data URI."""
    factor = max(1, -(-TILE // min(images.shape[1:3])))
    large = images.repeat(factor, axis=1).repeat(factor, axis=2)
    count, height, width, channels = large.shape
    sheet = np.full((count, height, width + GAP, channels), 255, dtype=np.uint8)
    sheet[:, :, :width] = large
    row = sheet.transpose(1, 0, 2, 3).reshape(height, count * (width + GAP), channels)
    buffer = io.BytesIO()
    Image.fromarray(row[..., 0] if channels == 1 else row).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
