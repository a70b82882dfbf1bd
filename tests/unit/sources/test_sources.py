"""Sources: each in its original format, on disk and in a bucket; each way in which it can be wrong."""

from __future__ import annotations

import errno
import gzip
import io
import os
import pickle
import shutil
import struct
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from s3_server import BUCKET, Proxy, Server
from samples import a_folder, an_image, labels_by_id, sample_ids

from ddpipe.data.manifest import SPLITS
from ddpipe.data.reader import open_split
from ddpipe.errors import SourceError, Unreachable
from ddpipe.prepare.prepare import Prepared, prepare
from ddpipe.prepare.report import data_report_html
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.sources import Survey, Table, arrays, listing, open_source
from ddpipe.sources.images import wrapped
from ddpipe.storage import open_store


def _spec(tmp_path: Path, source: str, path: str | Path, **more: object) -> PrepareSpec:
    spec = PrepareSpec(
        source=source, source_path=str(path), dataset_name="toys", store=str(tmp_path / "store")
    )
    return replace(spec, **more)


def _places(prepared: Prepared) -> dict[str, str]:
    return {name: split for split in SPLITS for name in sample_ids(prepared.manifest_uri, split)}


def _labels(prepared: Prepared) -> dict[str, object]:
    return labels_by_id(prepared.manifest_uri)


def _uploaded(folder: Path) -> str:
    """The same files in a bucket."""
    store = open_store(f"s3://{BUCKET}/raw")
    for path in folder.rglob("*"):
        if path.is_file():
            store.upload(path, path.relative_to(folder).as_posix())
    return store.uri


def _seen(spec: PrepareSpec) -> str:
    with pytest.raises(SourceError) as caught:
        prepare(spec)
    return f"{caught.value.which}: {caught.value.seen}"


# Class folders


def test_a_folder_in_a_bucket_is_the_same_data_set(s3: Server, tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "toys", {"ball": 10, "kite": 6})
    here = prepare(_spec(tmp_path, "folder", folder))
    there = prepare(_spec(tmp_path, "folder", _uploaded(folder), store=str(tmp_path / "other")))
    assert there.dataset_id == here.dataset_id


def test_an_unchanged_bucket_is_listed_but_not_read(proxy: Proxy, tmp_path: Path) -> None:
    uri = _uploaded(a_folder(tmp_path / "toys", {"ball": 10, "kite": 6}))
    prepare(_spec(tmp_path, "folder", uri))
    proxy.requests.clear()
    assert prepare(_spec(tmp_path, "folder", uri)).reused
    assert len(proxy.requests) == 1


def test_a_bucket_that_fails_in_the_middle_can_be_resumed(proxy: Proxy, tmp_path: Path) -> None:
    spec = _spec(tmp_path, "folder", _uploaded(a_folder(tmp_path / "toys", {"ball": 40, "kite": 40})))
    proxy.faults.extend([""] * 20 + [503] * 200)
    with pytest.raises(Unreachable):
        prepare(spec)
    proxy.faults.clear()
    assert prepare(spec).encoded == 80


def test_a_missing_split_comes_out_of_the_given_training_split(tmp_path: Path) -> None:
    a_folder(tmp_path / "toys" / "train", {"ball": 30, "kite": 30})
    a_folder(tmp_path / "toys" / "test", {"ball": 4, "kite": 5}, start=50)
    prepared = prepare(_spec(tmp_path, "folder", tmp_path / "toys"))
    assert prepared.manifest.classes == ("ball", "kite")
    assert prepared.manifest.split_rule["given"] == ["test", "train"]
    for name, split in _places(prepared).items():
        assert (split == "test") == name.startswith("test/")
    assert 2 <= prepared.manifest.splits["validation"].count < 20


def test_three_given_splits_are_just_those(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        a_folder(tmp_path / "toys" / split, {"ball": 3, "kite": 4})
    places = _places(prepare(_spec(tmp_path, "folder", tmp_path / "toys")))
    assert {(name.split("/")[0], split) for name, split in places.items()} == {
        ("train", "train"),
        ("val", "validation"),
        ("test", "test"),
    }


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_macs_archive_folder_is_no_class(where: str, s3: Server, tmp_path: Path) -> None:
    """`__MACOSX` is next to the data in each zip archive that a Mac makes."""
    a_folder(tmp_path / "toys" / "train", {"ball": 30, "kite": 30})
    a_folder(tmp_path / "toys" / "test", {"ball": 4, "kite": 5}, start=50)
    an_image(tmp_path / "toys" / "__MACOSX" / "train" / "0.png")
    path = tmp_path / "toys" if where == "disk" else _uploaded(tmp_path / "toys")
    assert prepare(_spec(tmp_path, "folder", path)).manifest.classes == ("ball", "kite")


def test_a_folder_beside_splits_is_refused(tmp_path: Path) -> None:
    """Otherwise train and test would be two of three classes."""
    for split in ("train", "Test", "unlabelled"):
        a_folder(tmp_path / "toys" / split, {"ball": 6, "kite": 6})
    seen = _seen(_spec(tmp_path, "folder", tmp_path / "toys"))
    assert "the folders Test, train look like splits, but unlabelled is next to them" in seen


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    a_folder(tmp_path / "toys", {"train": 6, "bus": 6})
    assert prepare(_spec(tmp_path, "folder", tmp_path / "toys")).manifest.classes == ("bus", "train")


@pytest.mark.parametrize(
    ("training", "other", "split"),
    [
        ("train", "eval", "test"),
        ("train", "dev", "validation"),
        ("train", "holdout", "test"),
        ("Training_Set", "Test_Set", "test"),
        ("train_images", "val-images", "validation"),
    ],
)
def test_splits_have_many_names(training: str, other: str, split: str, tmp_path: Path) -> None:
    a_folder(tmp_path / "toys" / training, {"ball": 20, "kite": 20})
    a_folder(tmp_path / "toys" / other, {"ball": 4, "kite": 4}, start=50)
    prepared = prepare(_spec(tmp_path, "folder", tmp_path / "toys"))
    assert prepared.manifest.classes == ("ball", "kite")
    places = _places(prepared)
    assert all((place == split) == name.startswith(other) for name, place in places.items())


def test_splits_without_one_for_training_are_refused(tmp_path: Path) -> None:
    for split in ("valid", "test"):
        a_folder(tmp_path / "toys" / split, {"ball": 6, "kite": 6})
    seen = _seen(_spec(tmp_path, "folder", tmp_path / "toys"))
    assert "the folders test, valid look like splits, but none of them is for training" in seen


@pytest.mark.parametrize(
    ("names", "renaming"),
    [
        (("teil_a", "teil_b"), "teil_a to train, teil_b to test"),
        (("train", "teil_b"), "teil_b to test"),
        (("teil_a", "train"), "teil_a to test"),
        (("teil_a", "test"), "teil_a to train"),
    ],
)
def test_folders_that_hold_the_same_folders_are_not_taken_for_classes(
    names: tuple[str, str], renaming: str, tmp_path: Path
) -> None:
    """Splits under any names would become classes; days and cameras below classes have to be named."""
    for number, name in enumerate(names):
        a_folder(tmp_path / "toys" / name, {"ball": 20 - 10 * number, "kite": 12}, start=50 * number)
    spec = _spec(tmp_path, "folder", tmp_path / "toys")
    with pytest.raises(SourceError) as caught:
        prepare(spec)
    assert f"the folders {', '.join(sorted(names))} all hold the folders ball, kite" in caught.value.seen
    assert f"rename {renaming}. If the outer" in caught.value.do
    prepared = prepare(replace(spec, group_pattern="[^/]*$"))
    assert prepared.manifest.classes == tuple(sorted(names))


def test_a_test_folder_without_labels_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a_folder(tmp_path / "toys" / "train", {"ball": 20, "kite": 20})
    for number in range(3):
        an_image(tmp_path / "toys" / "test" / f"{number}.png")
    assert prepare(_spec(tmp_path, "folder", tmp_path / "toys")).manifest.classes == ("ball", "kite")
    assert "test/ has no class folders: its 3 images are not labelled" in caplog.text


def test_accents_of_a_class_may_be_composed_or_not(tmp_path: Path) -> None:
    a_folder(tmp_path / "toys", {"caf\u00e9": 6, "cafe\u0301": 6, "kite": 6})
    assert open_source("folder", str(tmp_path / "toys"), Table()).survey().classes == ("caf\u00e9", "kite")
    survey = _survey_of(tmp_path / "more", "file,label", "{},caf\u00e9", "{},cafe\u0301", "{},kite")
    assert survey.classes == ("caf\u00e9", "kite")


def test_files_that_are_no_pictures_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = _class_folders(tmp_path)
    for name in ("Thumbs.db", "notes.txt"):
        (folder / "ball" / name).write_text("no picture")
    prepared = prepare(_spec(tmp_path, "folder", folder))
    assert prepared.skipped == []
    assert "2 files of" in caplog.text
    assert "are no pictures: ball/Thumbs.db, ball/notes.txt" in caplog.text


@pytest.mark.parametrize("source", ["auto", "folder", "csv"])
def test_links_out_of_the_folder_are_not_followed(source: str, tmp_path: Path) -> None:
    """An archive of somebody else may have brought them: they would be in the dataset and on its page."""
    folder = _class_folders(tmp_path)
    (folder / "ball" / "inside.png").symlink_to("../kite/0000.png")
    (folder / "ball" / "private.png").symlink_to(an_image(tmp_path / "private.png"))
    (folder / "ball" / "etc").symlink_to("/etc")
    (folder / "more").symlink_to(a_folder(tmp_path / "elsewhere", {"a": 3}) / "a")
    (tmp_path / "link").symlink_to(folder)  # the folder itself may well be one
    if source == "csv":
        names = [*(f"{name}/000{i}.png,{name}" for name in ("ball", "kite") for i in range(5))]
        names += ["ball/inside.png,ball", "ball/private.png,ball", "../private.png,kite"]
        (folder / "train.csv").write_text("\n".join(["image,label", *names, f"{tmp_path}/private.png,kite"]))
    spec = _spec(tmp_path, source, tmp_path / "link")
    for key, target in (("ball/private.png", f"{tmp_path}/private.png"), ("ball/etc", "/etc"), ("more", "")):
        assert f"{key}: is a link out of the folder, to {target}" in _seen(spec)
    prepared = prepare(replace(spec, skip_bad=True))
    assert prepared.manifest.classes == ("ball", "kite")
    assert _places(prepared).keys() == {
        "ball/inside.png",
        *(f"{name}/000{i}.png" for name in ("ball", "kite") for i in range(5)),
    }


def test_links_out_of_the_folder_are_followed_if_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPIPE_FOLLOW_LINKS", "1")
    folder = _class_folders(tmp_path)
    (folder / "doll").symlink_to(a_folder(tmp_path / "elsewhere", {"doll": 4}) / "doll")
    (folder / "ball" / "more.png").symlink_to(an_image(tmp_path / "one.png", seed=9))
    prepared = prepare(_spec(tmp_path, "folder", folder))
    assert prepared.manifest.classes == ("ball", "doll", "kite")
    assert "ball/more.png" in _places(prepared)


def test_a_table_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "toys", {"all": 6})
    (tmp_path / "private.csv").write_text("image,password\n0000.png,secret\n")
    (folder / "labels.csv").symlink_to(tmp_path / "private.csv")
    with pytest.raises(SourceError) as caught:
        prepare(_spec(tmp_path, "auto", folder))
    assert "password" not in str(caught.value)


def test_images_outside_class_folders_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = _class_folders(tmp_path)
    an_image(folder / "cover.png")
    (folder / "README.md").write_text("toys")
    manifest = prepare(_spec(tmp_path, "folder", folder)).manifest
    assert manifest.left_out == {"images outside the class folders": 1}
    assert "1 images outside the class folders" in caplog.text
    assert "cover.png" in caplog.text


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_empty_class_folders_are_named(
    where: str, s3: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a bucket a folder is an object without content whose key ends with a slash."""
    folder = _class_folders(tmp_path)
    path: Path | str = folder
    if where == "disk":
        (folder / "doll" / "old").mkdir(parents=True)
    else:
        path = _uploaded(folder)
        for key in ("doll/", "ball/"):
            open_store(path).write(key, b"")
    assert prepare(_spec(tmp_path, "folder", path)).manifest.classes == ("ball", "kite")
    assert "1 folders of" in caplog.text
    assert "have no images, so they do not become classes: doll" in caplog.text


def test_one_class_in_splits_is_refused_with_its_own_folders(tmp_path: Path) -> None:
    for split in ("train", "test"):
        a_folder(tmp_path / "toys" / split / "images", {"ball": 5, "kite": 5})
    with pytest.raises(SourceError) as caught:
        prepare(_spec(tmp_path, "folder", tmp_path / "toys"))
    assert "only one class folder, 'images', which holds the folders ball, kite" in caught.value.seen
    assert "move them up by one folder, out of 'images'" in caught.value.do


def test_a_name_that_is_not_utf_8_is_reported_and_can_be_skipped(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "toys", {"ball": 5, "kite": 5})
    (folder / "ball" / "0000.png").rename(folder / "ball" / os.fsdecode(b"caf\xe9.png"))
    spec = _spec(tmp_path, "folder", folder)
    assert "ball/caf\\xe9.png: its name is not UTF-8" in _seen(spec)
    assert prepare(replace(spec, skip_bad=True)).skipped == ["ball/caf\\xe9.png"]


def test_a_class_that_reorders_its_name_is_refused(tmp_path: Path) -> None:
    """Shown as `ballnpg`, while it is another: such characters are for text, not for names."""
    a_folder(tmp_path / "toys", {"ball": 5, "kite": 5, "ball\u202egpn": 5})
    spec = _spec(tmp_path, "folder", tmp_path / "toys")
    assert "ball\\u202egpn/0000.png: its name is not UTF-8, or has control characters" in _seen(spec)
    assert prepare(replace(spec, skip_bad=True)).manifest.classes == ("ball", "kite")


def _class_folders(tmp_path: Path) -> Path:
    return a_folder(tmp_path / "toys", {"ball": 5, "kite": 5})


def test_pipes_and_bad_links_are_reported_and_can_be_skipped(tmp_path: Path) -> None:
    """Reading a pipe would wait for ever, and following the circle never end."""
    folder = _class_folders(tmp_path)
    os.mkfifo(folder / "ball" / "pipe.png")
    (folder / "ball" / "circle").symlink_to(folder)
    (folder / "kite" / "itself.png").symlink_to("itself.png")
    (folder / "kite" / "gone.png").symlink_to("nothing.png")
    (folder / "puppet").symlink_to("nowhere")
    spec = _spec(tmp_path, "folder", folder)
    seen = _seen(spec)
    for problem in (
        "5 problems",
        "ball/pipe.png: it is neither a file nor a folder",
        "ball/circle: it is a link to a folder that contains it",
        "kite/itself.png: it cannot be read: Too many levels of symbolic links",
        "kite/gone.png: it is a broken link",
        "puppet: it is a broken link",
    ):
        assert problem in seen
    assert len(_places(prepare(replace(spec, skip_bad=True)))) == 10


def test_files_without_permission_are_reported_and_can_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root may read everything, the system is made to say no."""
    folder = _class_folders(tmp_path)
    a_folder(folder, {"doll": 3, "lost+found": 1})
    spec = _spec(tmp_path, "folder", folder)
    real_scandir, real_read = os.scandir, Path.read_bytes

    def scandir(path: str) -> object:
        if path.endswith(("doll", "lost+found")):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_scandir(path)

    def read_bytes(path: Path) -> bytes:
        if path.parent.name == "ball" and path.name in {"0000.png", "0001.png", "0002.png"}:
            code = (errno.EACCES, errno.EIO, errno.ENOENT)[int(path.stem)]
            raise OSError(code, os.strerror(code))
        return real_read(path)

    monkeypatch.setattr(listing, "scandir", scandir)
    assert "1 problem:\n  - doll/: this folder cannot be read: Permission denied" in _seen(spec)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    skipped = ["ball/0000.png", "ball/0001.png", "ball/0002.png", "doll/"]
    a_folder(folder, {"ball": 3}, start=10)
    assert prepare(replace(spec, skip_bad=True)).skipped == skipped
    monkeypatch.setattr(listing, "scandir", real_scandir)
    shutil.rmtree(folder / "doll")
    seen = _seen(spec)
    for problem in (
        "ball/0000.png: it cannot be read: Permission denied",
        "ball/0001.png: it cannot be read: Input/output error",
        "ball/0002.png: the file no longer exists",
    ):
        assert problem in seen


def test_one_class_is_refused_with_the_folder_below_that_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    folder = _class_folders(tmp_path).rename(tmp_path / "raw" / "images")
    with pytest.raises(SourceError) as caught:
        prepare(_spec(tmp_path, "folder", tmp_path / "raw"))
    assert "only one class folder, 'images', which holds the folders ball, kite" in caught.value.seen
    assert f"give {folder}" in caught.value.do


def test_one_class_is_refused_from_every_source(tmp_path: Path) -> None:
    path = _pictures(tmp_path / "pictures", "file,kind\n0.png,a\n1.png,a\n2.png,a\n")
    assert "it has only one class, 'a'" in _seen(_spec(tmp_path, "csv", path))
    image = an_image(tmp_path / "x.png").read_bytes()
    _tar(tmp_path / "tars" / "a.tar", {"0.png": image, "0.cls": b"x", "1.png": image, "1.cls": b"x"})
    assert "it has only one class, 'x'" in _seen(_spec(tmp_path, "webdataset", tmp_path / "tars"))
    a_folder(tmp_path / "single", {"ball": 3})
    (tmp_path / "single" / "kite").symlink_to("nowhere")
    assert "it has only one class, 'ball'" in _seen(
        _spec(tmp_path, "folder", tmp_path / "single", skip_bad=True)
    )


# Tables

KAGGLE = {"image_column": "StudyInstanceUID", "group_column": "PatientID"}
"""The columns of RANZCR CLiP."""

XRAYS = Table(image="StudyInstanceUID", group="PatientID")

LABELS = ("ETT - Abnormal", "NGT - Normal", "CVC - Normal")


def _ranzcr(root: Path, count: int = 60) -> list[list[object]]:
    """As Kaggle ships it: train.csv, train/*.jpg, and test/*.jpg without labels."""
    random = np.random.default_rng(0)
    rows: list[list[object]] = [
        [f"1.2.826.{number}", *random.integers(0, 2, 3), f"{number % 20:09x}"] for number in range(count)
    ]
    for number, row in enumerate(rows):
        an_image(root / "train" / f"{row[0]}.jpg", (40, 30), seed=number)
    an_image(root / "test" / "1.2.826.9999.jpg")
    _table(root, rows)
    return rows


def _table(root: Path, rows: list[list[object]], separator: str = ",", encoding: str = "utf-8") -> None:
    header = ["StudyInstanceUID", *LABELS, "PatientID"]
    text = "".join(separator.join(map(str, row)) + "\r\n" for row in [header, *rows])
    (root / "train.csv").write_bytes(text.encode(encoding))


def test_ranzcr_keeps_each_patient_in_one_split(tmp_path: Path) -> None:
    rows = _ranzcr(tmp_path / "xrays")
    prepared = prepare(_spec(tmp_path, "csv", tmp_path / "xrays", **KAGGLE))
    assert (prepared.manifest.task, prepared.manifest.classes) == ("multilabel", LABELS)
    assert _labels(prepared) == {row[0]: tuple(row[1:4]) for row in rows}
    patients = {(row[-1], _places(prepared)[str(row[0])]) for row in rows}
    assert len(patients) == 20
    assert open_split(prepared.manifest_uri, "train").labels.shape[1] == 3
    page = data_report_html(prepared.manifest, open_store(prepared.manifest_uri.partition("/datasets/")[0]))
    assert f"<td>{sum(row[1] for row in rows)}</td></tr>" in page  # type: ignore[misc]


@pytest.mark.parametrize(
    ("separator", "encoding"), [(";", "utf-8-sig"), ("\t", "utf-16"), ("|", "utf-8"), (",", "cp1252")]
)
def test_other_separators_and_encodings_say_the_same(separator: str, encoding: str, tmp_path: Path) -> None:
    rows = _ranzcr(tmp_path / "xrays")
    plain = list(open_source("csv", str(tmp_path / "xrays"), XRAYS).survey().samples)
    _table(tmp_path / "xrays", rows, separator, encoding)
    assert list(open_source("csv", str(tmp_path / "xrays"), XRAYS).survey().samples) == plain


def test_one_label_column_gives_classes_and_another_the_split(tmp_path: Path) -> None:
    lines = ["file,kind,part"]
    for number in range(12):
        an_image(tmp_path / "pictures" / f"{number}.png", seed=number)
        lines.append(f"{number}.png,{'ab'[number % 2]},{('train', 'val', 'test')[number % 3]}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    table = str(tmp_path / "labels.csv")
    spec = _spec(tmp_path, "csv", tmp_path / "pictures", table=table, split_column="part")
    prepared = prepare(spec)
    assert prepared.manifest.classes == ("a", "b")
    assert _places(prepared)["4.png"] == "validation"
    assert Counter(_places(prepared).values()) == {"train": 4, "validation": 4, "test": 4}


def test_all_problems_of_a_table_are_in_one_message(tmp_path: Path) -> None:
    rows = _ranzcr(tmp_path / "xrays")
    rows[3][1], rows[4][2], rows[5][-1], rows[6][0] = 2, "NaN", "", rows[7][0]
    _table(tmp_path / "xrays", rows)
    seen = _seen(_spec(tmp_path, "csv", tmp_path / "xrays", **KAGGLE))
    for problem in (
        "4 problems",
        "'ETT - Abnormal' is '2', not 0 or 1 (line 5: 1 in all)",
        "'NGT - Normal' is 'NaN': no label (line 6",
        "'PatientID' is empty (line 7",
        "the image 'train/1.2.826.7.jpg' is listed 2 times (lines 8, 9",
    ):
        assert problem in seen


def test_missing_images_are_all_named(tmp_path: Path) -> None:
    rows = _ranzcr(tmp_path / "xrays")
    for row in rows[:25]:
        (tmp_path / "xrays" / "train" / f"{row[0]}.jpg").unlink()
    seen = _seen(_spec(tmp_path, "csv", tmp_path / "xrays", **KAGGLE))
    assert "25 problems" in seen
    assert "1.2.826.0: the table names this image, but it does not exist" in seen


@pytest.mark.parametrize(
    "spelled",
    [
        "img\\{}.png",
        "./img/{}.png",
        "img/{}.PNG",
        "IMG/{}.png",
        "/home/somebody/img/{}.png",
        "C:\\Users\\somebody\\img\\{}.png",
        "img%2F{}.png",
    ],
)
def test_a_table_may_name_files_as_another_system_does(
    spelled: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["file,kind"]
    for number in range(12):
        an_image(tmp_path / "toys" / "img" / f"{number}.png", seed=number)
        lines.append(f"{spelled.format(number)},{'ab'[number % 2]}")
    (tmp_path / "toys" / "labels.csv").write_text("\n".join(lines))
    survey = open_source("csv", str(tmp_path / "toys"), Table(file="labels.csv")).survey()
    assert [sample.where for sample in survey.samples] == [f"img/{number}.png" for number in range(12)]
    assert "12 images have other names in labels.csv than their files" in caplog.text
    assert "img/0.png" in caplog.text


def test_accents_may_be_composed_or_not(tmp_path: Path) -> None:
    for number in range(6):
        an_image(tmp_path / "toys" / f"caf\u00e9 {number}.png", seed=number)
    rows = "".join(f"cafe\u0301 {number}.png,{'ab'[number % 2]}\n" for number in range(6))
    (tmp_path / "toys" / "labels.csv").write_text(f"file,kind\n{rows}", encoding="utf-8")
    survey = open_source("csv", str(tmp_path / "toys"), Table(file="labels.csv")).survey()
    assert (len(survey.samples), survey.problems) == (6, {})


def test_a_name_that_fits_two_files_in_another_spelling_is_refused_with_both(tmp_path: Path) -> None:
    for name in ("a.png", "A.PNG", "b.png"):
        an_image(tmp_path / "toys" / name)
    (tmp_path / "toys" / "labels.csv").write_text("file,kind\n.\\a.png,x\nb.png,y\n")
    survey = open_source("csv", str(tmp_path / "toys"), Table(file="labels.csv")).survey()
    (problem,) = survey.problems.values()
    assert "A.PNG" in problem
    assert "a.png" in problem


def test_a_relative_name_is_not_found_in_another_folder(tmp_path: Path) -> None:
    """It would get the label of another image."""
    for name in ("one/a.png", "one/b.png"):
        an_image(tmp_path / "toys" / name)
    (tmp_path / "toys" / "labels.csv").write_text("file,kind\ntwo/a.png,x\nb.png,y\n")
    survey = open_source("csv", str(tmp_path / "toys"), Table(file="labels.csv")).survey()
    assert list(survey.problems) == ["two/a.png"]


def _survey_of(root: Path, header: str, *rows: str, **columns: object) -> Survey:
    """A table whose rows name the images 0.png, 1.png, …, where they have {}."""
    for number in range(len(rows)):
        an_image(root / f"{number}.png", seed=number)
    lines = [header, *(row.format(f"{number}.png") for number, row in enumerate(rows))]
    (root / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    return open_source("csv", str(root), Table(file="labels.csv", **columns)).survey()


def test_a_column_called_label_is_the_label(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    survey = _survey_of(tmp_path, "file,Label,site", "{},cat,Rome", "{},dog,Oslo", "{},cat,Oslo")
    assert (survey.classes, survey.task) == (("cat", "dog"), "multiclass")
    assert "Label is read as the label of" in caplog.text
    assert "and site is not" in caplog.text


def test_columns_that_are_taken_for_labels_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    survey = _survey_of(tmp_path, "file,edema,is_male", "{},0,1", "{},1,0")
    assert survey.task == "multilabel"
    assert "the columns edema, is_male of" in caplog.text
    caplog.clear()
    _survey_of(tmp_path, "file,edema,is_male", "{},0,1", "{},1,0", labels=("edema", "is_male"))
    assert "are read as labels" not in caplog.text


def test_the_column_of_images_may_be_any(tmp_path: Path) -> None:
    survey = _survey_of(tmp_path, "id,label,path", "7,cat,{}", "8,dog,{}")
    assert (survey.classes, [sample.where for sample in survey.samples]) == (
        ("cat", "dog"),
        ["0.png", "1.png"],
    )


@pytest.mark.parametrize("sign", ["|", ";", ", "])
def test_labels_joined_in_a_cell_are_several(
    sign: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells = [sign.join(found) for found in (("edema", "mass"), ("mass",), ("edema", "pin"), ("pin",))]
    survey = _survey_of(tmp_path, "file,label", *(f'{{}},"{cell}"' for cell in cells))
    assert (survey.classes, survey.task) == (("edema", "mass", "pin"), "multilabel")
    assert [sample.label for sample in survey.samples] == [(1, 1, 0), (0, 1, 0), (1, 0, 1), (0, 0, 1)]
    assert "each is a label of its own" in caplog.text


def test_a_comma_in_a_name_joins_nothing(tmp_path: Path) -> None:
    survey = _survey_of(tmp_path, "file,label", '{},"Doe, Jane"', '{},"Doe, John"', "{},Smith")
    assert survey.classes == ("Doe, Jane", "Doe, John", "Smith")


def test_a_row_without_joined_labels_has_no_label(tmp_path: Path) -> None:
    rows = ("{},a|b", "{},b", "{},", "{},a")
    with pytest.raises(SourceError, match="no label"):
        _survey_of(tmp_path, "file,label", *rows)
    survey = _survey_of(tmp_path, "file,label", *rows, skip_unlabelled=True)
    assert [sample.label for sample in survey.samples] == [(1, 1), (0, 1), (1, 0)]


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "SEP=;"])
def test_the_first_line_for_excel_is_no_header(first: str, tmp_path: Path) -> None:
    survey = _survey_of(tmp_path, f"{first}\nfile;label", "{};a,b", "{};c,d")
    assert len(survey.samples) == 2
    with pytest.raises(SourceError, match=r"\(line 4: 1 in all\)"):
        _survey_of(tmp_path / "more", f"{first}\nfile;label", "{};a", "{};b;c")


def test_images_that_the_table_does_not_name_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _ranzcr(tmp_path / "xrays")
    open_source("csv", str(tmp_path / "xrays"), XRAYS).survey()
    assert "1 files below" in caplog.text
    assert "test/1.2.826.9999.jpg" in caplog.text


@pytest.mark.parametrize("column", ["image_column", "label_columns", "group_column", "split_column"])
def test_a_column_that_does_not_exist_is_named(column: str, tmp_path: Path) -> None:
    _ranzcr(tmp_path / "xrays")
    seen = _seen(_spec(tmp_path, "csv", tmp_path / "xrays", **{column: "Heart"}))
    assert "it has no column 'Heart'" in seen


def test_an_ambiguous_image_is_refused(tmp_path: Path) -> None:
    """The table does not say which of two files it means, unless it gives the path."""
    folder = tmp_path / "pictures"
    for number in range(6):
        an_image(folder / "train" / f"{number}.png", seed=number)
    an_image(folder / "test" / "0.png", seed=9)
    rows = [f"{number},{'ab'[number % 2]}" for number in range(6)]
    table = folder / "train.csv"
    table.write_text("\n".join(["file,kind", *rows]))
    seen = _seen(_spec(tmp_path, "csv", folder))
    assert "0: it could be test/0.png or train/0.png: give its path" in seen
    table.write_text("\n".join(["file,kind", "train/0.png,a", *rows[1:]]))
    prepared = prepare(_spec(tmp_path, "csv", folder))
    assert "train/0.png" in _places(prepared)


def test_a_table_that_does_not_exist_is_named(tmp_path: Path) -> None:
    (tmp_path / "xrays").mkdir()
    seen = _seen(_spec(tmp_path, "csv", tmp_path / "xrays", **KAGGLE))
    assert f"there is no {tmp_path}/xrays/train.csv and no train.csv" in seen


def test_a_table_is_found_from_the_working_directory_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ranzcr(tmp_path / "xrays")
    (tmp_path / "xrays" / "train.csv").rename(tmp_path / "labels.csv")
    monkeypatch.chdir(tmp_path)
    table = Table(file="labels.csv", image="StudyInstanceUID", group="PatientID")
    assert len(open_source("csv", "xrays", table).survey().samples) == 60


def _pictures(root: Path, text: str | bytes, count: int = 6) -> str:
    """Images 0.png, 1.png, …, and a table of them; where they are."""
    for number in range(count):
        an_image(root / f"{number}.png", seed=number)
    (root / "train.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(root)


def _refusal(root: Path, text: str | bytes, **columns: object) -> str:
    with pytest.raises(SourceError) as caught:
        open_source("csv", _pictures(root, text), replace(Table(), **columns)).survey()
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "cells"), [("1.png", 1), ("1.png,a,b", 3), ("1,5.png,a", 3), ("1.png,a,", 3)]
)
def test_a_row_with_more_or_fewer_cells_than_the_header_is_refused(
    row: str, cells: int, tmp_path: Path
) -> None:
    assert f"it has {cells} cells, the header has 2 (line 3: 1 in all)" in _refusal(
        tmp_path, f"file,kind\n0.png,a\n{row}\n2.png,b\n"
    )


def test_a_quote_that_swallows_the_rest_of_the_table_is_refused(tmp_path: Path) -> None:
    refusal = _refusal(tmp_path, 'file,kind\n0.png,a\n1.png,"b\n2.png,a\n3.png,b\n')
    assert "it is not a valid CSV table" in refusal
    assert "the row from line 3 on" in refusal


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    text = 'file,kind,note\n0.png,a,"two\nlines"\n\n,,\n1.png,,x\n'
    assert "'kind' is '': no label (line 6: 1 in all)" in _refusal(tmp_path, text, labels=("kind",))


@pytest.mark.parametrize("first", ["0.png,a", "a,0.png"])
def test_a_table_without_a_header_is_refused(first: str, tmp_path: Path) -> None:
    """Its first image would be lost."""
    seen = _refusal(tmp_path, f"{first}\n{first.replace('0', '1')}\n")
    assert "it has no header: its first row names the image '0.png'" in seen


def test_a_column_may_have_the_name_of_an_image(tmp_path: Path) -> None:
    path = _pictures(tmp_path / "pictures", "image,kind\n0,a\n1,b\n")
    an_image(Path(path) / "image.png")
    assert open_source("csv", path, Table()).survey().classes == ("a", "b")


@pytest.mark.parametrize("columns", [{"labels": ("kind", "kind")}, {"labels": ("file",)}, {"group": "file"}])
def test_a_column_has_one_meaning(columns: dict[str, object], tmp_path: Path) -> None:
    assert "is given more than once" in _refusal(tmp_path, "file,kind\n0.png,a\n1.png,b\n", **columns)


@pytest.mark.parametrize(
    ("text", "named"),
    [("file,kind,sure\n0.png,cat,0.9\n", True), ("file,a,b\n0.png,1,-1\n", False)],
    ids=["another column", "uncertain"],
)
def test_columns_that_hold_no_labels_can_be_left_out(text: str, named: bool, tmp_path: Path) -> None:
    """By default all columns but the first are labels."""
    seen = _refusal(tmp_path, text)
    assert ("`label_columns` names the columns of labels" in seen) is named


def test_spaces_around_the_names_of_columns_do_not_count(tmp_path: Path) -> None:
    path = _pictures(tmp_path, "file, a , b\n0.png,0,1\n1.png, 1,0\n")
    spec = PrepareSpec(source="csv", source_path=path, label_columns="a, b")
    assert open_source("csv", path, spec.columns).survey().classes == ("a", "b")


def test_control_characters_are_refused(tmp_path: Path) -> None:
    assert "'kind' is 'a\\\\x00': it has control characters (line 2" in _refusal(
        tmp_path, "file,kind\n0.png,a\0\n1.png,b\n"
    )
    assert "Save it as UTF-8" in _refusal(tmp_path, "file,kind\n0.png,a\n1.png,b\n".encode("utf-16-le"))


def test_one_image_under_two_names_is_refused(tmp_path: Path) -> None:
    refusal = _refusal(tmp_path, "file,kind\n0,a\n0.png,b\n1.png,b\n")
    assert "the image '0.png' is listed 2 times (lines 2, 3: 2 in all)" in refusal


def test_missing_labels_and_images_are_in_one_message(tmp_path: Path) -> None:
    an_image(tmp_path / "old" / "2.png")
    refusal = _refusal(tmp_path, "file,kind\n0.png,\n1.png,NA\n7.png,a\n8.png,b\n2,a\n3.png,b\n")
    for problem in (
        "4 problems",
        "'kind' is '': no label (line 2: 1 in all)",
        "'kind' is 'NA': no label (line 3: 1 in all)",
        "the table names this image, but it does not exist (lines 4, 5: 2 in all)",
        "it could be 2.png or old/2.png: give its path (line 6: 1 in all)",
        "`skip_bad` leaves out those without a label",
    ):
        assert problem in refusal


def _read_back(path: str) -> dict[str, str] | None:
    """The class of each image, or None if the table or a row is refused."""
    try:
        survey = open_source("csv", path, Table()).survey()
    except SourceError:
        return None
    labels = {sample.id: survey.classes[int(str(sample.label))] for sample in survey.samples}
    return None if survey.problems else labels


def test_a_slip_in_a_table_gives_no_image_another_s_label(tmp_path: Path) -> None:
    """A character too many or too few, anywhere below the header."""
    random = np.random.default_rng(0)
    own = {f"{number}.png": f"class {number}" for number in range(6)}
    header, body = "file,kind\n", "".join(f"{name},{label}\n" for name, label in own.items())
    _pictures(tmp_path, "")
    accepted = 0
    for _ in range(300):
        place = int(random.integers(len(body)))
        slip = str(random.choice(['"', ",", "\n", "\r", ";", " ", ""]))
        text = header + body[:place] + slip + body[place + (not slip) :]
        (tmp_path / "train.csv").write_bytes(text.encode())
        labels = _read_back(str(tmp_path)) or {}
        changed = {name for name, label in labels.items() if label != own[name]}
        accepted += bool(labels)
        assert len(changed) <= 1, "but for a slip in the label itself"
        assert not labels or labels.keys() == own.keys(), "no image is lost"
        assert not {labels[name] for name in changed} & set(own.values())
    assert accepted > 20


def test_rows_without_a_label_are_left_out_and_counted_if_so_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _pictures(tmp_path, "file,a,b\n0.png,,0\n1.png,0,1\n2.png,1,nan\n3.png,1,1\n")
    survey = open_source("csv", path, Table(skip_unlabelled=True)).survey()
    assert [sample.id for sample in survey.samples] == ["1.png", "3.png"]
    assert f"2 rows without a label of {path}/train.csv are left out, of 4 in all" in caplog.text


def test_a_table_without_one_label_is_refused_even_so(tmp_path: Path) -> None:
    assert "no row has a label" in _refusal(tmp_path, "file,kind\n0.png,\n1.png,\n", skip_unlabelled=True)


def test_rows_of_training_never_become_test_rows(tmp_path: Path) -> None:
    text = "file,kind,part\n0.png,a,train\n1.png,b,val\n2.png,b,train\n"
    assert "'part' puts no row into test" in _refusal(tmp_path, text, split="part")
    assert "'part' puts no row into train" in _refusal(tmp_path, text.replace("train", "test"), split="part")


@pytest.mark.parametrize("source", ["folder", "csv", "webdataset", "mnist", "cifar10"])
def test_a_path_that_does_not_exist_is_called_so(source: str, tmp_path: Path) -> None:
    assert "nowhere: there is no such folder" in _seen(_spec(tmp_path, source, tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    assert "file: it is a file, not a folder" in _seen(_spec(tmp_path, source, tmp_path / "file"))


def test_a_group_that_the_table_itself_tears_apart_is_refused(tmp_path: Path) -> None:
    lines = ["file,kind,who,part"]
    for number in range(12):
        an_image(tmp_path / "pictures" / f"{number}.png", seed=number)
        lines.append(f"{number},{'ab'[number % 2]},p{number // 4},{('train', 'val', 'test')[number % 3]}")
    (tmp_path / "pictures" / "train.csv").write_text("\n".join(lines))
    spec = _spec(tmp_path, "csv", tmp_path / "pictures", group_column="who", split_column="part")
    assert "group 'p0' is in test, train, validation" in _seen(spec)


# The original files of MNIST and CIFAR


def _idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def _mnist(root: Path, *, packed: bool) -> NDArray[np.uint8]:
    """Both pairs of files; the images of training."""
    root.mkdir()
    random = np.random.default_rng(0)
    for prefix, count in (("t10k", 20), ("train", 60)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", np.arange(count, dtype=np.uint8) % 10)):
            data = _idx(array)
            path = root / f"{prefix}-{name}-ubyte"
            path.with_name(path.name + ".gz" * packed).write_bytes(gzip.compress(data) if packed else data)
    return images


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("source", ["mnist", "fashion-mnist"])
def test_idx_files_arrive_pixel_by_pixel(source: str, packed: bool, tmp_path: Path) -> None:
    images = _mnist(tmp_path / "idx", packed=packed)
    prepared = prepare(_spec(tmp_path, source, tmp_path / "idx"))
    assert len(prepared.manifest.classes) == 10
    assert prepared.manifest.splits["test"].count == 20
    for split in ("train", "validation"):
        reader = open_split(prepared.manifest_uri, split)
        numbers = [int(name.removeprefix("train/")) for name in reader.sample_ids]
        np.testing.assert_array_equal(reader.images(range(len(reader)))[..., 0], images[numbers])
        assert reader.labels.tolist() == [number % 10 for number in numbers]


@pytest.mark.parametrize("content", [_idx(np.zeros((3, 28, 28), np.uint8))[:-1], b"<html>", b""])
def test_a_damaged_idx_file_is_named(content: bytes, tmp_path: Path) -> None:
    _mnist(tmp_path / "idx", packed=False)
    path = tmp_path / "idx" / "train-images-idx3-ubyte"
    path.write_bytes(content)
    assert f"{path}: it is not a complete idx file" in _seen(_spec(tmp_path, "mnist", tmp_path / "idx"))


def test_an_idx_file_that_changes_meanwhile_gives_the_images_that_were_listed(tmp_path: Path) -> None:
    images = _mnist(tmp_path / "idx", packed=False)
    source = open_source("mnist", str(tmp_path / "idx"), Table())
    train = [sample for sample in source.survey().samples if sample.split == "train"]
    (tmp_path / "idx" / "train-images-idx3-ubyte").unlink()
    assert [source.read(sample) for sample in train] == [wrapped(image) for image in images]


def test_an_image_that_changes_changes_the_stamps_of_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "BLOCK", 4)
    images = np.zeros((10, 28, 28), np.uint8)

    def stamps() -> list[str]:
        (tmp_path / "train-images-idx3-ubyte").write_bytes(_idx(images))
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(_idx(np.arange(10, dtype=np.uint8)))
        return [sample.stamp for sample in open_source("mnist", str(tmp_path), Table()).survey().samples]

    before = stamps()
    assert stamps() == before
    images[5, 0, 0] = 1
    changed = [old != new for old, new in zip(before, stamps(), strict=True)]
    assert changed == [False] * 4 + [True] * 4 + [False] * 2


def test_a_pipe_with_the_name_of_an_idx_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train-images-idx3-ubyte")
    (tmp_path / "train-labels-idx1-ubyte").touch()
    assert "it holds no train-images-idx3-ubyte" in _seen(_spec(tmp_path, "mnist", tmp_path))


def test_a_damaged_gz_is_named(tmp_path: Path) -> None:
    _mnist(tmp_path / "idx", packed=True)
    path = tmp_path / "idx" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    assert "cannot be unpacked" in _seen(_spec(tmp_path, "mnist", tmp_path / "idx"))


class _Python2(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes bytes as python 2 wrote its strings."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_bytes(self, data: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(data)

    dispatch[bytes] = save_bytes


def _python_2(content: object) -> bytes:
    buffer = io.BytesIO()
    _Python2(buffer, protocol=2).dump(content)
    return buffer.getvalue()


def _cifar(path: Path, extra: dict[str, bytes] | None = None) -> NDArray[np.uint8]:
    """The python archive, as python 2 pickled it; the images of the first batch."""
    random = np.random.default_rng(0)
    files = {"batches.meta": _python_2({b"label_names": [b"plane", b"car"]})}
    for name in ("data_batch_2", "test_batch", "data_batch_1"):
        data = random.integers(0, 256, (20, 3072), dtype=np.uint8)
        batch = {b"data": data, b"labels": [number % 2 for number in range(20)]}
        files[name] = _python_2(batch).replace(b"numpy._core.", b"numpy.core.")
    with tarfile.open(path, "w:gz") as tar:
        for name, content in (files | (extra or {})).items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return data


@pytest.mark.parametrize("as_folder", [True, False])
def test_the_cifar_archive_arrives_pixel_by_pixel(as_folder: bool, tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    first = _cifar(path).reshape(20, 3, 32, 32).transpose(0, 2, 3, 1)
    prepared = prepare(_spec(tmp_path, "cifar10", path.parent if as_folder else path))
    assert prepared.manifest.classes == ("plane", "car")
    assert prepared.manifest.shape == (32, 32, 3)
    assert prepared.manifest.splits["test"].count == 20
    reader = open_split(prepared.manifest_uri, "train")
    for index, name in enumerate(reader.sample_ids):
        if (number := int(name.removeprefix("train/"))) < 20:
            np.testing.assert_array_equal(reader.images([index])[0], first[number])


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("touch /tmp/never",))


def test_an_archive_that_would_run_something_is_refused(tmp_path: Path) -> None:
    _cifar(tmp_path / "cifar-10-python.tar.gz", {"data_batch_1": pickle.dumps(_Evil(), protocol=2)})
    assert "it asks for posix.system" in _seen(_spec(tmp_path, "cifar10", tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"not an archive", gzip.compress(b"x")], ids=["empty", "text", "packed text"]
)
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(content)
    assert "not the expected archive" in _seen(_spec(tmp_path, "cifar10", tmp_path))


class _Calls:
    """Pickled as a call with a state, no matter what numpy would say to it."""

    def __init__(self, function: object, arguments: tuple[object, ...], state: object) -> None:
        self.parts = function, arguments, state

    def __reduce__(self) -> Any:
        return self.parts


RECONSTRUCT = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
BYTES = np.dtype("u1")


def _an_array(
    dtype: object = BYTES, shape: object = (4,), order: object = False, data: object = b"\x41" * 4
) -> _Calls:
    return _Calls(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, shape, dtype, order, data))


def _a_dtype(code: str, state: object) -> _Calls:
    return _Calls(np.dtype, (code, False, True), state)


OBJECT_FIELDS = (3, "|", None, ("a",), {"a": (BYTES, 0)}, 8, 1, 27)
HOSTILE = {
    "a dtype with fields of objects": _an_array(_a_dtype("V8", OBJECT_FIELDS), data=b"\x41" * 32),
    "bytes whose dtype claims fields": _an_array(_a_dtype("u1", OBJECT_FIELDS), data=b"\x41" * 32),
    "objects": _an_array(np.dtype("O"), data=[1, 2, 3, 4]),
    "content in a list": _an_array(data=[1, 2, 3, 4]),
    "too little content": _an_array(shape=(4000, 3072)),
    "a shape below 0": _an_array(shape=(-2, -2)),
    "a shape of other numbers": _an_array(shape=(2.0, 2)),
    "the other order": _an_array(order=True),
    "no array": _an_array(dtype=4),
    "an array without a state": _Calls(RECONSTRUCT, (np.ndarray, (0,), b"b"), None),
    "an array of another class": _Calls(RECONSTRUCT, (np.dtype, (0,), b"b"), None),
    "numpy's class itself": _Calls(np.ndarray, ((2**40,), BYTES), None),
    "floating-point numbers": np.zeros((4, 3072)),
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_nothing_that_a_batch_claims_of_its_arrays_is_believed(value: object, tmp_path: Path) -> None:
    """numpy followed the pointers that a dtype with fields of objects made of such bytes."""
    for protocol in (2, 4):
        batch = pickle.dumps({b"data": value, b"labels": [0, 1, 0, 1]}, protocol=protocol)
        _cifar(tmp_path / "cifar-10-python.tar.gz", {"data_batch_1": batch})
        assert "it is not the expected archive" in _seen(_spec(tmp_path, "cifar10", tmp_path))


def test_a_label_without_a_class_is_rejected(tmp_path: Path) -> None:
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]}
    _cifar(tmp_path / "cifar-10-python.tar.gz", {"data_batch_1": pickle.dumps(batch, protocol=4)})
    assert "it has labels [10], and 2 classes" in _seen(_spec(tmp_path, "cifar10", tmp_path))


def test_cifar_as_class_folders_is_taken_as_well(tmp_path: Path) -> None:
    a_folder(tmp_path / "images" / "train", {"cat": 2, "ship": 2})
    a_folder(tmp_path / "images" / "test", {"cat": 1, "ship": 1})
    assert prepare(_spec(tmp_path, "cifar10", tmp_path / "images")).manifest.classes == ("cat", "ship")


def test_a_failed_download_names_the_file_to_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a server that is not there."""
    from ddpipe.sources import named  # noqa: PLC0415

    there = named.DOWNLOADS["mnist"]
    monkeypatch.setitem(named.DOWNLOADS, "mnist", replace(there, url="http://127.0.0.1:9"))
    with pytest.raises(SourceError) as caught:
        prepare(PrepareSpec(source="mnist", dataset_name="mnist", store=str(tmp_path)))
    assert "cannot be downloaded" in caught.value.seen
    assert "train-images-idx3-ubyte.gz" in caught.value.do
    assert "source_path" in caught.value.do


# WebDataset


def _tar(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def _tars(root: Path) -> dict[str, bytes]:
    images = {}
    for shard in ("train-000", "train-001", "val-000", "test-000"):
        files: dict[str, bytes] = {}
        for number in range(6):
            image = an_image(root / "x.png", seed=number).read_bytes()
            images[f"{shard}.tar/{number:03d}"] = image
            files |= {f"{number:03d}.cls": str(number % 2).encode(), f"{number:03d}.png": image}
        _tar(root / "tars" / f"{shard}.tar", files)
    return images


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_webdataset_tars_are_read_where_they_are(where: str, s3: Server, tmp_path: Path) -> None:
    images = _tars(tmp_path)
    path = str(tmp_path / "tars") if where == "folder" else _uploaded(tmp_path / "tars")
    source = open_source("webdataset", path, Table())
    survey = source.survey()
    assert {sample.id: source.read(sample) for sample in survey.samples} == images
    assert survey.classes == ("0", "1")
    prepared = prepare(_spec(tmp_path, "webdataset", path))
    assert {(name.split("-")[0], split) for name, split in _places(prepared).items()} == {
        ("train", "train"),
        ("val", "validation"),
        ("test", "test"),
    }


def test_samples_without_image_or_label_are_named(tmp_path: Path) -> None:
    image = an_image(tmp_path / "x.png").read_bytes()
    _tar(
        tmp_path / "tars" / "a.tar",
        {
            "1.png": image,
            "2.cls": b"0",
            "5.png": image,
            "5.cls": b"a\0",
            "3.png": image,
            "3.json": b'{"label": "cat"}',
            "../4.png": image,
        },
    )
    seen = _seen(_spec(tmp_path, "webdataset", tmp_path / "tars"))
    assert "a.tar/1: it has no label" in seen
    assert "a.tar/2: it has no image" in seen
    assert "a.tar/5: its label is 'a\\\\x00': it has control characters" in seen
    assert "a.tar/../4: it has no label" in seen
    assert "a.tar/3" not in seen


def test_a_link_in_a_tar_is_no_image(tmp_path: Path) -> None:
    path = tmp_path / "tars" / "a.tar"
    image = an_image(tmp_path / "x.png").read_bytes()
    _tar(path, {"0.png": image, "0.cls": b"x", "1.png": image, "1.cls": b"y", "2.cls": b"y"})
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("2.png")
        link.type, link.linkname = tarfile.LNKTYPE, "1.png"
        tar.addfile(link)
    seen = _seen(_spec(tmp_path, "webdataset", tmp_path / "tars"))
    assert "a.tar/2: its .png is a link or a device, not a file" in seen


def test_a_tar_beside_those_of_splits_is_refused(tmp_path: Path) -> None:
    image = an_image(tmp_path / "x.png").read_bytes()
    for name in ("train-0", "test-0", "more"):
        _tar(tmp_path / "tars" / f"{name}.tar", {"0.png": image, "0.cls": b"x"})
    seen = _seen(_spec(tmp_path, "webdataset", tmp_path / "tars"))
    assert "some tars are named after splits (test, train), but not more.tar" in seen


def test_a_cut_off_tar_is_named(tmp_path: Path) -> None:
    _tars(tmp_path)
    path = tmp_path / "tars" / "val-000.tar"
    path.write_bytes(path.read_bytes()[:700])
    assert "val-000.tar: it is not a complete tar" in _seen(_spec(tmp_path, "webdataset", tmp_path / "tars"))
    one = tmp_path / "tars" / "val-000.tar"
    assert f"{one}: it is not a complete tar" in _seen(_spec(tmp_path, "webdataset", one))


def _damaged_tar(data: bytes, damage: str) -> bytes:
    """Members of 2,048 bytes each: a header and an image, a header and a label."""
    return {
        "between samples": data[: 6 * 1024],
        "before the end": data[: len(data.rstrip(b"\0"))].ljust(12 * 1024, b"\0"),
        "a hole": data[: 4 * 1024] + bytes(512) + data[4 * 1024 + 512 :],
        "a damaged header": data[: 4 * 1024] + b"?" * 512 + data[4 * 1024 + 512 :],
        "two joined": data + data,
    }[damage]


@pytest.mark.parametrize(
    ("damage", "seen"),
    [
        ("between samples", "it ends without the blocks that end a tar"),
        ("before the end", "it ends without the blocks that end a tar"),
        ("a hole", "more follows its end at byte 4,096"),
        ("a damaged header", "there is no file where the next one should be, at byte 4,096"),
        ("two joined", "as if joined by cat"),
    ],
)
def test_a_tar_that_lost_samples_is_refused(damage: str, seen: str, tmp_path: Path) -> None:
    """Python's tarfile says nothing about any of these."""
    _tars(tmp_path)
    path = tmp_path / "tars" / "val-000.tar"
    path.write_bytes(_damaged_tar(path.read_bytes(), damage))
    assert seen in _seen(_spec(tmp_path, "webdataset", tmp_path / "tars"))


def test_an_archive_of_cifar_that_lost_batches_is_refused(tmp_path: Path) -> None:
    _cifar(tmp_path / "cifar-10-python.tar.gz")
    path = tmp_path / "cifar-10-python.tar"
    content = gzip.decompress((tmp_path / "cifar-10-python.tar.gz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        last = tar.getmembers()[-1]
    path.write_bytes(content[: last.offset])
    assert "it ends without the blocks that end a tar" in _seen(_spec(tmp_path, "cifar10", path))


def test_where_a_name_is_cut_is_said(tmp_path: Path) -> None:
    image = an_image(tmp_path / "x.png").read_bytes()
    files = {f"a.{number}.png": image for number in range(2)} | {
        f"a.{number}.cls": b"0" for number in range(2)
    }
    _tar(tmp_path / "a.tar", {**files, "b.png": image, "b.CLS": b"\xef\xbb\xbfkite"})
    survey = open_source("webdataset", str(tmp_path / "a.tar"), Table()).survey()
    assert survey.classes == ("kite",)
    (problem,) = survey.problems.values()
    assert "names end at their first dot, also that of a.1.png" in problem


@pytest.mark.parametrize("packed", [True, False])
def test_a_compressed_file_called_tar_is_named(packed: bool, tmp_path: Path) -> None:
    _tar(tmp_path / "a.tar", {"1.png": an_image(tmp_path / "x.png").read_bytes(), "1.cls": b"0"})
    content = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(gzip.compress(content) if packed else b"?" * 2048)
    seen = "it is compressed, although it is called .tar" if packed else "it is not a complete tar"
    assert seen in _seen(_spec(tmp_path, "webdataset", tmp_path / "a.tar"))


def test_tars_without_files_are_refused(tmp_path: Path) -> None:
    _tar(tmp_path / "tars" / "a.tar", {})
    _tar(tmp_path / "tars" / "b.tar", {})
    assert "its 2 .tar hold no files" in _seen(_spec(tmp_path, "webdataset", tmp_path / "tars"))


def test_data_without_a_readable_image_is_refused_with_skip_bad(tmp_path: Path) -> None:
    _tar(tmp_path / "tars" / "a.tar", {"1.cls": b"0", "2.cls": b"1"})
    spec = _spec(tmp_path, "webdataset", tmp_path / "tars", skip_bad=True)
    assert "a.tar/1: it has no image" in _seen(spec)


def test_a_name_of_two_samples_in_a_tar_is_reported(tmp_path: Path) -> None:
    image = an_image(tmp_path / "x.png").read_bytes()
    path = tmp_path / "tars" / "a.tar"
    _tar(path, {"1.png": image, "1.cls": b"cat", "2.png": image, "2.jpg": image, "2.cls": b"cat"})
    more = {"1.cls": b"dog", "3.png": image, "3.cls": b"cat", "3.json": b'{"label": "cat"}'}
    with tarfile.open(path, "a") as tar:
        for name, content in more.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    seen = _seen(_spec(tmp_path, "webdataset", tmp_path / "tars"))
    assert "a.tar/1: its files disagree about its label: 'cat', 'dog'" in seen
    assert "a.tar/2: it has 2 images of this name" in seen
    assert "a.tar/3" not in seen


def test_packing_samples_into_other_tars_moves_none_to_another_split(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for number in range(40):
        image = an_image(tmp_path / "x.png", seed=number).read_bytes()
        files |= {f"{number:03d}.png": image, f"{number:03d}.cls": str(number % 2).encode()}
    _tar(tmp_path / "one" / "all.tar", files)
    names = sorted(files)
    _tar(tmp_path / "two" / "a.tar", {f"./{name}": files[name] for name in names[:30]})
    _tar(tmp_path / "two" / "b.tar", {name: files[name] for name in names[30:]})
    one = prepare(_spec(tmp_path, "webdataset", tmp_path / "one"))
    two = prepare(_spec(tmp_path, "webdataset", tmp_path / "two"))
    assert set(_places(one)) == {f"{number:03d}" for number in range(40)}
    assert _places(two) == _places(one)


def test_a_label_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    image = an_image(tmp_path / "x.png").read_bytes()
    huge = {"1.png": image, "1.cls": b"x" * (2**20 + 1), "2.png": image, "2.json": b"[" * 2**20}
    _tar(tmp_path / "tars" / "a.tar", huge)
    seen = _seen(_spec(tmp_path, "webdataset", tmp_path / "tars"))
    assert "a.tar/1: its .cls has 1,048,577 bytes" in seen
    assert "a.tar/2: it has no label" in seen


@pytest.mark.parametrize("label", ["null", "true", "[1]", '{"a": 1}', "1.5", '" "'])
def test_what_is_no_class_in_a_json_is_no_label(label: str, tmp_path: Path) -> None:
    image = an_image(tmp_path / "x.png").read_bytes()
    _tar(tmp_path / "tars" / "a.tar", {"1.png": image, "1.json": f'{{"label": {label}}}'.encode()})
    assert "a.tar/1: it has no label" in _seen(_spec(tmp_path, "webdataset", tmp_path / "tars"))
