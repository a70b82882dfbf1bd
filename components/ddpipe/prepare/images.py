"""From an image file's bytes to pixels of one shape."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

ORIENTATION = 0x0112
"""The EXIF tag that says how the camera was held."""

SIDEWAYS = (5, 6, 7, 8)
"""Its values that swap height and width."""

Shape = tuple[int, int, int]
"""Height, width and channels (1 or 3)."""


class Unreadable(Exception):
    """This file can not become pixels; says why."""


def probe(data: bytes) -> Shape:
    """The shape that an image has upright, from its header alone.

    Raises:
        Unreadable: This is no image, or one of absurd size.
    """
    with _opened(data) as image:
        width, height = image.size
        if image.getexif().get(ORIENTATION) in SIDEWAYS:
            width, height = height, width
        return height, width, 1 if _is_grey(image) else 3


def decode(data: bytes, shape: Shape) -> NDArray[np.uint8]:
    """The pixels of an image file, upright and in this shape.

    Raises:
        Unreadable: The file is truncated or damaged.
    """
    with _opened(data) as image:
        return shaped(ImageOps.exif_transpose(image), shape)


def shaped(image: Image.Image, shape: Shape) -> NDArray[np.uint8]:
    """The pixels in this shape: scaled, keeping the proportions, and cropped around the centre."""
    height, width, channels = shape
    image = plain(image).convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
    return np.asarray(image, dtype=np.uint8).reshape(shape)


def plain(image: Image.Image) -> Image.Image:
    """The image in mode L or RGB: 16 bits keep their upper 8, what is transparent shows white.

    Raises:
        Unreadable: The pixels are numbers whose range nobody knows.
    """
    mode = "L" if _is_grey(image) else "RGB"
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips: all above 255 would become white.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in {"I", "F"}:
        raise Unreadable("its pixels are 32-bit numbers of an unknown range: save it with 8 or 16 bits")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode == mode else image.convert(mode)


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    with warnings.catch_warnings():
        # Pillow only warns of an image that fills the memory, and refuses one twice as large: refuse both.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(data)) as image:
                yield image
        except Unreadable:
            raise
        except Exception as error:  # a damaged file makes decoders raise nearly anything
            raise Unreadable(_reason(data, error)) from error


def _reason(data: bytes, error: Exception) -> str:
    if not data:
        return "it is empty"
    if isinstance(error, UnidentifiedImageError):
        return "it is no image"
    return str(error) or type(error).__name__


def _is_grey(image: Image.Image) -> bool:
    return image.mode in {"1", "L", "LA", "La", "I", "F"} or image.mode.startswith("I;16")
