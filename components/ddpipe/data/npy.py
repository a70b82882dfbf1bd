"""Arrays of .npy files, from a mapping of the file."""

from __future__ import annotations

import io
import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = 2**16
"""Bytes in which the header of such a file ends."""


def array_in(data: mmap.mmap) -> NDArray[Any]:
    """The array of a .npy file: a view of the mapping, which stays open with it.

    Raises:
        ValueError: It is none, is cut off, or holds Python objects.
    """
    start = io.BytesIO(data[:HEADER])
    version = np.lib.format.read_magic(start)
    if version != (1, 0):
        raise ValueError(f"its version is {version}, not (1, 0)")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(start)
    if is_fortran or dtype.hasobject:
        raise ValueError(f"it holds {dtype} in another order or as objects")
    count = math.prod(shape)
    if count * dtype.itemsize > len(data) - start.tell():
        raise ValueError(f"it has {len(data) - start.tell()} bytes for {dtype} {shape}")
    return np.frombuffer(data, dtype, count, start.tell()).reshape(shape)
