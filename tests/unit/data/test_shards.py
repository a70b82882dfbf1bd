"""Shards: the same images give the same file, and a damaged file is refused."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image
from samples import some_images
from stored import encode

from ddpipe.data import shards
from ddpipe.data.shards import (
    Images,
    JpegShard,
    cropped,
    encode_jpegs,
    open_shard,
    reduced,
    shard_key,
    verify,
    working_shape,
)
from ddpipe.errors import DatasetError

SHAPE = (4, 6, 1)


def test_images_come_back_memory_mapped(tmp_path: Path) -> None:
    images = some_images(5)
    shard, data = encode(images)
    (tmp_path / "s.npy").write_bytes(data)
    opened = open_shard(tmp_path / "s.npy", shard, SHAPE)
    found = list(opened.each(np.array([4, 0])))
    assert not any(image.flags.owndata or image.flags.writeable for image in found)
    np.testing.assert_array_equal(found, images[[4, 0]])


def test_the_same_images_give_the_same_file() -> None:
    images = some_images(5)
    assert encode(images) == encode(np.asfortranarray(images))


def test_a_shard_knows_its_file() -> None:
    shard, data = encode(some_images(5))
    assert (shard.count, shard.bytes, shard.kind) == (5, len(data), "raw")
    assert shard.sha256 == hashlib.sha256(data).hexdigest()


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    shard, data = encode(some_images(5))
    path = tmp_path / "s.npy"
    path.write_bytes(data)
    verify(path, shard)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DatasetError, match=r"s\.npy"):
        verify(path, shard)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", os.urandom(300)])
def test_a_file_that_is_no_array_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "s.npy").write_bytes(content)
    with pytest.raises(DatasetError, match="damaged") as caught:
        open_shard(tmp_path / "s.npy", encode(some_images(5))[0], SHAPE)
    assert caught.value.which == str(tmp_path / "s.npy")
    assert caught.value.seen != "None"


def test_pickled_objects_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(DatasetError, match="damaged"):
        open_shard(tmp_path / "s.npy", encode(some_images(5))[0], SHAPE)


def test_other_images_than_promised_are_refused(tmp_path: Path) -> None:
    shard, data = encode(some_images(5))
    (tmp_path / "s.npy").write_bytes(data)
    with pytest.raises(DatasetError, match=r"s\.npy.*the manifest says"):
        open_shard(tmp_path / "s.npy", replace(shard, count=6), SHAPE)
    np.save(tmp_path / "f.npy", some_images(5).astype(np.float32))
    with pytest.raises(DatasetError, match="float32"):
        open_shard(tmp_path / "f.npy", shard, SHAPE)


# JPEGs


def _jpegs(count: int, size: tuple[int, int] = (9, 7), mode: str = "RGB") -> list[bytes]:
    files = []
    for number in range(count):
        buffer = io.BytesIO()
        Image.new(mode, size, number * 20).save(buffer, "JPEG", quality=95)
        files.append(buffer.getvalue())
    return files


@pytest.mark.parametrize("count", [1, 3, 40, 300])
def test_a_jpeg_shard_is_what_tarfile_writes(count: int) -> None:
    files = [bytes(number % 700 + 1) for number in range(count)]
    sizes = " ".join(str(len(file)) for file in files)
    written = io.BytesIO()
    with tarfile.open(
        fileobj=written, mode="w", format=tarfile.PAX_FORMAT, pax_headers={shards.SIZES: sizes}
    ) as tar:
        for number, file in enumerate(files):
            member = tarfile.TarInfo(f"{number:06d}.jpg")
            member.size = len(file)
            tar.addfile(member, io.BytesIO(file))
    assert encode_jpegs(files)[1] == written.getvalue()


def test_jpegs_come_back_as_they_went_and_by_any_tar_reader(tmp_path: Path) -> None:
    files = _jpegs(5)
    shard, data = encode_jpegs(files)
    (tmp_path / "s.tar").write_bytes(data)
    opened = JpegShard(tmp_path / "s.tar", shard, (7, 7, 3))
    assert [opened.file(index) for index in range(5)] == files
    with tarfile.open(tmp_path / "s.tar") as tar:
        assert [tar.extractfile(member).read() for member in tar] == files  # type: ignore[union-attr]
    assert encode_jpegs(files) == (shard, data)
    assert (shard.kind, shard.count, shard_key(shard)) == ("jpeg", 5, f"shards/{shard.sha256}.tar")


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("L", 3), ("RGB", 3)])
def test_jpegs_are_read_from_their_center(mode: str, channels: int, tmp_path: Path) -> None:
    shard, data = encode_jpegs([*_jpegs(3, (9, 7), mode), *_jpegs(2, (7, 20), mode)])
    (tmp_path / "s.tar").write_bytes(data)
    opened = open_shard(tmp_path / "s.tar", shard, (7, 7, channels))
    images = np.stack(list(opened.each(np.array([2, 0, 4]))))
    assert images.shape == (3, 7, 7, channels)
    assert np.abs(images[..., 0].mean(axis=(1, 2)) - [40, 0, 20]).max() < 21
    assert images[1].max() < 3


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kept", [0, 2**20])
def test_images_are_reduced_as_by_prepare_kept_or_not(
    kept: int, channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "KEPT", kept)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 12, channels), np.uint8)
    shard, data = encode(images)
    (tmp_path / "s.npy").write_bytes(data)
    opened = open_shard(tmp_path / "s.npy", shard, (8, 12, channels))
    (small,) = reduced([opened], working_shape((8, 12, channels), 4))
    assert len(small) == 5
    pictures = [Image.fromarray(image.squeeze()).resize((6, 4), Image.Resampling.BICUBIC) for image in images]
    wanted = np.stack([np.asarray(picture).reshape(4, 6, channels) for picture in pictures])
    for chosen in ([2, 0], [2, 4, 2]):
        found = list(small.each(np.array(chosen)))
        np.testing.assert_array_equal(found, wanted[chosen])
        assert {image.dtype for image in found} == {np.dtype(np.uint8)}


class Black:
    """A shard of large black images that counts how many were read."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, 0

    def __len__(self) -> int:
        return self.count

    def each(self, indices: NDArray[np.int64]) -> list[Images]:
        self.read += len(indices)
        return [np.zeros((2048, 2048, 1), np.uint8) for _ in indices]


@pytest.mark.parametrize(("counts", "read"), [([100, 156], 1), ([100, 157], 2)], ids=repr)
def test_a_quarter_of_a_gigabyte_of_reduced_images_is_kept_and_no_more(counts: list[int], read: int) -> None:
    """Of kept images each is read once, however often it is asked for."""
    whole = [Black(count) for count in counts]
    first, second = reduced(whole, (1024, 1024, 1))
    for _ in range(2):
        assert [image.shape for image in second.each(np.array([99]))] == [(1024, 1024, 1)]
    assert [shard.read for shard in whole] == [0, read]
    assert [len(first), len(second)] == counts


@pytest.mark.parametrize("resolution", [0, 8, 12, 20])
def test_images_are_never_enlarged(resolution: int) -> None:
    assert working_shape((8, 12, 3), resolution) == (8, 12, 3)


@pytest.mark.parametrize("content", [b"x", os.urandom(2000), encode_jpegs(_jpegs(5))[1][:2000]])
def test_a_file_that_is_no_jpeg_shard_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(content)
    with pytest.raises(DatasetError, match="damaged"):
        open_shard(tmp_path / "s.tar", encode_jpegs(_jpegs(5))[0], (7, 7, 3))


def test_a_cut_off_jpeg_shard_is_refused_at_once(tmp_path: Path) -> None:
    """Not only when its last image is read; the error names its file."""
    shard, data = encode_jpegs(_jpegs(3))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        last = tar.getmembers()[-1]
    end = last.offset_data + last.size
    (tmp_path / "s.tar").write_bytes(data[:end])
    assert len(open_shard(tmp_path / "s.tar", shard, (7, 7, 3))) == 3
    (tmp_path / "s.tar").write_bytes(data[: end - 1])
    with pytest.raises(DatasetError, match=r"s\.tar.*3 images"):
        open_shard(tmp_path / "s.tar", shard, (7, 7, 3))
    (tmp_path / "s.tar").write_bytes(b"x" * 2000)
    with pytest.raises(DatasetError, match=r"s\.tar.*not a jpeg shard"):
        open_shard(tmp_path / "s.tar", shard, (7, 7, 3))


@pytest.mark.parametrize("content", [b"no jpeg", b""], ids=repr)
def test_an_image_that_is_damaged_inside_a_shard_is_named(content: bytes, tmp_path: Path) -> None:
    """The others are read."""
    shard, data = encode_jpegs([*_jpegs(2), content])
    (tmp_path / "s.tar").write_bytes(data)
    assert len(list(open_shard(tmp_path / "s.tar", shard, (7, 7, 3)).each(np.array([0, 1])))) == 2
    with pytest.raises(DatasetError, match=r"s\.tar.*image 2: "):
        list(open_shard(tmp_path / "s.tar", shard, (7, 7, 3)).each(np.array([2])))


@pytest.mark.parametrize("size", [(19, 7), (7, 19)])
def test_what_is_cut_away_is_as_much_on_both_sides(size: tuple[int, int], tmp_path: Path) -> None:
    """A white square in the middle of black."""
    image = Image.new("L", size, 0)
    image.paste(255, ((size[0] - 7) // 2, (size[1] - 7) // 2, (size[0] + 7) // 2, (size[1] + 7) // 2))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=100)
    shard, data = encode_jpegs([buffer.getvalue()])
    (tmp_path / "s.tar").write_bytes(data)
    [found] = open_shard(tmp_path / "s.tar", shard, (7, 7, 1)).each(np.array([0]))
    assert found.min() > 200


MANY = """
import resource, sys
from pathlib import Path
from ddpipe.data.shards import ShardRef, encode_jpegs, encode_pixels, open_shard
from ddpipe.errors import DatasetError
import numpy as np
from PIL import Image
import io
hard = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
buffer = io.BytesIO()
Image.new("L", (6, 4)).save(buffer, "JPEG")
kinds = [encode_pixels([bytes(4 * 6)], (4, 6, 1)), encode_jpegs([buffer.getvalue()])]
for number, (shard, data) in enumerate(kinds):
    (Path(sys.argv[1]) / str(number)).write_bytes(data)
try:
    opened = [
        open_shard(Path(sys.argv[1]) / str(number % 2), kinds[number % 2][0], (4, 6, 1))
        for number in range(100)
    ]
    print(sum(next(iter(shard.each(np.array([0])))).shape[0] for shard in opened))
except DatasetError as error:
    print(error)
"""


def _opened(folder: Path, hard: int) -> str:
    command = [sys.executable, "-c", MANY, str(folder), str(hard)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_more_shards_than_open_files_are_read(tmp_path: Path) -> None:
    """A process may have 40 files open, but raise that itself."""
    assert _opened(tmp_path, 400) == "400\n"


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="no file stays open")
def test_a_limit_of_open_files_is_not_damage(tmp_path: Path) -> None:
    said = _opened(tmp_path, 40)
    assert "a file of a dataset cannot be opened" in said
    assert "Too many open files (limit: 40 open files)" in said
    assert "ulimit -n" in said


@pytest.mark.parametrize("shape", [(40, 32, 3), (32, 60, 3)], ids=["rows", "columns"])
def test_an_image_smaller_than_the_manifest_says_is_named(
    tmp_path: Path, shape: tuple[int, int, int]
) -> None:
    ref, data = encode_jpegs([simplejpeg.encode_jpeg(np.zeros((32, 48, 3), np.uint8))])
    (tmp_path / "shard.tar").write_bytes(data)
    shard = open_shard(tmp_path / "shard.tar", ref, shape)
    with pytest.raises(DatasetError, match="image 0: it has 48x32 pixels"):
        list(shard.each(np.array([0])))


@pytest.mark.parametrize(("height", "is_read"), [(2**14, True), (2**14 + 1, False)])
def test_an_image_of_a_shard_has_at_most_268_million_pixels(
    height: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its header is looked at before: such an image takes a gigabyte."""
    jpeg = simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8))
    place = jpeg.index(b"\xff\xc0") + 5
    claimed = jpeg[:place] + height.to_bytes(2, "big") + (2**14).to_bytes(2, "big") + jpeg[place + 4 :]
    pixels = np.broadcast_to(np.uint8(7), (height, 2**14, 3))
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *_given: pixels)
    if is_read:
        assert cropped(claimed, (8, 8, 3)).tolist() == np.full((8, 8, 3), 7).tolist()
    else:
        with pytest.raises(ValueError, match="it has 16384x16385 pixels, the manifest says 8x8"):
            cropped(claimed, (8, 8, 3))


def test_a_shard_may_grow_to_64_mebibytes() -> None:
    """With another size the same images would be another version."""
    assert shards.SHARD_BYTES == 67_108_864
