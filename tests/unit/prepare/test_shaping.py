"""How the shape of images is described: how much is cropped, and never squashed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from samples import a_folder, an_image

from ddpipe.data.manifest import store_of
from ddpipe.prepare.encoding import how_shaped
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.report import data_report_html
from ddpipe.prepare.spec import PrepareSpec

RAW = {"kind": "raw", "shape": [32, 32, 3]}
JPEG = {"kind": "jpeg", "side": 256}


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
    ],
)
def test_the_cropped_area_is_reported(
    encoding: dict[str, object], sizes: dict[tuple[int, int], int], expected: str
) -> None:
    assert expected in how_shaped(encoding, sizes)


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
    assert expected in data_report_html(prepared.manifest, store_of(prepared.manifest_uri))
