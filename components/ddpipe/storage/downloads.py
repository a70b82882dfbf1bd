"""Parts of a download: how often its connection may break, and unpacking what was stored with gzip."""

from __future__ import annotations

import time
import zlib

GZIP = 16 + zlib.MAX_WBITS
"""The window size with which zlib expects a gzip header."""

PROGRESS = 8 * 2**20
"""Bytes after which earlier breaks of a download are forgotten."""

BACKOFF = 0.5
"""Seconds; the n-th repetition of a request waits for 2^(n-1) times this, the first for nothing."""


class Breaks:
    """Counts how often the connection of one download breaks.

    A large object may take hours, in which short outages add up: after `PROGRESS` bytes the count starts
    again.
    """

    def __init__(self, retries: int) -> None:
        self._retries, self._breaks, self._since = retries, 0, 0

    def may_resume(self, done: int) -> bool:
        """Whether to connect again after `done` bytes; waits before it says so."""
        if done - self._since >= PROGRESS:
            self._breaks, self._since = 0, done
        self._breaks += 1
        if self._breaks > self._retries:
            return False
        time.sleep(BACKOFF * 2 ** (self._breaks - 1))
        return True


class Unpacker:
    """A gzip stream, of one member or several, unpacked piece by piece."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(GZIP)

    def unpacked(self, piece: bytes) -> bytes:
        """What the next piece holds; raises zlib.error if it is not gzip."""
        content = []
        while piece:
            if self._member.eof:
                self._member = zlib.decompressobj(GZIP)
            content.append(self._member.decompress(piece))
            piece = self._member.unused_data
        return b"".join(content)

    @property
    def is_whole(self) -> bool:
        """Whether the last member is at its end."""
        return self._member.eof
