"""Files with tensors: those of torch.save, which are not trusted, and the pieces of a checkpoint.

From a file of torch.save, tensors and plain values come out, and no code runs.

Pieces: ranks that have shares of a checkpoint's tensors each write their own rows, in files of bounded size.

<attempt>/step-00000120.pt                  small values, and which piece holds which rows; written last
<attempt>/step-00000120.rank-00003-0.pt     rows of some tensors, by their places in the states

For example, a weight of shape (10, 4) on three ranks, resumed by two:

    rank-00000-0.pt has rows 0 to 4, rank-00001-0.pt rows 4 to 8, rank-00002-0.pt rows 8 to 10
    of two ranks, the first needs rows 0 to 5: it reads two pieces, one after the other, and keeps these rows

torch.distributed.checkpoint has the same purpose, but reads its metadata with pickle, which runs what a file
says: files of a store are not trusted. Nor does it write to a `Store`.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_with_path

from ddpipe.errors import CorruptObject, NoSuchObject, first_line
from ddpipe.storage import Store

_ZIP = b"PK"  # how files begin since torch 1.6; older ones are plain pickles, read with the same care


def read_tensors(data: bytes) -> Any:  # noqa: ANN401 - any value can be saved
    """What `torch.save` wrote, on the CPU."""
    if not data:
        raise ValueError("it is empty")
    try:
        if data.startswith(_ZIP):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if any(item.compress_type != zipfile.ZIP_STORED for item in archive.infolist()):
                    raise ValueError("it is compressed, which torch.save never does")
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
    """Reject tensors of more values than the file has bytes for, as a stride of zero can describe."""
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


PIECE_BYTES = 2**28  # a rank holds one piece in memory at a time; a tensor's share is never cut
Rows = range  # rows of a tensor, along its first dimension


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank has of a tensor of this shape: the rows from `first` on, as `values`."""

    shape: tuple[int, ...]
    first: int
    values: Tensor


@dataclass(frozen=True, slots=True)
class Piece:
    """One file with rows of tensors, by their places in the states: the first, and the one after the last."""

    file: str
    sha256: str
    rows: dict[str, list[int]]


class UnreadableError(Exception):
    """A file of a checkpoint is missing, damaged, or not what it should be."""


def rows_of(rank: int, ranks: int, length: int) -> Rows:
    """The rows that a rank has of a tensor, as `fully_shard` divides them."""
    each = -(-length // ranks)
    return range(min(rank * each, length), min((rank + 1) * each, length))


def parted(states: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Share]]:
    """States without their shares, and the shares by their places."""
    leaves, _ = tree_flatten_with_path(states)
    shares = {keystr(path): value for path, value in leaves if isinstance(value, Share)}
    rest: dict[str, Any] = tree_map_with_path(
        lambda _, value: None if isinstance(value, Share) else value, states
    )
    return rest, shares


def joined(states: Mapping[str, Any], found: Mapping[str, object]) -> dict[str, Any]:
    """The inverse of `parted`: what was found takes its places."""
    whole: dict[str, Any] = tree_map_with_path(lambda path, value: found.get(keystr(path), value), states)
    return whole


def write_pieces(
    store: Store, stem: str, shares: Mapping[str, Share], size: int | None = None
) -> list[Piece]:
    """Write a rank's shares."""
    pieces = []
    for number, names in enumerate(_batches(shares, size or PIECE_BYTES)):
        content, key = io.BytesIO(), f"{stem}-{number}.pt"
        # Values of their own: a view would be written with all that it is a view of.
        owned = {
            name: shares[name].values.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name in names
        }
        torch.save(owned, content)
        data = content.getvalue()
        store.write(key, data)
        ends = {name: [shares[name].first, shares[name].first + len(shares[name].values)] for name in names}
        pieces.append(Piece(key, hashlib.sha256(data).hexdigest(), ends))
    return pieces


def _batches(shares: Mapping[str, Share], size: int) -> Iterator[list[str]]:
    """Names of the shares that have rows, in groups of about `size` bytes."""
    before, number = 0, 0
    sizes: dict[str, int] = {}
    for name, share in shares.items():
        bytes_ = share.values.numel() * share.values.element_size()
        if before and before + bytes_ > size:
            before, number = 0, number + 1
        before += bytes_
        sizes[name] = number
    present = [name for name in shares if len(shares[name].values)]
    for _, names in groupby(present, key=sizes.__getitem__):
        yield list(names)


def check_rows(pieces: Sequence[Piece], shapes: Mapping[str, Sequence[int]]) -> None:
    """Check that pieces have all rows of all tensors, each once, as far as a checkpoint says."""
    if odd := [name for name, shape in shapes.items() if not shape or min(shape) < 0]:
        raise UnreadableError(f"{odd[0]} has shape {shapes[odd[0]]}")
    places: dict[str, list[list[int]]] = {name: [] for name in shapes}
    for piece in pieces:
        for name, ends in piece.rows.items():
            if name not in places or len(ends) != 2 or not 0 <= ends[0] < ends[1]:  # noqa: PLR2004 - first, last
                raise UnreadableError(
                    f"{piece.file} has rows {ends} of {name}, which the tensor does not have"
                )
            places[name].append(ends)
    for name, found in places.items():
        edges = [0, *(edge for ends in sorted(found) for edge in ends), shapes[name][0]]
        if any(before != after for before, after in zip(edges[::2], edges[1::2], strict=True)):
            raise UnreadableError(f"rows of {name} are missing or duplicated")


def check_files(store: Store, pieces: Sequence[Piece]) -> None:
    """Check that the files of pieces are what was written; one is in memory at a time."""
    for piece in pieces:
        _proven(store, piece)


def read_shares(
    store: Store,
    pieces: Sequence[Piece],
    shapes: Mapping[str, Sequence[int]],
    wanted: Callable[[int], Rows],
) -> dict[str, Share]:
    """Shares of tensors, by their places; one piece is in memory at a time."""
    targets = {name: wanted(shape[0]) for name, shape in shapes.items()}
    found: dict[str, list[tuple[int, Tensor]]] = {name: [] for name in shapes}
    for piece in pieces:
        needed = {
            name: rows
            for name, (first, end) in piece.rows.items()
            if len(rows := range(max(first, targets[name].start), min(end, targets[name].stop)))
        }
        if needed:
            content = _content(store, piece, shapes)
            for name, rows in needed.items():
                first = piece.rows[name][0]
                part = content[name][rows.start - first : rows.stop - first].clone()
                found[name].append((rows.start, part))
        content = {}  # the next one takes its memory
    shares = {}
    for name, shape in shapes.items():
        parts = [part for _, part in sorted(found.pop(name), key=lambda one: one[0])]
        values = torch.cat(parts) if parts else torch.empty(0, *shape[1:])
        shares[name] = Share(tuple(shape), targets[name].start, values)
    return shares


def _content(store: Store, piece: Piece, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Tensors of one piece, of the shapes that they should have."""
    try:
        content = read_tensors(_proven(store, piece))
    except ValueError as error:
        raise UnreadableError(f"{piece.file} is not a piece of a checkpoint ({error})") from error
    tensors = content if isinstance(content, Mapping) else {}
    for name, (first, end) in piece.rows.items():
        value = tensors.get(name)
        if not isinstance(value, Tensor) or list(value.shape) != [end - first, *shapes[name][1:]]:
            raise UnreadableError(f"{piece.file} does not have rows {first} to {end} of {name}")
    return dict(tensors)


def _proven(store: Store, piece: Piece) -> bytes:
    try:
        return proven(store, piece.file, piece.sha256)
    except UnreadableError as problem:
        raise UnreadableError(f"{piece.file}: {problem}") from problem


def proven(store: Store, key: str, sha256: str) -> bytes:
    """The content of a file of a checkpoint."""
    try:
        data = store.read(key)
    except NoSuchObject as error:
        raise UnreadableError("it is missing") from error
    except CorruptObject as error:
        raise UnreadableError(error.seen) from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise UnreadableError("its content has changed since it was written")
    return data
