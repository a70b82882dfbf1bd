"""Decodes image files to upright pixels of 8 bits, gray or color, of the size wanted."""

from __future__ import annotations

import io
import math
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, ImagePalette, UnidentifiedImageError

from ddpipe.data.manifest import Shape
from ddpipe.sources.base import DEFAULT, ReadOptions, Unreadable

try:
    from cykooz_resizer import FilterType, ResizeAlg, ResizeOptions, Resizer
except ImportError:  # there is none for this kind of machine; Pillow's own filter takes four times as long
    Resizer = None

ORIENTATION = 0x0112  # the EXIF tag that says how the camera was held
SIDEWAYS = (5, 6, 7, 8)  # its values that swap height and width
TURNED = range(2, 9)  # its values that are not upright
LARGEST = Image.MAX_IMAGE_PIXELS or 2**26  # pixels; Pillow only warns, and refuses twice as many
LONGEST = 65_500  # pixels of a side: a JPEG has no more
FILTER = Image.Resampling.BICUBIC  # as wide as the reduction asks for, so that nothing fine turns into moiré
CHANNELS = {b"P5": 1, b"P6": 3}  # of netpbm's kinds of image
WRAPPING = re.compile(rb"(P5|P6) (\d{1,9}) (\d{1,9}) 255\n")  # what `wrapped` puts before the pixels
ZEROS = 256  # bytes of 0 in a row that a decoder's input has only where something is missing
FULL = 0.9  # share of a row's values that are not 0
START_OF_SCAN, TABLES, EXIF = 0xDA, 0xC4, 0xE1  # second bytes of a JPEG's markers
FRAMES = (0xC0, 0xC1, 0xC2)  # those of the segments that hold its size
FRAME = struct.Struct(">BHHB")  # bits, height, width, channels; and three bytes for each of these
END = b"\xff\xd9"  # the marker at a JPEG's end
PNG_END = b"IEND\xaeB`\x82"  # a PNG's last chunk, after its length
LENGTHS = 16  # lengths that a JPEG's codes may have
HEIC = re.compile(rb"....ftyp(?:he|mif1|msf1)", re.DOTALL)  # how photographs of telephones may begin
COLORS, SHADES = 320, 256  # the TIFF tag of a palette, and how many values 8 bits have
DEEP = 16  # bits per value of images that have more than 8


class Probed(NamedTuple):
    """What the encoding of an image depends on."""

    shape: Shape  # upright
    # Bits that the values of a 16-bit image use, at least 8: medical ones often 10 or 12, which no header
    # says. 0: the image has 8 bits.
    depth: int


def probe(data: bytes) -> Probed:
    """Look at an image's header, and through its pixels only where no header explains 16 bits."""
    return _probed(data, DEFAULT, lambda image: max(8, int(np.asarray(image).max()).bit_length()))


def look(data: bytes) -> Probed:
    """The same from the header alone: the depth of an image with 16 bits is 16, however many it uses."""
    return _probed(data, ReadOptions(first_frame=True), lambda _: DEEP)


def _probed(data: bytes, reading: ReadOptions, depth: Callable[[Image.Image], int]) -> Probed:
    if _is_dicom(data):
        with _refused(data):
            return Probed(_dicom().size(data), 0)
    if found := _plain_jpeg(data):
        return Probed(found, 0)
    with _opened(data, reading) as image:
        width, height = image.size
        if image.getexif().get(ORIENTATION) in SIDEWAYS:
            width, height = height, width
        shape = (height, width, 1 if _is_gray(image) else 3)
        return Probed(shape, depth(image) if _is_deep(image) else 0)


def _plain_jpeg(data: bytes) -> Shape | None:
    """The shape of a JPEG that nothing turns: a tenth of the time in which Pillow opens it."""
    head = _head(data)[0] if data.startswith(b"\xff\xd8\xff") else {}
    frame = b"".join(head.get(kind, b"") for kind in FRAMES)
    if EXIF in head or len(frame) < FRAME.size:
        return None
    bits, height, width, channels = FRAME.unpack_from(frame)
    is_usual = bits == 8 and channels in {1, 3} and len(frame) == FRAME.size + 3 * channels  # noqa: PLR2004
    return (height, width, channels) if is_usual and 0 < height * width <= LARGEST else None


def decode(data: bytes, shape: Shape, depth: int = 0, reading: ReadOptions = DEFAULT) -> Image.Image:
    """An image of this shape, upright, cropped around its center; `depth`: bits used of 16, 0 for all."""
    height, width, channels = shape
    mode = "L" if channels == 1 else "RGB"
    with _opened(data, reading) as file:
        image = _upright(file, lambda size: max(width / size[0], height / size[1]), depth).convert(mode)
        _refuse_damage(file, data)
        return image if image.size == (width, height) else ImageOps.fit(image, (width, height), FILTER)


def contain(
    data: bytes, size: tuple[int, int], depth: int = 0, reading: ReadOptions = DEFAULT
) -> Image.Image:
    """An image file, upright, gray or color, whole on white of this height and width."""
    height, width = size
    with _opened(data, reading) as file:
        image = _upright(file, lambda size: min(width / size[0], height / size[1]), depth)
        _refuse_damage(file, data)
        factor = min(width / image.width, height / image.height)
        inner = scaled(image, (max(1, round(image.width * factor)), max(1, round(image.height * factor))))
        if inner.size == (width, height) and inner is not image:  # which may have comments, to be left out
            return inner
        result = Image.new(image.mode, (width, height), "white")
        result.paste(inner, (round((width - inner.width) / 2), round((height - inner.height) / 2)))
        return result


def shrink(data: bytes, side: int, depth: int = 0, reading: ReadOptions = DEFAULT) -> Image.Image:
    """An image file, upright, gray or color, scaled to a length of its shorter side; never smaller."""
    with _opened(data, reading) as file:
        image = _upright(file, lambda size: side / min(size), depth)
        _refuse_damage(file, data)
        factor = side / min(image.size)
        width, height = (max(side, round(length * factor)) for length in image.size)
        if max(width, height) > LONGEST or width * height > LARGEST:
            raise Unreadable(
                f"{image.width} by {image.height} pixels: with a shorter side of {side}, it would have "
                f"{width} by {height}"
            )
        return scaled(image, (width, height))


def as_jpeg(image: Image.Image, quality: int) -> bytes:
    """The file of an image, compressed."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def scaled(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """An image of mode L or RGB in this size, by `FILTER`: equal to Pillow's own, except for rounding."""
    if image.size == size:
        return image
    if Resizer is None:
        return image.resize(size, FILTER)
    result = Image.new(image.mode, size)
    Resizer().resize_pil(
        image, result, ResizeOptions(resize_alg=ResizeAlg.convolution(FilterType.catmull_rom))
    )
    return result


def wrapped(pixels: NDArray[np.uint8]) -> bytes:
    """Pixels, shape (H, W) or (H, W, 3), as the simplest image file (netpbm)."""
    height, width, *color = pixels.shape
    return f"{'P6' if color else 'P5'} {width} {height} 255\n".encode() + pixels.tobytes()


def _upright(file: Image.Image, factor: Callable[[tuple[int, int]], float], depth: int) -> Image.Image:
    """In mode L or RGB, large enough to be scaled by `factor`: a JPEG's half costs a part of its time."""
    orientation = file.getexif().get(ORIENTATION)
    scale = factor(file.size[::-1] if orientation in SIDEWAYS else file.size)
    if file.format == "JPEG" and scale < 1:
        file.draft(None, tuple(math.ceil(length * scale) for length in file.size))  # type: ignore[arg-type]
    if orientation in TURNED:
        return plain(ImageOps.exif_transpose(file), depth)
    file.load()
    return plain(file, depth)


def plain(image: Image.Image, depth: int = 0) -> Image.Image:
    """The image in mode L or RGB: 16 bits keep the upper 8 in use; transparent pixels become white."""
    mode = "L" if _is_gray(image) else "RGB"
    if _is_deep(image):
        # Pillow's own conversion clips: all above 255 would become white.
        values = np.asarray(image)
        upper = np.minimum(values >> (depth or 16) - 8, 255).astype(np.uint8)
        upper[values == image.info.get("transparency", -1)] = 255
        return Image.fromarray(upper)
    if image.mode in {"I", "F"}:
        raise Unreadable("its pixels are 32-bit numbers of an unknown range: save it with 8 or 16 bits")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode == mode else image.convert(mode)


def bare(data: bytes) -> tuple[Shape, bytes] | None:
    """Shape and pixels of a file that `wrapped` made, without a decoder; None for any other file."""
    if wrapping := WRAPPING.match(data):
        channels, (width, height) = CHANNELS[wrapping[1]], map(int, wrapping.groups()[1:])
        pixels = data[wrapping.end() :]
        if pixels and len(pixels) == width * height * channels:
            return (height, width, channels), pixels
    return None


def _unwrapped(data: bytes) -> Image.Image:
    if found := bare(data):
        (height, width, channels), pixels = found
        return Image.frombytes("L" if channels == 1 else "RGB", (width, height), pixels)
    image = Image.open(io.BytesIO(data))
    if image.mode == "P" and image.format == "TIFF":
        colors = getattr(image, "tag_v2", {}).get(COLORS, ())
        if (
            max(colors, default=SHADES) < SHADES
        ):  # of 8 bits, where the format wants 16: Pillow would show black
            image.palette = ImagePalette.raw("RGB;L", bytes(colors))
    return image


@contextmanager
def _opened(data: bytes, reading: ReadOptions = DEFAULT) -> Iterator[Image.Image]:
    with _refused(data):
        if _is_dicom(data):
            yield _dicom().picture(data, reading, LARGEST)
        else:
            with _unwrapped(data) as image:
                if image.width * image.height > LARGEST:
                    raise Unreadable(
                        f"{image.width} by {image.height} pixels: it may be a decompression bomb"
                    )
                _refuse_frames(image, reading)
                yield image


@contextmanager
def _refused(data: bytes) -> Iterator[None]:
    """Turn any exception of a decoder into `Unreadable`."""
    try:
        yield
    except Unreadable:
        raise
    except Exception as error:  # a damaged file makes decoders raise nearly anything
        raise Unreadable(_reason(data, error)) from error


def _is_dicom(data: bytes) -> bool:
    return data[128:132] == b"DICM" and not WRAPPING.match(data)


def _dicom() -> ModuleType:
    from ddpipe.sources import dicom  # noqa: PLC0415 - a second of import, for DICOM files only

    return dicom


def _refuse_frames(image: Image.Image, reading: ReadOptions) -> None:
    """Further frames of a GIF, or pages of a TIFF, would be lost; previews in photographs (MPO) may be."""
    if reading.first_frame or image.format == "MPO":
        return
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise Unreadable(f"it has {frames} frames: `first_frame` uses the first of them")


def _refuse_damage(file: Image.Image, data: bytes) -> None:
    """Refuse what decoders fill up with gray or black; only a file that looks damaged is read again."""
    if file.format in {"JPEG", "MPO"} and (reason := _damage(file, data)):
        raise Unreadable(f"it is damaged: {reason}")
    if not data.endswith(bytes(ZEROS)):
        return
    end = 8 + int.from_bytes(data[4:8], "little") if file.format == "WEBP" else len(data)
    if file.format == "PNG" and not data.rstrip(b"\0").endswith(PNG_END):
        raise Unreadable("it ends in zeros: it is truncated")
    if file.format in {"WEBP", "AVIF"} and data[:end].endswith(bytes(ZEROS)):
        raise Unreadable("it ends in zeros: it is truncated")
    if file.format in {"BMP", "PPM", "TIFF"} and _breaks_off(file, data):
        raise Unreadable("its pixels break off in the middle of a row, and zeros follow: it is truncated")


def _damage(file: Image.Image, data: bytes) -> str:
    """What is wrong with a JPEG that has no end, a hole, or one color where its last blocks are."""
    head, place = _head(data)
    hole = data.find(bytes(ZEROS), place)
    if 0 <= hole < data.rfind(END, place) and any(_shortest_codes(head.get(TABLES, b""))):
        return f"it has a hole of zeros at byte {hole:,}"  # with these codes, no pixels give so many
    # Blocks without data repeat the last one's brightness. A quarter of a row: a smooth sky is not that even.
    last = file.crop((file.width * 3 // 4, file.height - 1, file.width, file.height))
    if hole < 0 and data.rfind(END, place) >= 0 and not last.getcolors(1):
        return ""
    import simplejpeg  # noqa: PLC0415 - few files need it

    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, strict=True)  # an eighth of the size
    except ValueError as error:  # a warning, which Pillow does not pass on, or colors that it does not know
        text = str(error)
        is_sloppy = re.search(r"\b\d\d? extraneous bytes", text)  # some encoders leave a few before the end
        return text if text.startswith(("Corrupt", "Premature")) and not is_sloppy else ""
    return ""


def _head(data: bytes) -> tuple[dict[int, bytes], int]:
    """What a JPEG holds before its pixels, by the second byte of the marker, and where these begin."""
    found, place = defaultdict[int, list[bytes]](list), 2
    while data[place : place + 1] == b"\xff" and place + 1 < len(data) and data[place + 1] != START_OF_SCAN:
        kind = data[place + 1]
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4])
        found[kind].append(data[place + 4 : end])
        place = end
    return {kind: b"".join(parts) for kind, parts in found.items()}, place


def _shortest_codes(tables: bytes) -> bytes:
    """What the first, all-zero code of each table for details means; 0 is the end of an even block."""
    found = b""
    while len(tables) > LENGTHS:
        kind, counts = tables[0], tables[1 : 1 + LENGTHS]
        found += tables[1 + LENGTHS : 2 + LENGTHS] if kind >> 4 else b""
        tables = tables[1 + LENGTHS + sum(counts) :]
    return found


def _breaks_off(file: Image.Image, data: bytes) -> bool:
    """Whether the last row with anything in it ends early, below a full one: no picture's edge does."""
    there = np.asarray(file).reshape(file.height, -1) != 0
    if file.format == "BMP" and int.from_bytes(data[22:26], "little", signed=True) > 0:
        there = there[::-1]  # the last row comes first
    filled = np.flatnonzero(there.any(axis=1))
    if not len(filled) or filled[-1] in {0, file.height - 1}:
        return False
    above, last = there[filled[-1] - 1], there[filled[-1]]
    end = int(np.flatnonzero(last)[-1]) + 1
    return end < len(last) and bool(above[end:].mean() > FULL and last[:end].mean() > FULL)


def _reason(data: bytes, error: Exception) -> str:
    if not data:
        return "it is empty"
    if isinstance(error, UnidentifiedImageError):
        return "it is HEIC: convert it to JPEG" if HEIC.match(data) else "it is not an image"
    return str(error) or type(error).__name__


def _is_gray(image: Image.Image) -> bool:
    return image.mode in {"1", "L", "LA", "La", "I", "F"} or _is_deep(image)


def _is_deep(image: Image.Image) -> bool:
    return image.mode.startswith("I;16")
