"""What a dataset version holds, as one HTML file: a table of its classes and a sheet of its images."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from ddpipe.data.catalogue import per_class
from ddpipe.data.manifest import SPLITS, DatasetManifest
from ddpipe.data.reader import SplitReader, open_split
from ddpipe.data.shards import Images
from ddpipe.storage import Store

PER_CLASS = 12
"""Images in a class's row of the contact sheet."""

TILE = 48
"""Smallest side of an image on the sheet, in pixels; smaller ones are enlarged, larger ones get twice it."""

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
    counts = {split: per_class(manifest, split) for split in SPLITS}
    train = open_split((manifest, store), "train", cache)
    rows = [
        {
            "name": name,
            "counts": [counts[split][name] for split in SPLITS],
            "total": sum(counts[split][name] for split in SPLITS),
            "picture": _picture(_first_of(train, label)),
        }
        for label, name in enumerate(manifest.classes)
    ]
    totals = [len(manifest.splits[split].sample_ids) for split in SPLITS]
    return pages.get_template("report.html.j2").render(
        manifest=manifest, splits=SPLITS, rows=rows, totals=totals, total=sum(totals)
    )


def _first_of(reader: SplitReader, label: int) -> Images:
    shows = reader.labels == label if reader.labels.ndim == 1 else reader.labels[:, label] == 1
    return reader.images(np.flatnonzero(shows)[:PER_CLASS])


def _picture(images: Images) -> str:
    """Images side by side, as a PNG data URI."""
    height, width, channels = images.shape[1:]
    if min(height, width) < TILE:
        factor = -(-TILE // min(height, width))
        width, height, how = width * factor, height * factor, Image.Resampling.NEAREST
    else:
        width, height, how = round(width * TILE / height) * 2, TILE * 2, Image.Resampling.BOX
    sheet = Image.new("L" if channels == 1 else "RGB", ((width + GAP) * len(images), height), "white")
    for number, image in enumerate(images):
        tile = Image.fromarray(image[..., 0] if channels == 1 else image).resize((width, height), how)
        sheet.paste(tile, (number * (width + GAP), 0))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
