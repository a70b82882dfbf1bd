"""DICOM files as pictures: what a radiologist sees on the screen, in 8 bits.

The stored numbers become the scanner's units (rescale slope and intercept, or a table), then grey by a
window: the user's, or the file's own, or else all values that the image has. MONOCHROME1, where low means
bright, is inverted. Colours keep the upper 8 of their bits.

Source: DICOM PS3.3, C.7.6.3.1 (photometric interpretation), C.11.1 (modality LUT), C.11.2 (VOI LUT).
"""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pydicom
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi, get_decoder, pixel_array
from pydicom.uid import DeflatedExplicitVRLittleEndian

from ddpipe.sources.base import Unreadable
from ddpipe.sources.view import View

pydicom.config.settings.reading_validation_mode = (
    pydicom.config.IGNORE
)  # files often break rules that no pixel needs

GREY = ("MONOCHROME1", "MONOCHROME2")

LARGEST_INFLATED = 2**30
"""Bytes that a deflated file may become."""

_META = 144
"""Where a file's meta information begins, after its length in 4 bytes; PS3.10, 7.1."""


def size(data: bytes) -> tuple[int, int, int]:
    """Height, width and channels, from the header.

    Raises:
        Unreadable: There is no image in it.
    """
    header = _read(data, stop_before_pixels=True)
    return header.Rows, header.Columns, 1 if header.PhotometricInterpretation in GREY else 3


def picture(data: bytes, view: View, largest: int) -> Image.Image:
    """The image of a DICOM file, in mode L or RGB.

    Args:
        data: The file.
        view: What of it is wanted.
        largest: Pixels that an image may have.

    Raises:
        Unreadable: There is no image in it, there are several, or no decoder for it is installed.
    """
    file = _read(data)
    frames = int(file.get("NumberOfFrames") or 1)
    if frames > 1 and not view.first_frame:
        raise Unreadable(f"it has {frames} frames: --first-frame takes the first of them")
    if file.Rows * file.Columns > largest:
        raise Unreadable(f"{file.Columns} by {file.Rows} pixels: it may be a decompression bomb")
    _check_decoder(file)
    values = pixel_array(file, index=0)
    if file.PhotometricInterpretation in GREY:
        return Image.fromarray(_grey(file, values, view))
    bits = file.BitsStored
    if file.PhotometricInterpretation == "PALETTE COLOR":
        values = apply_color_lut(values, file)
        bits = file.RedPaletteColorLookupTableDescriptor[2]
    return Image.fromarray((values >> max(0, bits - 8)).astype(np.uint8))


def _read(data: bytes, *, stop_before_pixels: bool = False) -> Dataset:
    """A file with an image; a deflated one is inflated whole by pydicom, so its size is looked at first."""
    end = _META + int.from_bytes(data[_META - 4 : _META], "little")
    if DeflatedExplicitVRLittleEndian.encode() in data[:end]:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        inflater.decompress(data[end:], LARGEST_INFLATED)
        if inflater.unconsumed_tail:
            raise Unreadable(f"it inflates to over {LARGEST_INFLATED} bytes: it may be a decompression bomb")
    file = pydicom.dcmread(io.BytesIO(data), stop_before_pixels=stop_before_pixels)
    if not (file.get("Rows") and file.get("Columns")):
        raise Unreadable("it is a DICOM file without an image")
    return file


def _check_decoder(file: Dataset) -> None:
    """Say what is missing before pydicom does, in a page."""
    syntax = file.file_meta.TransferSyntaxUID
    if not syntax.is_compressed or syntax.is_deflated:
        return
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError as error:
        raise Unreadable(f"it is compressed as {syntax.name}, which nothing here decodes") from error
    if not decoder.is_available:
        ways = "; or ".join(decoder.missing_dependencies)
        raise Unreadable(
            f"it is compressed as {syntax.name}, for which a decoder has to be installed: {ways}"
        )


def _grey(file: Dataset, stored: NDArray[Any], view: View) -> NDArray[np.uint8]:
    values = apply_modality_lut(stored, file).astype(np.float64)
    if not np.isfinite(values).all():
        raise Unreadable("some of its pixels are no numbers")
    own = _own_window(file)
    if view.window:
        shades = _linear(values, *view.window)
    elif "VOILUTSequence" in file:
        table = file.VOILUTSequence[0].LUTDescriptor
        shades = apply_voi(stored, file).astype(np.float64) / (2 ** int(table[2]) - 1)
    elif own and file.get("VOILUTFunction") == "SIGMOID":
        centre, width = own
        shades = 1 / (1 + np.exp(-4 * (values - centre) / width))
    elif own and file.get("VOILUTFunction") == "LINEAR_EXACT":
        centre, width = own
        shades = (values - centre) / width + 0.5
    elif own:
        shades = _linear(values, *own)
    else:
        shades = _spread(values, stored != file.get("PixelPaddingValue"))
    if file.PhotometricInterpretation == "MONOCHROME1":
        shades = 1 - shades
    return np.rint(np.clip(shades, 0, 1) * 255).astype(np.uint8)


def _own_window(file: Dataset) -> tuple[float, float] | None:
    """Centre and width, the first where there are several."""
    given = [file.get(name) for name in ("WindowCenter", "WindowWidth")]
    if any(value is None or value == "" for value in given):
        return None
    centre, width = (float(np.atleast_1d(np.asarray(value, np.float64))[0]) for value in given)
    return (centre, width) if width > 0 else None


def _linear(values: NDArray[np.float64], centre: float, width: float) -> NDArray[np.float64]:
    """The window's values from 0 to 1, counted as the standard does: from the first of them to the last."""
    if width <= 1:
        return (values > centre - 0.5).astype(np.float64)
    return (values - (centre - 0.5)) / (width - 1) + 0.5


def _spread(values: NDArray[np.float64], shown: NDArray[np.bool_] | bool) -> NDArray[np.float64]:
    """All values from 0 to 1, but for what only pads the image."""
    counted = values[np.broadcast_to(shown, values.shape)]
    low, high = (counted.min(), counted.max()) if counted.size else (0.0, 0.0)
    return (values - low) / (high - low) if high > low else np.zeros_like(values)
