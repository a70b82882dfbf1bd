"""Raw data of every kind of image file, and a model that looks at all of it, for tests of predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from evaluation_runs import a_training
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage
from xrays import xrays

from ddpipe.data.index import open_index
from ddpipe.data.manifest import load_manifest, store_of
from ddpipe.evaluate.evaluate import evaluate
from ddpipe.export.export import export
from ddpipe.model.classifier import Classifier
from ddpipe.model.evaluation import load_evaluation
from ddpipe.model.tasks import TASKS
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec

ORIENTATION = 0x0112
PER_CLASS = 12


@dataclass(frozen=True)
class Evaluated:
    """A model, and what its evaluation said about each test image, by its sample id."""

    package: str
    raw: Path
    classes: tuple[str, ...]
    probabilities: Mapping[str, NDArray[np.float64]]


def evaluated(folder: Path, **options: Any) -> Evaluated:
    """Prepare raw data, evaluate a network with random weights on it, and export it."""
    spec = PrepareSpec(store=str(folder / "store"), test_fraction=0.4, validation_fraction=0.2, **options)
    dataset = prepare(spec).manifest_uri
    training = a_training(str(folder / "training"), dataset, name="digits-cnn", adjust=_decisive)
    evaluate(training, dataset, str(folder / "evaluation"))
    export(training, dataset, str(folder / "evaluation"), str(folder / "model"))
    manifest, evaluation = load_manifest(dataset), load_evaluation(str(folder / "evaluation"))
    logits, _ = evaluation.calibrated()
    ids = list(open_index(manifest, "test", store_of(dataset)).sample_ids)
    probabilities = TASKS[manifest.task].probabilities(logits)
    return Evaluated(
        str(folder / "model"),
        Path(options.get("source_path", "")),
        manifest.classes,
        dict(zip(ids, probabilities, strict=True)),
    )


def _decisive(classifier: Classifier) -> None:
    """Weights in the last layer that turn small differences of images into large ones of probabilities."""
    *_, weights, _ = classifier.parameters()
    weights.mul_(20)
    classifier.eval()


def written(folder: Path, save: Callable[[Path, int], None], ending: str) -> Path:
    """Two class folders of images; `save` writes one of them by its number."""
    for number in range(2 * PER_CLASS):
        path = folder / ("even" if number % 2 == 0 else "odd") / f"{number:02d}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, number)
    return folder


def some_shapes(number: int, size: tuple[int, int], *, color: bool = True) -> Image.Image:
    """Soft random shapes in gray or color; `size` is width and height."""
    noise = np.random.default_rng(number).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    return image if color else image.convert("L")


def png_8(path: Path, number: int) -> None:
    """Of several sizes, some of them enlarged."""
    some_shapes(number, (20 + 3 * number, 40)).save(path)


def png_transparent(path: Path, number: int) -> None:
    """With an alpha channel."""
    image = some_shapes(number, (40, 36)).convert("RGBA")
    image.putalpha(some_shapes(number + 100, (40, 36), color=False))
    image.save(path)


def png_16(path: Path, number: int) -> None:
    """Gray values of 12 bits in 16."""
    gray = np.asarray(some_shapes(number, (44, 40), color=False), np.uint16) * 16
    Image.fromarray(gray + np.uint16(number % 16)).save(path)


def jpeg_turned(path: Path, number: int) -> None:
    """Photographs larger than a shard keeps, with every EXIF orientation."""
    exif = Image.Exif()
    exif[ORIENTATION] = 1 + number % 8
    some_shapes(number, (420, 300)).save(path, quality=92, exif=exif)


def dicom_12(path: Path, number: int) -> None:
    """A slice of 12 bits in Hounsfield units."""
    gray = np.asarray(some_shapes(number, (48, 40), color=False), np.uint16) * 16
    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.SOPClassUID = SecondaryCaptureImageStorage
    file.SOPInstanceUID = f"1.2.{number}"
    file.set_pixel_data(gray, "MONOCHROME2", 12)
    file.RescaleSlope, file.RescaleIntercept = 1, -1024
    file.save_as(path, enforce_file_format=True)


KINDS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "digits": lambda _: {"source": "digits"},
    "png of 8 bits": lambda at: {"source": "folder", "source_path": str(written(at, png_8, "png"))},
    "transparent png": lambda at: {
        "source": "folder",
        "source_path": str(written(at, png_transparent, "png")),
    },
    "png of 16 bits": lambda at: {"source": "folder", "source_path": str(written(at, png_16, "png"))},
    "turned jpeg": lambda at: {"source": "folder", "source_path": str(written(at, jpeg_turned, "jpg"))},
    "dicom": lambda at: {
        "source": "folder",
        "source_path": str(written(at, dicom_12, "dcm")),
        "window": "300/2000",
    },
    "multilabel": lambda at: (
        xrays(at)
        and {
            "source": "csv",
            "source_path": str(at),
            "image_column": "StudyInstanceUID",
            "group_column": "PatientID",
        }
    ),
}
"""Options of preparing by kind of raw data, which a function writes into a folder."""
