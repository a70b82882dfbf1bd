"""Which source reads a path: detected from what is there, or rejected with what was found."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from odd_server import answering
from s3_server import BUCKET, Server
from samples import a_folder, an_image

from ddpipe.data.cache import default_cache
from ddpipe.errors import ParameterError, SourceError
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.sources import detecting, named
from ddpipe.sources.base import inflated
from ddpipe.sources.detecting import Detected, detected
from ddpipe.storage import open_store
from ddpipe.storage.sealed import sha256

TABLE = "file,kind\n" + "".join(f"{number},{'ab'[number % 2]}\n" for number in range(12))


def _tar(path: Path, files: Mapping[str, bytes], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def _samples(count: int = 12) -> dict[str, bytes]:
    """The files of a WebDataset; the images are not read here."""
    found: dict[str, bytes] = {}
    for number in range(count):
        found |= {f"{number}.png": b"image", f"{number}.cls": b"ab"[number % 2 : number % 2 + 1]}
    return found


def _pictures(root: Path, tables: Mapping[str, str], count: int = 12) -> Path:
    for number in range(count):
        an_image(root / "pictures" / f"{number}.png", seed=number)
    for name, content in tables.items():
        (root / name).write_text(content)
    return root


def _batch(count: int = 20) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 3072), dtype=np.uint8)
    return pickle.dumps({b"data": pixels, b"labels": [number % 2 for number in range(count)]}, protocol=4)


def _seen(path: Path | str) -> str:
    with pytest.raises(SourceError) as caught:
        detected(str(path))
    return f"{caught.value.seen} | {caught.value.do}"


def test_class_folders_are_a_folder(tmp_path: Path) -> None:
    assert detected(str(a_folder(tmp_path, {"cat": 2, "dog": 2}))) == Detected("folder", str(tmp_path))


def test_class_folders_below_splits_are_a_folder(tmp_path: Path) -> None:
    for split in ("train", "test"):
        a_folder(tmp_path / split, {"cat": 2, "dog": 2})
    assert detected(str(tmp_path)).source == "folder"


@pytest.mark.parametrize("name", ["train.csv", "labels.csv", "labels.TSV"])
def test_a_table_beside_its_images_is_a_csv(name: str, tmp_path: Path) -> None:
    _pictures(tmp_path, {name: TABLE, "notes.txt": "no table"})
    assert detected(str(tmp_path)) == Detected("csv", str(tmp_path), name)
    assert detected(str(tmp_path / name)) == Detected("csv", str(tmp_path), name)


def test_the_usual_one_of_several_tables_counts(tmp_path: Path) -> None:
    _pictures(tmp_path, {"train.csv": TABLE, "sample_submission.csv": TABLE})
    assert detected(str(tmp_path)).table == "train.csv"


@pytest.mark.parametrize("text", ["id,file\n77,0\n", "file,kind\npictures\\0.png,a\n"])
def test_a_table_beside_one_folder_is_a_csv(text: str, tmp_path: Path) -> None:
    """It seems to name no image; but without it there are no classes, so what is wrong with it is said."""
    assert detected(str(_pictures(tmp_path, {"labels.csv": text}))).source == "csv"


def test_an_empty_table_beside_one_folder_is_rejected(tmp_path: Path) -> None:
    path = _pictures(tmp_path / "raw", {"labels.csv": ""})
    with pytest.raises(SourceError, match="it has 0 rows"):
        prepare(PrepareSpec(source_path=str(path), store=str(tmp_path / "store")))


def test_a_table_beside_a_folder_of_class_folders_is_no_csv(tmp_path: Path) -> None:
    a_folder(tmp_path / "images", {"cat": 2, "dog": 2})
    (tmp_path / "licences.csv").write_text("file,licence\nx,y\n")
    assert detected(str(tmp_path)).source == "folder"


def test_tars_with_labels_are_a_webdataset(tmp_path: Path) -> None:
    path = _tar(tmp_path / "shards" / "000.tar", _samples())
    assert detected(str(path)) == Detected("webdataset", str(path))
    assert detected(str(path.parent)) == Detected("webdataset", str(path.parent))


def test_idx_files_are_mnist_wherever_they_lie(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (raw / name).touch()
    assert detected(str(tmp_path)) == Detected("mnist", str(raw))
    assert detected(str(raw / "train-images-idx3-ubyte")) == Detected("mnist", str(raw))


def test_idx_files_of_clothes_are_known_by_their_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, content = "t10k-labels-idx1-ubyte.gz", gzip.compress(b"labels", mtime=0)
    (tmp_path / name).write_bytes(content)
    known = named.Download("nowhere", {name: sha256(content)})
    monkeypatch.setitem(named.DOWNLOADS, "fashion-mnist", known)
    assert detected(str(tmp_path)).source == "fashion-mnist"


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_no_more_is_unpacked_than_is_looked_at(compress: Callable[[bytes], bytes]) -> None:
    """A header may claim a name of gigabytes, which tarfile would read."""
    assert inflated(compress(bytes(2**20)), 1000) == bytes(1000)
    assert inflated(b"as it is", 1000) == b"as it is"


def test_what_is_downloaded_comes_over_tls_and_is_compared_with_its_hash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for known in named.DOWNLOADS.values():
        assert known.url.startswith("https://")
        assert {len(bytes.fromhex(digest)) for digest in known.sha256.values()} == {32}
    with answering(lambda _path: b"another file") as server:
        known = named.Download(server, {"labels.gz": sha256(b"the file")})
        monkeypatch.setitem(named.DOWNLOADS, "mnist", known)
        with pytest.raises(SourceError, match=r"its SHA-256 is .* it is another file"):
            named.fetched("mnist")
    assert not [path for path in default_cache().rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"data_batch_1": b"", "batches.meta": b""}, "cifar10"),
        ({"meta": b"", "train": b"", "test": b""}, "cifar100"),
    ],
)
def test_cifar_is_detected_packed_and_unpacked(files: dict[str, bytes], source: str, tmp_path: Path) -> None:
    archive = _tar(tmp_path / "any.tar.gz", {f"cifar/{name}": data for name, data in files.items()}, "w:gz")
    assert detected(str(archive)) == Detected(source, str(archive))
    (tmp_path / "cifar").mkdir()
    for name in files:
        (tmp_path / "cifar" / name).touch()
    assert detected(str(tmp_path / "cifar")) == Detected(source, str(tmp_path / "cifar"))


def test_a_bucket_is_detected_like_a_folder(s3: Server, tmp_path: Path) -> None:
    a_folder(tmp_path, {"cat": 2, "dog": 2})
    store = open_store(f"s3://{BUCKET}/detected")
    for path in tmp_path.rglob("*.png"):
        store.upload(path, path.relative_to(tmp_path).as_posix())
    assert detected(store.uri) == Detected("folder", store.uri)


def test_the_look_at_a_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables at the top count even if there are more images than are looked at."""
    monkeypatch.setattr(detecting, "LOOKED_AT", 4)
    _pictures(tmp_path, {"labels.csv": TABLE})
    assert detected(str(tmp_path)).source == "csv"


# What is rejected


def test_a_path_that_does_not_exist_is_rejected(tmp_path: Path) -> None:
    assert "there is no such folder" in _seen(tmp_path / "nowhere")


def test_an_empty_folder_is_rejected_with_the_layouts(tmp_path: Path) -> None:
    seen = _seen(tmp_path)
    assert "there are no files in it" in seen
    assert all(layout in seen for layout in ("photos/cat/1.jpg", "labels.csv", "1.cls", "MNIST", "CIFAR"))


def test_images_in_no_class_folder_are_rejected(tmp_path: Path) -> None:
    for number in range(3):
        an_image(tmp_path / f"{number}.png")
    assert "3 images are in it, but not in a class folder: 0.png, 1.png, 2.png" in _seen(tmp_path)


def test_a_single_class_is_rejected_with_its_name(tmp_path: Path) -> None:
    a_folder(tmp_path / "raw", {"cat": 3})
    with pytest.raises(SourceError, match="only one class folder, 'cat'"):
        prepare(PrepareSpec(source_path=str(tmp_path / "raw"), store=str(tmp_path / "store")))


def test_files_that_are_no_images_are_counted(tmp_path: Path) -> None:
    for name in ("a.pdf", "b.pdf", "c.txt"):
        (tmp_path / name).touch()
    assert "none of its files is an image: 2 .pdf, 1 .txt" in _seen(tmp_path)


def test_class_folders_beside_a_table_of_them_are_rejected(tmp_path: Path) -> None:
    a_folder(tmp_path, {"cat": 2, "dog": 2})
    (tmp_path / "labels.csv").write_text("file,kind\ncat/0000.png,a\ndog/0000.png,b\n")
    seen = _seen(tmp_path)
    assert "class folders (cat, dog) and a table that names images (labels.csv)" in seen
    assert "`source` csv `table` labels.csv" in seen


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("photos.zip", "zip archive | Unpack it"),
        ("a.png", "it is one image"),
        ("a.parquet", "a file '.parquet'"),
    ],
)
def test_another_file_is_rejected_by_its_name(name: str, seen: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert seen in _seen(tmp_path / name)


def test_a_tar_of_class_folders_has_to_be_unpacked(tmp_path: Path) -> None:
    path = _tar(tmp_path / "photos.tar.gz", {"cat/0.jpg": b"", "dog/0.jpg": b""}, "w:gz")
    assert "it is a tar of cat/0.jpg, dog/0.jpg | Unpack it with tar -xf" in _seen(path)


def test_a_folder_with_such_a_tar_is_rejected_likewise(tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    _tar(tmp_path / "downloads" / "photos.tar", {"cat/0.jpg": b"", "dog/0.jpg": b""})
    assert "it is a tar of cat/0.jpg, dog/0.jpg | Unpack it with tar -xf" in _seen(tmp_path / "downloads")


def test_what_only_looks_like_a_tar_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "photos.tar").write_bytes(b"no tar")
    assert "not a readable tar" in _seen(tmp_path / "photos.tar")


# What follows from it


def test_a_path_without_a_source_is_prepared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a_folder(tmp_path / "photos", {"cat": 10, "dog": 10})
    caplog.set_level("INFO")
    prepared = prepare(PrepareSpec(source_path=str(tmp_path / "photos"), store=str(tmp_path / "store")))
    assert prepared.manifest.source["kind"] == "folder"
    assert prepared.manifest.name == "photos"
    assert "photos is read as source folder" in caplog.text
    assert "20 images, 2 classes, 6 × 4, gray" in caplog.text  # noqa: RUF001


def test_one_tar_is_prepared_without_its_neighbours(tmp_path: Path) -> None:
    files = {}
    for number in range(24):
        image = an_image(tmp_path / "one.png", seed=number).read_bytes()
        files |= {f"{number}.png": image, f"{number}.cls": b"ab"[number % 2 : number % 2 + 1]}
    path = _tar(tmp_path / "tars" / "000.tar", files)
    _tar(tmp_path / "tars" / "x000.tar", {"other.png": b"", "other.cls": b"c"})
    prepared = prepare(PrepareSpec(source_path=str(path), store=str(tmp_path / "store")))
    assert prepared.manifest.classes == ("a", "b")
    assert sum(split.count for split in prepared.manifest.splits.values()) == 24


def test_an_unpacked_cifar_is_prepared(tmp_path: Path) -> None:
    raw = tmp_path / "cifar-10-batches-py"
    raw.mkdir()
    (raw / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"plane", b"car"]}, protocol=4))
    for name in ("data_batch_1", "test_batch"):
        (raw / name).write_bytes(_batch())
    prepared = prepare(PrepareSpec(source_path=str(raw), store=str(tmp_path / "store")))
    assert prepared.manifest.classes == ("plane", "car")
    assert prepared.manifest.splits["test"].count == 20


def test_a_given_source_decides(tmp_path: Path) -> None:
    raw = _pictures(tmp_path / "raw", {"train.csv": TABLE})
    with pytest.raises(SourceError, match="only one class folder"):
        prepare(PrepareSpec(source="folder", source_path=str(raw), store=str(tmp_path / "store")))


def test_a_given_table_decides(tmp_path: Path) -> None:
    a_folder(tmp_path, {"cat": 2, "dog": 2})
    spec = PrepareSpec(source_path=str(tmp_path), table="labels.csv")
    assert spec.with_detected_source().source == "csv"


@pytest.mark.parametrize("part", ["", "labels.csv"])
def test_options_of_tables_find_the_table(part: str, tmp_path: Path) -> None:
    _pictures(tmp_path, {"labels.csv": TABLE, "licences.csv": "licence,by\nx,y\n"})
    spec = PrepareSpec(
        source_path=f"{tmp_path}/{part}".rstrip("/"), label_columns="kind"
    ).with_detected_source()
    assert (spec.source, spec.source_path, spec.table) == ("csv", str(tmp_path), "labels.csv")


def test_options_of_tables_outweigh_class_folders(tmp_path: Path) -> None:
    a_folder(tmp_path, {"cat": 2, "dog": 2})
    (tmp_path / "train.csv").write_text("StudyInstanceUID,kind,PatientID\n0,a,p\n")
    spec = PrepareSpec(source_path=str(tmp_path), label_columns="kind").with_detected_source()
    assert (spec.source, spec.table) == ("csv", "train.csv")


def test_options_of_tables_without_a_table_name_the_usual_one(tmp_path: Path) -> None:
    a_folder(tmp_path, {"cat": 2, "dog": 2})
    with pytest.raises(SourceError, match=r"there is no .*train\.csv"):
        prepare(PrepareSpec(source_path=str(tmp_path), label_columns="a", store=f"{tmp_path}-store"))


def test_options_of_another_source_are_rejected_once_it_is_known(tmp_path: Path) -> None:
    _pictures(tmp_path, {"train.csv": TABLE})
    with pytest.raises(ParameterError, match="`group_pattern` is for the sources folder, webdataset"):
        PrepareSpec(source_path=str(tmp_path), group_pattern="p").with_detected_source()


def test_without_a_path_the_source_is_the_digits() -> None:
    assert PrepareSpec().with_detected_source().source == PrepareSpec().name == "digits"


def test_a_table_in_a_folder_of_its_own_is_found(tmp_path: Path) -> None:
    _pictures(tmp_path, {})
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "labels.csv").write_text(TABLE)
    assert detected(str(tmp_path)) == Detected("csv", str(tmp_path), "meta/labels.csv")
