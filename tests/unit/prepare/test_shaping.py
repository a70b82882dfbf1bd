"""How images get one shape: cropped where little is lost, else whole; and how that is described."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from samples import a_folder, an_image

from ddpipe.data.manifest import DatasetManifest, store_of
from ddpipe.data.reader import open_split
from ddpipe.errors import NewerFormat
from ddpipe.model.preprocessing import Preprocessing
from ddpipe.prepare.encoding import chosen, how_shaped, what_is_there
from ddpipe.prepare.prepare import Prepared, prepare
from ddpipe.prepare.report import data_report_html
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.sources.images import FILTER
from ddpipe.sources.preprocess import Preprocessor

RAW = {"kind": "raw", "shape": [32, 32, 3]}
JPEG = {"kind": "jpeg", "side": 256}
WHOLE = {"kind": "jpeg", "size": [200, 300], "fit": "contain"}


@pytest.mark.parametrize(
    ("encoding", "sizes", "expected"),
    [
        (RAW, {(32, 32): 9}, "Images are kept as they are, 32 × 32 pixels."),  # noqa: RUF001
        (RAW, {(64, 64): 9}, "cropped at both ends. Proportions never change"),
        (
            RAW,
            {(32, 32): 6, (32, 64): 3},
            "cropped at both ends (3 of 9 images lose 50% of their area on average).",
        ),
        (RAW, {(16, 32): 3}, "(3 of 3 images lose 50% of their area on average, 3 are enlarged)."),
        (RAW, {(320, 321): 3}, "cropped at both ends (3 of 3 images lose 0% of their area on average)."),
        (JPEG, {(256, 256): 3}, "readers get 256 × 256 pixels from the center. Proportions"),  # noqa: RUF001
        (JPEG, {(480, 640): 3, (640, 480): 1}, "center (4 of 4 images lose 25% of their area on average)."),
        (JPEG, {(100, 100): 2, (300, 300): 2}, "from the center (2 are enlarged)."),
        (WHOLE, {(400, 600): 2}, "kept whole, scaled to fit into 300 × 200 pixels. Proportions"),  # noqa: RUF001
        (
            WHOLE,
            {(100, 100): 1, (400, 600): 2},
            "pixels (1 of 3 images leave 33% of it white on average, 1 are enlarged).",
        ),
    ],
)
def test_the_cropped_area_is_reported(
    encoding: dict[str, object], sizes: dict[tuple[int, int], int], expected: str
) -> None:
    assert expected in how_shaped(encoding, sizes)


@pytest.mark.parametrize(
    ("sizes", "size", "expected"),
    [
        ({(28, 28): 9}, 0, {"kind": "raw", "shape": [28, 28, 3]}),
        ({(40, 60): 9}, 0, {"kind": "raw", "shape": [40, 60, 3]}),  # all alike: nothing is lost
        ({(480, 500): 9}, 0, {"side": 256}),
        ({(480, 480): 99, (480, 960): 1}, 0, {"side": 256}),  # one of a hundred
        ({(480, 640): 9}, 0, {"size": [222, 295], "fit": "contain"}),  # as many pixels as 256 x 256
        ({(480, 640): 9, (640, 480): 9}, 0, {"size": [256, 256], "fit": "contain"}),
        ({(480, 640): 9}, 224, {"size": [224, 224], "fit": "contain"}),  # a size that was asked for is square
        ({(100, 3000): 9}, 0, {"size": [50, 200], "fit": "contain"}),
        ({(30, 80): 5, (80, 30): 5}, 0, {"kind": "raw", "shape": [49, 49, 3], "fit": "contain"}),
        ({(30, 30): 1, (60, 61): 1, (90, 88): 1}, 0, {"shape": [60, 61, 3]}),  # the middle, not the first
    ],
)
def test_the_fit_follows_from_the_proportions(
    sizes: dict[tuple[int, int], int], size: int, expected: dict[str, object]
) -> None:
    shapes = [(*one, 3) for one, count in sizes.items() for _ in range(count)]
    facts = chosen(shapes, "auto", size).facts
    assert {name: facts.get(name) for name in expected} == expected
    assert ("fit" in facts) == ("fit" in expected)


def tall_and_wide(path: Path, longer: int, **changes: object) -> Prepared:
    """A version of dark pictures, half of them upright, with a bright corner that cropping would lose."""
    for number in range(20):
        size = (longer, longer // 3) if number % 2 else (longer // 3, longer)
        an_image(path / "photos" / "ab"[number // 10] / f"{number:02}.png", size, mode="RGB", seed=number)
    values = {"source_path": str(path / "photos"), "store": str(path / "store"), **changes}
    return prepare(PrepareSpec.from_dict({"source": "folder", **values}))


@pytest.mark.parametrize(("longer", "size"), [(90, 0), (330, 0), (330, 128)])
def test_predicting_prepares_an_image_as_training_did(tmp_path: Path, longer: int, size: int) -> None:
    manifest = (prepared := tall_and_wide(tmp_path, longer, image_size=size)).manifest
    assert manifest.shape[0] == manifest.shape[1]
    how = Preprocessing.of_dataset(manifest.source["encoding"], manifest.shape, manifest.shape)
    assert how.scale == "contain"
    assert not list(how.problems())
    preprocessor = Preprocessor(manifest.shape, how)
    train = open_split(prepared.manifest_uri, "train")
    for name, image in zip(train.sample_ids, train.images(range(len(train))), strict=True):
        file = (tmp_path / "photos" / name).read_bytes()
        np.testing.assert_array_equal(preprocessor.pixels(file), image)
        assert (image > 250).all(axis=2).mean() > 0.6, "two thirds are white"
        if not how.jpeg_quality:
            card = ImageOps.pad(Image.open(io.BytesIO(file)), image.shape[1::-1], FILTER, "white")
            assert np.abs(np.asarray(card, int) - image).mean() < 1, "as the code of the model card does"


def test_an_older_ddpipe_refuses_versions_of_whole_images(tmp_path: Path) -> None:
    """It would take them for cropped ones, and crop the images that it predicts."""
    manifest = tall_and_wide(tmp_path, 90).manifest
    assert manifest.schema == 3
    assert DatasetManifest.from_json(manifest.to_json()) == manifest
    with pytest.raises(NewerFormat):
        DatasetManifest.from_json(manifest.to_json().replace('"schema":3', '"schema":4'))


def test_log_and_page_say_how_images_are_shaped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a_folder(tmp_path / "toys", {"ball": 20, "kite": 20})
    an_image(tmp_path / "toys/ball/wide.png", (12, 4))
    caplog.set_level(logging.INFO)
    prepared = prepare(
        PrepareSpec(source="folder", source_path=str(tmp_path / "toys"), store=str(tmp_path / "store"))
    )
    expected = "Images are scaled to 6 × 4 pixels, keeping proportions"  # noqa: RUF001
    assert expected in caplog.text
    assert "1 of 41 images lose 50% of their area" in caplog.text
    page = data_report_html(prepared.manifest, store_of(prepared.manifest_uri))
    assert expected in page
    assert "41 images of 6 × 4 pixels" in page  # noqa: RUF001
    assert "<td>6 × 4</td><td>40</td>" in page  # noqa: RUF001


def test_many_sizes_are_a_range_and_a_histogram(tmp_path: Path) -> None:
    sizes = {(10 + number, 20 + number // 2): 1 for number in range(200)}
    found = what_is_there(200, 2, sizes, channels=3, exclusive=True)
    assert found == "200 images, 2 classes, 200 sizes from 20 × 10 to 119 × 209, RGB"  # noqa: RUF001
    prepared = tall_and_wide(tmp_path, 90)
    page = data_report_html(prepared.manifest, store_of(prepared.manifest_uri))
    assert page.index("<td>30 × 90</td><td>10</td>") < page.index("<td>90 × 30</td><td>10</td>")  # noqa: RUF001
