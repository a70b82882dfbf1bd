"""Finds images that look alike although their files differ: one picture, scaled or saved twice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import imagehash
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ddpipe.data.columns import Text

SIDE = 16  # a hash has SIDE by SIDE bits
DETAIL = 2 * SIDE  # pixels that the shorter side needs: smaller images have no hash
BANDS = 8  # hashes that differ in fewer bits than there are bands agree in one band at least
CROWD = 64  # larger groups that agree in a band only share a background, and are ignored


def perceptual_hash(image: Image.Image) -> str:
    """The difference hash, as the library imagehash has it, in hex; empty of an image without detail."""
    if min(image.size) < DETAIL:
        return ""
    # Green is most of what the eye sees; the library would convert and scale the whole image.
    small = image.getchannel(len(image.getbands()) // 2).reduce(max(1, min(image.size) // DETAIL))
    bits = imagehash.dhash(small, SIDE).hash
    return np.packbits(bits).tobytes().hex() if SIDE < bits.sum() < SIDE * (SIDE - 1) else ""


def near_duplicates(hashes: Text) -> list[tuple[int, int]]:
    """The pairs of images that look alike: of SIDE * SIDE bits fewer than BANDS differ."""
    places = np.flatnonzero(hashes != b"")
    if not len(places):
        return []
    bits = np.frombuffer(bytes.fromhex(hashes[places].tobytes().decode()), np.uint8).reshape(len(places), -1)
    close = {
        (first, second)
        for band in np.split(bits, BANDS, axis=1)
        for group in _equal(band)
        for first, second in combinations(group, 2)
        if np.bitwise_count(bits[first] ^ bits[second]).sum() < BANDS
    }
    return sorted((int(places[first]), int(places[second])) for first, second in close)


def _equal(band: NDArray[np.uint8]) -> Iterator[list[int]]:
    """Groups of equal rows, each in ascending order, without groups larger than `CROWD`."""
    _, groups, counts = np.unique(band, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(counts)
    several = (counts > 1) & (counts <= CROWD)  # most rows are like no other
    for start, end in zip((ends - counts)[several].tolist(), ends[several].tolist(), strict=True):
        yield order[start:end].tolist()
