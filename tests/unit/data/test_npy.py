"""Arrays of files that are not trusted: read, or rejected as a ValueError before memory is allocated."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ddpipe.data.npy import array_in, array_of, mapped, to_bytes
from ddpipe.errors import DatasetError


def headed(header: str, content: bytes = b"") -> bytes:
    """A file with this header."""
    line = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + content


def archived(*, compressed: bool = False, **files: bytes) -> zipfile.ZipFile:
    file = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in files.items():
            archive.writestr(f"{name}.npy", content)
    return zipfile.ZipFile(file)


WRONG = {
    "many brackets": "(" * 8000,
    "many signs": "-" * 9000 + "1",
    "an open string": "'''abc",
    "a negative shape": "{'descr': '|u1', 'fortran_order': False, 'shape': (-1,), }",
    "terabytes": "{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "no description": "{'descr': [('a',)], 'fortran_order': False, 'shape': (1,), }",
    "another order": "{'descr': '|u1', 'fortran_order': True, 'shape': (1, 4), }",
}


@pytest.mark.parametrize("header", WRONG.values(), ids=WRONG)
def test_header_of_any_content_is_a_value_error(header: str) -> None:
    data = headed(header, b"1234")
    with pytest.raises(ValueError, match=r".+"):
        array_in(data)
    with pytest.raises(ValueError, match=r".+"):
        array_of(archived(found=data), "found")


def test_array_comes_back_from_bytes_and_archives() -> None:
    file = io.BytesIO()
    np.save(file, np.arange(2000).reshape(2, 1000))
    for array in (array_in(file.getvalue()), array_of(archived(compressed=True, a=file.getvalue()), "a")):
        assert np.array_equal(array, np.arange(2000).reshape(2, 1000))


def test_array_that_is_not_in_the_archive_is_named() -> None:
    with pytest.raises(ValueError, match="missing"):
        array_of(archived(), "missing")


def test_archive_cannot_claim_more_than_deflate_can_hold() -> None:
    archive = archived(a=headed(WRONG["terabytes"]))
    archive.getinfo("a.npy").file_size = 8 * 10**13
    with pytest.raises(ValueError, match="more than the archive can hold"):
        array_of(archive, "a")


@pytest.mark.parametrize(
    ("more", "is_dense"), [(0, False), (1, True)], ids=["1,100 times as much", "one byte more"]
)
def test_archive_may_become_so_much_larger_and_no_more(more: int, *, is_dense: bool) -> None:
    """It is refused either way, as it holds less; but only the second without a look at it."""
    archive = archived(a=headed(WRONG["many signs"]))
    item = archive.getinfo("a.npy")
    item.file_size = 1100 * item.compress_size + more
    with pytest.raises(ValueError, match=r".+") as caught:
        array_of(archive, "a")
    assert ("more than the archive can hold" in str(caught.value)) == is_dense


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0, 3), (1,), (2, 3)], ids=str)
def test_array_of_any_shape_comes_back(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    file = io.BytesIO()
    np.save(file, array)
    for found in (array_in(file.getvalue()), array_of(archived(a=file.getvalue()), "a")):
        assert (found.dtype, found.shape, found.tolist()) == (array.dtype, shape, array.tolist())


@pytest.mark.parametrize("missing", [1, 4])
def test_array_that_is_cut_short_is_refused_with_the_bytes_that_are_there(missing: int) -> None:
    content = to_bytes(np.arange(6, dtype=np.float32))
    with pytest.raises(ValueError, match=rf"it has {24 - missing} bytes for float32 \(6,\)"):
        array_in(content[:-missing])


def test_objects_are_not_written() -> None:
    with pytest.raises(ValueError, match="Object arrays"):
        to_bytes(np.array([print], dtype=object))


def test_a_file_that_cannot_be_mapped_is_named_with_the_reason(tmp_path: Path) -> None:
    """The limit of open files is named only if that is the reason."""
    for path, reason in ((tmp_path / "missing", "No such file"), (tmp_path / "empty", "empty file")):
        (tmp_path / "empty").touch()
        with pytest.raises(DatasetError, match=reason) as caught:
            mapped(path)
        assert caught.value.which == str(path)
        assert "limit" not in caught.value.seen
        assert "--verify" in caught.value.do
