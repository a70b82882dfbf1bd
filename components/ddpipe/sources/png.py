"""Whether a PNG has all of its pixels: how many bytes its stream should unpack to, and how many it does.

Source: Portable Network Graphics, third edition, W3C 2025, 5.3 (chunks), 7.2 (scanlines), 8.1 (interlacing).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""By colour type."""

PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Of an interlaced image: first column and row, and their steps."""

SIGNATURE = 8
"""Bytes before the first chunk."""

HEADER = 2
"""Bytes of zlib's header; without it nothing checks the sum at the end, which Pillow ignores as well."""

PIECE = 2**20
"""Bytes that are unpacked at a time."""


def missing_bytes(data: bytes) -> int:
    """How many bytes of pixels a PNG lacks; data that is no PNG raises `struct.error` or `zlib.error`."""
    width, height, depth, colour, interlaced = struct.unpack(">IIBBxxB", data[16:29])
    passes = PASSES if interlaced else ((0, 0, 1, 1),)
    expected = 0
    for left, top, across, down in passes:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            expected += rows * (1 + -(-columns * depth * CHANNELS[colour] // 8))
    packed = b"".join(_chunks(data, b"IDAT"))[HEADER:]
    found, stream = 0, zlib.decompressobj(-zlib.MAX_WBITS)
    while packed and found < expected:
        found += len(stream.decompress(packed, PIECE))
        packed = stream.unconsumed_tail
    return max(0, expected - found)


def _chunks(data: bytes, kind: bytes) -> Iterator[bytes]:
    """The contents of a PNG's chunks of one kind."""
    place = SIGNATURE
    while place + 8 <= len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == kind:
            yield data[place + 8 : place + 8 + length]
        place += length + 12
