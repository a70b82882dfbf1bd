"""Decoding: every readable file becomes upright pixels of one shape, every other one a reason."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from ddpipe.prepare.images import ORIENTATION, Unreadable, decode, probe


def _file(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _gradient(width: int = 6, height: int = 4) -> Image.Image:
    return Image.fromarray(np.arange(width * height, dtype=np.uint8).reshape(height, width))


def test_grey_pixels_are_kept_as_they_are() -> None:
    data = _file(_gradient())
    assert probe(data) == (4, 6, 1)
    np.testing.assert_array_equal(decode(data, (4, 6, 1))[..., 0], np.arange(24).reshape(4, 6))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK"])
def test_colour_has_three_channels(mode: str) -> None:
    data = _file(Image.new("RGB", (6, 4), "red").convert(mode), "TIFF")
    assert probe(data) == (4, 6, 3)
    red, green, blue = decode(data, (4, 6, 3))[0, 0]
    assert red > 200
    assert max(green, blue) < 60


def test_grey_among_colour_becomes_three_equal_channels() -> None:
    pixels = decode(_file(_gradient()), (4, 6, 3))
    np.testing.assert_array_equal(pixels[..., 0], pixels[..., 2])


def test_the_camera_s_orientation_is_undone() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # the camera was held upright: turn the picture a quarter clockwise
    data = _file(_gradient(), exif=exif)
    assert probe(data) == (6, 4, 1)
    np.testing.assert_array_equal(decode(data, (6, 4, 1))[..., 0], np.rot90(np.arange(24).reshape(4, 6), -1))


def test_another_size_keeps_its_proportions() -> None:
    """A wide picture loses its left and right, it is not squeezed."""
    picture = Image.new("L", (30, 10), 0)
    picture.paste(255, (10, 0, 20, 10))
    assert decode(_file(picture), (5, 5, 1)).min() > 200


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello", "no image"),
        (_file(Image.effect_noise((60, 40), 50), "PNG")[:500], "truncated"),
        (_file(Image.effect_noise((60, 40), 50), "JPEG")[:500], "truncated"),
    ],
)
def test_what_can_not_be_read_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        decode(data, (4, 6, 1))


def test_a_decompression_bomb_is_not_opened() -> None:
    """A few kilobytes that would become 400 million pixels, and fewer that Pillow itself only warns of."""
    for side in (20_000, 10_000):
        bomb = _file(Image.new("1", (side, side)), compress_level=9)
        with pytest.raises(Unreadable, match="bomb"):
            probe(bomb)
