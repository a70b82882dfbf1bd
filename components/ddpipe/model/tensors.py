"""Files of torch.save that are not trusted: tensors and plain values come out, and no code runs."""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from typing import Any

import torch

_ZIP = b"PK"
"""How files begin since torch 1.6; older ones are plain pickles, read with the same care."""


def read_tensors(data: bytes) -> Any:  # noqa: ANN401 - any value can be saved
    """What `torch.save` wrote, on the CPU.

    Args:
        data: The file. It is read without running code, and it holds all the bytes that it needs in memory:
            torch.save never compresses, so a file that does is a trap for memory.

    Raises:
        ValueError: It is no such file, or holds more than tensors and plain values.
    """
    if not data:
        raise ValueError("it is empty")
    try:
        if data.startswith(_ZIP):
            _check_plain(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle's protocol: whether it can be read shows at once
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's own text advises to switch its protection off.
        raise ValueError("it holds Python objects beside tensors and plain values") from error
    except zipfile.BadZipFile as error:
        raise ValueError("it is not a file of torch.save, or it is cut short") from error
    except (RuntimeError, EOFError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(first_line(error)) from error


def _check_plain(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if any(item.compress_type != zipfile.ZIP_STORED for item in archive.infolist()):
            raise ValueError("it is compressed, which torch.save never does")


def first_line(error: BaseException) -> str:
    """The beginning of what a library says, which can be pages."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
