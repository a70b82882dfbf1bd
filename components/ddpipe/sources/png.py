"""Whether a PNG has all of its pixels: how many bytes its stream should unpack to, and how many it does.

Source: Portable Network Graphics, third edition, W3C 2025, 5.3 (chunks), 7.2 (scanlines).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""By color type."""

SIGNATURE = 8
"""Bytes before the first chunk."""

HEADER = 2
"""Bytes of zlib's header; without it nothing checks the sum at the end, which Pillow ignores as well."""

PIECE = 2**20
"""Bytes that are unpacked at a time."""


def missing_bytes(data: bytes) -> int:
    """How many bytes of pixels a PNG lacks; it is one that Pillow has read, and not interlaced."""
    width, height, depth, color = struct.unpack(">IIBB", data[16:26])
    expected: int = height * (1 + -(-width * depth * CHANNELS[color] // 8))
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
