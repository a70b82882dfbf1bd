"""Files of torch.save that are not trusted: tensors and plain values come out, and no code runs."""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch

_ZIP = b"PK"
"""How files begin since torch 1.6; older ones are plain pickles, read with the same care."""


def read_tensors(data: bytes) -> Any:  # noqa: ANN401 - any value can be saved
    """What `torch.save` wrote, on the CPU."""
    if not data:
        raise ValueError("it is empty")
    try:
        if data.startswith(_ZIP):
            _check_plain(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle's protocol: whether it can be read shows at once
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        _check_sizes(content, len(data))
    except pickle.UnpicklingError as error:
        # torch's own text advises to switch its protection off.
        raise ValueError("it holds Python objects besides tensors and plain values") from error
    except zipfile.BadZipFile as error:
        raise ValueError("it is not a file of torch.save, or it is cut short") from error
    except (RuntimeError, EOFError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(first_line(error)) from error
    return content


def _check_sizes(content: Any, size: int) -> None:  # noqa: ANN401 - any value can be saved
    """Reject tensors of more values than the file has bytes for, in however few bytes it describes them.

    One value may be repeated by a stride of zero, or not be stored at all: what copies such a tensor, or only
    tests its values, needs all the memory that it claims.
    """
    waiting, seen = [content], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            is_plain = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
            if not is_plain or value.numel() * value.element_size() > size:
                raise ValueError(
                    f"it holds a tensor of shape {tuple(value.shape)}, for which {size} bytes are not enough"
                    if is_plain
                    else "it holds a tensor that is sparse, quantized or without values"
                )
        elif isinstance(value, (Mapping, list, tuple, set)) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(chain(value.keys(), value.values()) if isinstance(value, Mapping) else value)


def _check_plain(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if any(item.compress_type != zipfile.ZIP_STORED for item in archive.infolist()):
            raise ValueError("it is compressed, which torch.save never does")


def first_line(error: BaseException) -> str:
    """The beginning of what a library says, which can be pages."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
