"""DICOM files as pictures: what a radiologist sees on the screen, in 8 bits.

The stored numbers become the scanner's units (rescale slope and intercept, or a lookup table), then gray by a
window: the user's, or the file's own. A file without one shows its values as they are if they have 8 bits, or
else spreads all of them over the grays. MONOCHROME1, where low means bright, is inverted. Padding is black.
Colors keep the upper 8 of their bits.

Source: DICOM PS3.3, C.7.5.1.1.2 (padding), C.7.6.3.1 (photometric interpretation), C.11.1 (modality LUT),
C.11.2 (VOI LUT).
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
from pydicom.pixels import apply_color_lut, apply_modality_lut, get_decoder, pixel_array
from pydicom.uid import DeflatedExplicitVRLittleEndian

from ddpipe.sources.base import ReadOptions, Unreadable

pydicom.config.settings.reading_validation_mode = (
    pydicom.config.IGNORE
)  # files often break rules that no pixel needs

NEEDED = ("PhotometricInterpretation", "BitsStored", "PixelRepresentation")  # pixels mean nothing without

GRAY = ("MONOCHROME1", "MONOCHROME2")

BYTE = 8  # bits of the pixels of a picture
LARGEST_INFLATED = 2**30  # bytes that a deflated file may become
_META = 144  # where a file's meta information begins, after its length in 4 bytes; PS3.10, 7.1


def size(data: bytes) -> tuple[int, int, int]:
    """Height, width and channels, from the header."""
    header = _read(data, stop_before_pixels=True)
    return header.Rows, header.Columns, 1 if header.PhotometricInterpretation in GRAY else 3


def picture(data: bytes, reading: ReadOptions, largest: int) -> Image.Image:
    """The image of a DICOM file, in mode L or RGB."""
    file = _read(data)
    frames = int(file.get("NumberOfFrames") or 1)
    if frames > 1 and not reading.first_frame:
        raise Unreadable(f"it has {frames} frames: `first_frame` uses the first of them")
    if file.Rows * file.Columns > largest:
        raise Unreadable(f"{file.Columns} by {file.Rows} pixels: it may be a decompression bomb")
    _check_decoder(file)
    values = pixel_array(file, index=0)
    if file.PhotometricInterpretation in GRAY:
        return Image.fromarray(_gray(file, values, reading))
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
    lacks = [name for name in NEEDED if name not in file]
    if lacks or "TransferSyntaxUID" not in file.file_meta:
        raise Unreadable(f"its header lacks {', '.join(lacks or ['TransferSyntaxUID'])}")
    return file


def _check_decoder(file: Dataset) -> None:
    """Name a missing decoder in one line; pydicom needs a page."""
    syntax = file.file_meta.TransferSyntaxUID
    if not syntax.is_compressed or syntax.is_deflated:
        return
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError as error:
        raise Unreadable(f"it is compressed as {syntax.name}, which no decoder supports") from error
    if not decoder.is_available:
        ways = "; or ".join(decoder.missing_dependencies)
        raise Unreadable(
            f"it is compressed as {syntax.name}, for which a decoder has to be installed: {ways}"
        )


def _gray(file: Dataset, stored: NDArray[Any], reading: ReadOptions) -> NDArray[np.uint8]:
    values = apply_modality_lut(stored, file).astype(np.float64)
    if not np.isfinite(values).all():
        raise Unreadable("some of its pixels are NaN or infinite")
    padding = _padding(file, stored)
    shades = _shades(file, values, padding, reading)
    if file.PhotometricInterpretation == "MONOCHROME1":
        shades = 1 - shades
    shades[padding] = 0
    return np.rint(np.clip(shades, 0, 1) * 255).astype(np.uint8)


def _shades(
    file: Dataset, values: NDArray[np.float64], padding: NDArray[np.bool_], reading: ReadOptions
) -> NDArray[np.float64]:
    """Gray from 0 to 1, before inversion; values outside the window may lie beyond."""
    own, function = _own_window(file), file.get("VOILUTFunction")
    if reading.window:
        return _linear(values, *reading.window)
    if file.get("VOILUTSequence"):
        return _looked_up(file, file.VOILUTSequence[0], values)
    if not own:
        return values / (2**file.BitsStored - 1) if _is_plain(file) else _spread(values, ~padding)
    center, width = own
    if function == "SIGMOID":
        return 1 / (1 + np.exp(-4 * (values - center) / width))
    if function == "LINEAR_EXACT":
        return (values - center) / width + 0.5
    return _linear(values, center, width)


def _is_plain(file: Dataset) -> bool:
    """Whether the stored numbers are grays as screens show them: 8 bits at most, and in no other unit."""
    is_scaled = "ModalityLUTSequence" in file or (
        (float(file.get("RescaleSlope") or 1), float(file.get("RescaleIntercept") or 0)) != (1, 0)
    )
    return file.BitsStored <= BYTE and not file.PixelRepresentation and not is_scaled


def _padding(file: Dataset, stored: NDArray[Any]) -> NDArray[np.bool_]:
    """Which pixels only fill the rectangle: one stored value, or a range of them."""
    first = file.get("PixelPaddingValue")
    if first is None:
        return np.zeros(stored.shape, np.bool_)
    last = file.get("PixelPaddingRangeLimit", first)
    padding: NDArray[np.bool_] = (stored >= min(first, last)) & (stored <= max(first, last))
    return padding


def _looked_up(file: Dataset, table: Dataset, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Grays from a table of the file; pydicom's own function reads 256 of 4,096 entries of 8 bits."""
    count, first, bits = (int(number) for number in table.LUTDescriptor)
    data = table.LUTData
    if isinstance(data, bytes):
        narrow = len(data) < 2 * (count or 2**16)
        order = "<" if file.file_meta.TransferSyntaxUID.is_little_endian else ">"
        data = np.frombuffer(data, np.uint8 if narrow else f"{order}u2")
    entries = np.asarray(data, np.float64)[: count or 2**16]
    if first >= 2**15 and values.min() < 0:
        first -= 2**16  # written without its sign, as the stored numbers have none
    index = np.clip(np.rint(values) - first, 0, len(entries) - 1).astype(np.int64)
    shades: NDArray[np.float64] = entries[index] / (2**bits - 1)
    return shades


def _own_window(file: Dataset) -> tuple[float, float] | None:
    """Center and width, the first where there are several."""
    given = [file.get(name) for name in ("WindowCenter", "WindowWidth")]
    if any(value is None or value == "" for value in given):
        return None
    center, width = (float(np.atleast_1d(np.asarray(value, np.float64))[0]) for value in given)
    return (center, width) if width > 0 else None


def _linear(values: NDArray[np.float64], center: float, width: float) -> NDArray[np.float64]:
    """The window's values from 0 to 1, counted as the standard does: from the first of them to the last."""
    if width <= 1:
        return (values > center - 0.5).astype(np.float64)
    return (values - (center - 0.5)) / (width - 1) + 0.5


def _spread(values: NDArray[np.float64], shown: NDArray[np.bool_]) -> NDArray[np.float64]:
    """All values that are shown from 0 to 1."""
    counted = values[shown]
    low, high = (counted.min(), counted.max()) if counted.size else (0.0, 0.0)
    return (values - low) / (high - low) if high > low else np.zeros_like(values)
