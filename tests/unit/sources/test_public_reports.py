"""What people report of other programs, tried here with inputs of our own: the table in docs/reports.md."""

from __future__ import annotations

import io
import re
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from PIL import Image
from samples import labels_by_id, sample_ids

from ddpipe.data.manifest import SPLITS
from ddpipe.errors import DdpipeError
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.sources.base import Unreadable
from ddpipe.sources.images import decode, probe

KINDS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "bmp": "BMP", "tif": "TIFF", "webp": "WEBP"}
DAMAGED = "damaged"  # in the name of a picture whose second half is missing
PAGE = "page"  # in the name of a picture that is a web page


@dataclass(frozen=True)
class Case:
    """Files that are made, and what must come out: images by class, or a refusal.

    Attributes:
        files: Paths of pictures, each different from the others.
        others: Paths and contents of other files.
        options: Of prepare.
        classes: Number of images of each class.
        splits: Where images must be, by a part of their names.
        refused: In the error.
        said: In a warning.
    """

    files: Sequence[str]
    others: Mapping[str, str | bytes] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    said: str = ""


def some(folder: str, count: int = 10, ending: str = "png", start: int = 0) -> list[str]:
    return [f"{folder}/{number}.{ending}" for number in range(start, start + count)]


def two(ending: str = "png", under: str = "") -> list[str]:
    return [*some(f"{under}cat", ending=ending), *some(f"{under}dog", ending=ending)]


def table(head: str, rows: Sequence[str]) -> str:
    return "\n".join([head, *rows, ""])


def picture(seed: int, kind: str = "PNG", size: tuple[int, int] = (12, 8)) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return saved(Image.fromarray(noise), kind)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def make(root: Path, case: Case) -> Path:
    for seed, name in enumerate(case.files):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = picture(seed, KINDS.get(path.suffix[1:].lower(), "PNG"))
        if DAMAGED in name:
            data = data[: len(data) // 2]
        path.write_bytes(b"<!DOCTYPE html><title>404</title>" if PAGE in name else data)
    for name, content in case.others.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


NAMED = [f"{number:02d}" for number in range(20)]
LABELLED = [f"{name},{'ab'[number % 2]}" for number, name in enumerate(NAMED)]
FLAT = [f"train/{name}.png" for name in NAMED]
SPLIT = ["train", "val", "test"]
LEAVES = ["scab", "rust", "healthy", "scab rust"]
BREEDS = ["golden retriever", "labrador retriever"]

CASES = {
    # which files are images of which class
    "torchvision 2831": Case([*two(), *some(".ipynb_checkpoints", 3)], classes={"cat": 10, "dog": 10}),
    "torchvision 109": Case(
        two(),
        {".DS_Store": b"\0\0\0\1Bud1", "cat/.DS_Store": b"\0", "dog/._1.png": b"\0"},
        classes={"cat": 10, "dog": 10},
    ),
    "torchvision 446": Case(two("JPEG"), classes={"cat": 10, "dog": 10}),
    "torchvision 4925": Case(two(), {"bird/": ""}, classes={"cat": 10, "dog": 10}, said="have no images"),
    "torchvision 714": Case(
        [name for label in range(1, 13) for name in some(str(label))],
        classes={str(label): 10 for label in range(1, 13)},
    ),
    "torchvision 669": Case(some("."), refused="not in a class folder"),
    "torchvision 72": Case([], {"cat/a.txt": "a", "dog/b.txt": "b"}, refused="none of its files is an image"),
    "keras 3054": Case([*some("zebra"), *some("ant")], classes={"ant": 10, "zebra": 10}),
    "keras-preprocessing 157": Case(
        [*some("triangle", 12, start=60), *some("rectangle", 12, start=110)],
        classes={"triangle": 12, "rectangle": 12},
    ),
    "tf-keras 790": Case(some("noncloud_train", 4), refused="only one class folder"),
    "keras 19026": Case(
        [*two(), "cat/page.jpg"], options={"skip_bad": True}, classes={"cat": 10, "dog": 10}, said="page.jpg"
    ),
    "datasets 6470": Case([*two(), "dog/damaged.jpg"], refused="damaged.jpg"),
    "datasets 7612": Case(
        [*two(), "dog/damaged.jpg"], options={"skip_bad": True}, classes={"cat": 10, "dog": 10}
    ),
    "fastai 1408": Case(
        [*some("apple"), *some("amazon"), *some("bmw")], classes={"apple": 10, "amazon": 10, "bmw": 10}
    ),
    "fastai 3329": Case(
        [f"{name}/IMG {number} (2).png" for name in ("old man", "baby") for number in range(10)],
        classes={"old man": 10, "baby": 10},
    ),
    "ultralytics 25749": Case(
        [
            *some("cat", 5, "JPG"),
            *some("cat", 5, "bmp", 5),
            *some("dog", 5, "webp"),
            *some("dog", 5, "TIF", 5),
        ],
        classes={"cat": 10, "dog": 10},
    ),
    "ultralytics 20440": Case(two("jpg"), classes={"cat": 10, "dog": 10}),
    "datasets 8419": Case([], {"data.zip": b"PK\3\4"}, refused="none of its files is an image: 1 .zip"),
    # which folders are splits
    "fastai 1552": Case(
        [name for split in ("train", "test") for label in ("ok", "nok") for name in some(f"{split}/{label}")],
        classes={"ok": 20, "nok": 20},
        splits={"test/": "test"},
    ),
    "ultralytics 4310": Case(
        [name for split in ("train", "validation", "test") for name in two(under=f"{split}/")],
        classes={"cat": 30, "dog": 30},
        splits={"train/": "train", "validation/": "validation", "test/": "test"},
    ),
    "timm 2448": Case(
        [name for split in SPLIT for name in two(under=f"{split}/")],
        classes={"cat": 30, "dog": 30},
        splits={"val/": "validation", "test/": "test"},
    ),
    "ultralytics 13936": Case(
        [*(f"train/{angle}/{n}.png" for angle in (0, 90, 180, 270) for n in range(10))]
        + [f"test/{angle}/{n}.png" for angle in (0, 90, 270) for n in range(10)],
        classes={"0": 20, "90": 20, "180": 10, "270": 20},
    ),
    "timm 957": Case(
        [*(f"train/{label}/{n}.png" for label in "abc" for n in range(10))]
        + [f"val/{label}/{n}.png" for label in "ac" for n in range(10)],
        {"val/b/": ""},
        classes={"a": 20, "b": 10, "c": 20},
    ),
    "flash 182": Case(two(under="train/"), classes={"cat": 10, "dog": 10}),
    "datasets 7880": Case([*some("train"), *some("test", 4)], refused="not in a class folder"),
    "datasets 5021": Case(
        [*some("cat"), *some("dog"), "cat/photo of a train.png", "dog/test tubes.png"],
        classes={"cat": 11, "dog": 11},
    ),
    "datasets 5153": Case([*some("data"), "4.png", "5.png"], refused="only one class folder, 'data'"),
    "datasets 7529": Case(
        [name for split in (*SPLIT, "custom") for name in two(under=f"{split}/")],
        refused="custom is next to them",
    ),
    "datasets 4895": Case(
        [f"{split}/{label}/{split}_{n}.png" for split in SPLIT for label in ("cat", "dog") for n in range(6)],
        classes={"cat": 18, "dog": 18},
        splits={"val/": "validation"},
    ),
    # tables
    "datasets 4814": Case(
        [f"{name}.png" for name in NAMED],
        {"metadata.csv": table("file_name,label", [line.replace(",", ".png,") for line in LABELLED])},
        classes={"a": 10, "b": 10},
    ),
    "fastai 1155": Case(
        [*FLAT, *some("test", 3)],
        {"labels.csv": table("id,kind", LABELLED)},
        classes={"a": 10, "b": 10},
        said="3 files",
    ),
    "fastai 1169": Case(
        [f"train/n0{label}/n0{label}_{n}.JPEG" for label in (1, 2) for n in range(10)],
        {
            "train.csv": table(
                "filenames,cats", [f"n0{k}/n0{k}_{n}.JPEG,{k + 350}" for k in (1, 2) for n in range(10)]
            )
        },
        refused="class folders (n01, n02) and a table that names images",
    ),
    "fastai 1506": Case(
        [f"{name}.png" for name in NAMED],
        {"labels.csv": "\n".join(line.replace(",", ".png,") for line in LABELLED)},
        refused="it has no header",
    ),
    "fastai 894": Case(
        [*FLAT[:12], *(f"test/{name}.png" for name in NAMED[12:])],
        {"labels.csv": table("name,kind", [line.replace(",", ".png,") for line in LABELLED])},
        classes={"a": 10, "b": 10},
    ),
    "fastai 1126": Case(
        FLAT,
        {"train.csv": table("Image,Id", [f"{name}.png,w_{n}" for n, name in enumerate(NAMED)])},
        refused="w_",
    ),
    "keras 14416": Case(
        FLAT, {"train.csv": table("image,kind", sorted(LABELLED, reverse=True))}, classes={"a": 10, "b": 10}
    ),
    "keras-preprocessing 92": Case(
        FLAT,
        {"train.csv": table("image\tkind", [line.replace(",", "\t") for line in LABELLED])},
        classes={"a": 10, "b": 10},
    ),
    "keras-preprocessing 88": Case(
        [f"train/{name}.JPG" for name in NAMED],
        {"train.csv": table("filepath,label", [f"{line[:2]}.jpg{line[2:]}" for line in LABELLED])},
        classes={"a": 10, "b": 10},
        said="other names",
    ),
    "keras-preprocessing 169": Case(
        FLAT,
        {"train_labels.csv": table("id,label", [f"{name},{n % 2}" for n, name in enumerate(NAMED)])},
        classes={"0": 10, "1": 10},
    ),
    "keras-preprocessing 116": Case(
        FLAT,
        {
            "train.csv": table(
                "fname,cat", [f"/home/me/data/train/{line[:2]}.png{line[2:]}" for line in LABELLED]
            )
        },
        classes={"a": 10, "b": 10},
        said="other names",
    ),
    "keras-preprocessing 308": Case(
        FLAT,
        {"train.csv": table("image,kind", [*LABELLED, "99,a"])},
        refused="names this image, but it does not exist",
    ),
    "autogluon 1207": Case(
        FLAT, {"train.csv": table("image,kind", [*LABELLED, ",a"])}, refused="the image is not named"
    ),
    "autogluon 1325": Case(
        [f"my own pictures of a day out/no {name} of many.png" for name in NAMED],
        {
            "t.csv": table(
                "image,kind",
                [f"my own pictures of a day out/no {line[:2]} of many.png{line[2:]}" for line in LABELLED],
            )
        },
        classes={"a": 10, "b": 10},
    ),
    "autogluon 3856": Case(FLAT, {"train.csv": table("img,lbl", LABELLED)}, classes={"a": 10, "b": 10}),
    "autogluon 1109": Case(FLAT, {"train.csv": table("image,labels", LABELLED)}, classes={"a": 10, "b": 10}),
    "flash 126": Case(
        FLAT,
        {
            "train.csv": table(
                "StudyInstanceUID,ETT,NGT,PatientID",
                [f"{name},{n % 2},{n // 2 % 2},p{n // 2}" for n, name in enumerate(NAMED)],
            )
        },
        {"group_column": "PatientID"},
        classes={"ETT": 10, "NGT": 10},
    ),
    "flash 728": Case(
        FLAT,
        {"train.csv": table("image,labels", [f"{name},{LEAVES[n % 4]}" for n, name in enumerate(NAMED)])},
        classes={"scab": 10, "rust": 10, "healthy": 5},
        said="joins labels by ' '",
    ),
    "timm 1081": Case(
        [f"val/ILSVRC2012_val_{name}.JPEG" for name in NAMED],
        {"val.csv": table("ImageId,Class", [f"ILSVRC2012_val_{line}" for line in LABELLED])},
        classes={"a": 10, "b": 10},
    ),
}
"""By report."""


@pytest.mark.parametrize("report", CASES)
def test_report_of_reading_labelling_and_splitting(
    report: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES[report]
    check(case, make(tmp_path / "raw", case), tmp_path / "store", caplog)


def check(case: Case, path: Path, store: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = PrepareSpec(source_path=str(path), dataset_name="toys", store=str(store), **case.options)  # type: ignore[arg-type]
    if case.refused:
        with pytest.raises(DdpipeError) as caught:
            prepare(spec)
        assert case.refused in str(caught.value)
        return
    prepared = prepare(spec)
    classes = prepared.manifest.classes
    found = dict.fromkeys(classes, 0)
    for name, label in labels_by_id(prepared.manifest_uri).items():
        of_image = (
            [classes[label]]
            if isinstance(label, int)
            else [c for c, is_one in zip(classes, label, strict=True) if is_one]
        )  # type: ignore[arg-type]
        for one in of_image:
            found[one] += 1
        if PurePosixPath(name).parent.name in classes:
            assert PurePosixPath(name).parent.name == of_image[0]
    assert found == case.classes
    for split in SPLITS:
        for name in sample_ids(prepared.manifest_uri, split):
            assert all(split == wanted for part, wanted in case.splits.items() if part in name)
    assert case.said in caplog.text


def test_names_of_two_words_are_not_several_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"{name},{BREEDS[n % 2]}" for n, name in enumerate(NAMED)]
    case = Case(FLAT, {"train.csv": table("image,labels", rows)}, classes=dict.fromkeys(BREEDS, 10))
    check(case, make(tmp_path / "raw", case), tmp_path / "store", caplog)


# WebDataset


def tar(files: Mapping[str, bytes], encoding: str = "utf-8") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding=encoding) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def pairs(image: str = "png", label: str = "cls") -> dict[str, bytes]:
    return {
        f"{name}.{ending}": content
        for n, name in enumerate(NAMED)
        for ending, content in ((image, picture(n)), (label, b"ab"[n % 2 : n % 2 + 1]))
    }


BOTH = {"a": 10, "b": 10}
SHARDS = {
    "webdataset 142": Case([], {"a.tar": tar(pairs())[:-14_000]}, refused="it is not a complete tar"),
    "webdataset 32": Case(
        [], {"a.tar": tar(pairs()).rstrip(b"\0") + bytes(511)}, refused="it ends without the blocks"
    ),
    "webdataset 20": Case(
        [],
        {"a.tar": tar({**pairs(), "x.left.png": picture(50), "x.right.png": picture(51), "x.cls": b"a"})},
        refused="x: ",
    ),
    "webdataset 330": Case(
        [],
        {"a.tar": tar({**pairs(), "caf\u00e9.png": picture(50), "caf\u00e9.cls": b"a"}, "latin-1")},
        refused="its name is not UTF-8",
    ),
    "webdataset 173": Case(
        [], {"a.tar": tar({**pairs(), "./00.png": picture(50)})}, refused="it has 2 images of this name"
    ),
    "webdataset 2": Case(
        [],
        {"a.tar": tar({**pairs(), "x.png": picture(50), "x.cls": b"[0.25 0.75]\n\0"})},
        refused="a.tar/x: ",
    ),
    "webdataset 291": Case(
        [],
        {"a.tar": tar({**pairs(), "x.png": b"no picture", "x.cls": b"a"})},
        {"skip_bad": True},
        classes=BOTH,
        said="skipped x: it is not an image",
    ),
    "datasets 7732": Case([], {"a.tar": tar(pairs("PNG", "CLS"))}, classes=BOTH),
    "timm 2154": Case(
        [], {"a.tar": tar({f"n0/{name}": data for name, data in pairs().items()})}, classes=BOTH
    ),
}


@pytest.mark.parametrize("report", SHARDS)
def test_report_of_webdatasets(report: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = SHARDS[report]
    check(case, make(tmp_path / "raw", case), tmp_path / "store", caplog)


# Pictures

ORIENTATION, RATIO, NOTE, GPS = 0x0112, 0x011A, 0x927C, 0x8825


def scene(width: int = 60, height: int = 40) -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", (width, height), "blue")
    image.paste("red", (0, 0, width // 2, height))
    return image


def entry(tag: int, kind: int, count: int, value: bytes) -> tuple[int, int, int, bytes]:
    return tag, kind, count, value


def tiff(*entries: tuple[int, int, int, bytes]) -> bytes:
    """A TIFF of one directory; longer values follow it."""
    begin, more = 8 + 2 + 12 * len(entries) + 4, b""
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    for tag, kind, count, value in sorted(entries):
        place = value.ljust(4, b"\0") if len(value) <= 4 else struct.pack("<I", begin + len(more))
        head += struct.pack("<HHI", tag, kind, count) + place
        more += value if len(value) > 4 else b""
    return head + bytes(4) + more


SIDEWAYS = entry(ORIENTATION, 3, 1, struct.pack("<H", 6))


def with_exif(*entries: tuple[int, int, int, bytes], start: bytes = b"Exif\0\0") -> bytes:
    return saved(scene(), "JPEG", exif=start + tiff(SIDEWAYS, *entries))


def with_xmp(data: bytes, xmp: bytes) -> bytes:
    content = b"http://ns.adobe.com/xap/1.0/\0" + xmp
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content + data[2:]


def png(width: int, depth: int, color: int, row: bytes, height: int = 8) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + chunk(b"IDAT", zlib.compress((b"\0" + row) * height))
        + chunk(b"IEND", b"")
    )


def palette_tiff(scale: int) -> bytes:
    colors = np.concatenate([np.arange(256) * scale] * 3).astype("<u2").tobytes()
    short, long = (lambda value: struct.pack("<H", value)), (lambda value: struct.pack("<I", value))

    def file(start: int) -> bytes:
        numbers = {256: 16, 257: 16, 258: 8, 259: 1, 262: 3, 277: 1, 278: 16}
        fields = [entry(tag, 3, 1, short(value)) for tag, value in numbers.items()]
        return tiff(
            *fields, entry(273, 4, 1, long(start)), entry(279, 4, 1, long(256)), entry(320, 3, 768, colors)
        )

    return file(len(file(0))) + bytes(range(256))


def before_a_restart() -> bytes:
    data = saved(scene(400, 300), "JPEG", restart_marker_blocks=10)
    place = data.index(b"\xff\xd4")
    return data[:place] + b"U" * 1199 + data[place:]


def clear(mode: str) -> bytes:
    """A picture of one color, all of it transparent by a note about this color."""
    return saved(Image.new(mode, (8, 8), 0), "PNG", transparency=(0, 0, 0) if mode == "RGB" else 0)


def as_palette() -> bytes:
    return saved(scene().quantize(2), "PNG", transparency=b"\xff\xff")


RAMP = np.arange(16) * 4096
WHOLE = {
    "torchvision 7977": (with_exif, "turned"),
    "pillow 8605": (lambda: with_exif(entry(RATIO, 5, 1, bytes(8))), "turned"),
    "datasets 8165": (lambda: with_exif(entry(RATIO, 5, 1, struct.pack("<2I", 72, 0))), "turned"),
    "pillow 8548": (lambda: with_exif(entry(GPS, 4, 1, struct.pack("<I", 99_999))), "turned"),
    "pillow 4665": (lambda: with_exif(entry(RATIO, 5, 2, struct.pack("<4I", 72, 1, 72, 1))), "turned"),
    "pillow 4346": (lambda: with_exif(entry(NOTE, 1, 5, b"\1\2\3\4\5")), "turned"),
    "pillow 8348": (lambda: with_exif(start=b"Exif\0\0Exif\0\0"), "turned"),
    "datasets 7668": (lambda: with_xmp(with_exif(), b"<x>\xa8\xa8</x>"), "turned"),
    "torchvision 6538": (lambda: saved(scene().convert("CMYK"), "JPEG"), "scene"),
    "torchvision 3012": (lambda: saved(scene().convert("CMYK"), "TIFF"), "scene"),
    "pillow 7288": (as_palette, "scene"),
    "pillow 4603": (lambda: saved(scene(), "MPO", save_all=True, append_images=[scene(8, 8)]), "scene"),
    "pillow 5967": (lambda: png(16, 16, 0, RAMP.astype(">u2").tobytes()), "ramp"),
    "pillow 1108": (lambda: saved(Image.fromarray(np.tile(RAMP, (8, 1)).astype(np.uint16)), "TIFF"), "ramp"),
    "torchvision 4101": (lambda: png(16, 16, 2, np.repeat(RAMP, 3).astype(">u2").tobytes()), "ramp"),
    "pillow 2157": (lambda: palette_tiff(1), "palette"),
    "pillow 3379": (lambda: clear("1"), "white"),
    "pillow 154": (lambda: clear("L"), "white"),
    "pillow 3744": (lambda: clear("I;16"), "white"),
}
"""By report: a file that is all right, and what it shows."""


@pytest.mark.filterwarnings("ignore:.*EXIF data", "ignore:.*Metadata Warning")
@pytest.mark.parametrize("report", WHOLE)
def test_report_of_pictures_that_are_all_right(report: str) -> None:
    made, shows = WHOLE[report]
    data = made()
    found = probe(data)
    pixels = np.asarray(decode(data, found.shape, found.depth).convert("RGB")).astype(int)
    match shows:
        case "turned":  # a quarter to the right: what was on the left is above
            assert pixels.shape == (60, 40, 3)
            assert pixels[10, 20, 0] > 200
            assert pixels[50, 20, 0] < 60
        case "scene":
            assert pixels[20, 10, 0] > 200
            assert pixels[20, -10, 0] < 60
        case "ramp":
            assert np.abs(pixels[0, :, 0] - RAMP // 256).max() <= 1
        case "palette":
            assert (pixels[:, :, 0].ravel() == np.arange(256)).all()
        case "white":
            assert (pixels == 255).all()


def cut(kind: str, share: float) -> Callable[[], bytes]:
    return lambda: (data := picture(0, kind, (200, 150)))[: int(len(data) * share)]


BROKEN = {
    "ultralytics 13142": (before_a_restart, "1199 extraneous bytes before marker 0xd4"),
    "pillow 6118": (cut("PNG", 0.6), "truncated"),
    "pillow 450": (cut("JPEG", 0.6), "truncated|Truncated"),
    "yolov5 2451": (lambda: cut("JPEG", 0.6)() + b"\xff\xd9", "damaged"),
    "pillow 889": (cut("BMP", 0.6), "truncated"),
    "pillow 2806": (lambda: b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100), "HEIC"),
    "ultralytics 4496": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is not an image"),
    "pillow 3838": (lambda: saved(Image.new("I", (8, 8)), "TIFF"), "unknown range"),
}
"""By report: a file that cannot be used, and the reason."""


@pytest.mark.parametrize("report", BROKEN)
def test_report_of_pictures_that_cannot_be_used(report: str) -> None:
    made, reason = BROKEN[report]
    data = made()
    with pytest.raises(Unreadable, match=reason):
        decode(data, probe(data).shape)


def test_every_row_of_the_page_is_a_test() -> None:
    """The reports are the cases above; the tests that the last table names exist."""
    root = Path(__file__).parents[3]
    page, _, faults = (root / "docs/reports.md").read_text().partition("## What was wrong")
    rows = re.findall(r"^\| ([a-z][\w-]+ \d+) \|", page, re.MULTILINE)
    assert sorted(rows) == sorted([*CASES, *SHARDS, *WHOLE, *BROKEN])
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", faults)
    assert named
    for file, test in named:
        path = root / file if file.startswith("tests/") else root / "tests/unit" / file
        assert f"\ndef {test}(" in path.read_text()
