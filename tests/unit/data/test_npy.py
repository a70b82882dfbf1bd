"""Arrays of files that are not trusted: read, or rejected as a ValueError before memory is allocated."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from ddpipe.data.npy import array_in, array_of


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
