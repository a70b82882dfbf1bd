"""DICOM files: real ones, made here or carried by pydicom, shown as a radiologist sees them."""

from __future__ import annotations

import io
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import (
    MPEG2MPML,
    ExplicitVRLittleEndian,
    JPEGLosslessSV1,
    RLELossless,
    SecondaryCaptureImageStorage,
)
from samples import sample_ids

from ddpipe.data.manifest import SPLITS
from ddpipe.data.reader import open_split
from ddpipe.errors import ParameterError
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.sources import Unreadable, dicom
from ddpipe.sources.base import ReadOptions
from ddpipe.sources.images import decode, probe, shrink

RAMP = np.arange(0, 4096, dtype=np.uint16).reshape(64, 64)


def _dicom(
    pixels: NDArray[Any] = RAMP, photometric: str = "MONOCHROME2", bits: int = 12, **fields: object
) -> Dataset:
    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.SOPClassUID = SecondaryCaptureImageStorage
    file.SOPInstanceUID = "1.2.3"
    file.set_pixel_data(pixels, photometric, bits)
    for name, value in fields.items():
        setattr(file, name, value)
    return file


def _saved(file: Dataset) -> bytes:
    buffer = io.BytesIO()
    pydicom.dcmwrite(buffer, file, enforce_file_format=True)
    return buffer.getvalue()


def _shown(file: Dataset, reading: ReadOptions = ReadOptions()) -> NDArray[np.uint8]:  # noqa: B008
    data = _saved(file)
    return np.asarray(decode(data, probe(data).shape, reading=reading))


def _carried(name: str) -> bytes:
    """A file that comes with pydicom."""
    return Path(str(get_testdata_file(name, download=False))).read_bytes()


def test_values_are_spread_over_all_grays_where_the_file_says_nothing() -> None:
    assert np.array_equal(_shown(_dicom()), np.rint(RAMP / 4095 * 255).astype(np.uint8))


def test_padding_does_not_count() -> None:
    pixels = (RAMP % 100 + 1000).astype(np.int16)
    pixels[0] = -2000
    shown = _shown(_dicom(pixels, bits=16, PixelPaddingValue=-2000))
    assert (shown[0].max(), shown[1:].min(), shown[1:].max()) == (0, 0, 255)


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("fields", [{}, {"WindowCenter": 1000, "WindowWidth": 4000}])
@pytest.mark.parametrize(("padding", "limit"), [(0, 0), (4095, 4095), (0, 63), (63, 0)])
def test_padding_is_black(photometric: str, fields: dict[str, Any], padding: int, limit: int) -> None:
    """Also where low means bright, with or without a window, for one value and for a range of them."""
    file = _dicom(photometric=photometric, PixelPaddingValue=padding, **fields)
    if limit != padding:
        file.PixelPaddingRangeLimit = limit
    shown = _shown(file)
    is_padding = (min(padding, limit) <= RAMP) & (max(padding, limit) >= RAMP)
    assert not shown[is_padding].any()
    assert shown[~is_padding].max() > 100


def test_eight_bits_without_a_window_stay_as_they_are() -> None:
    """Stretched, a pale picture would get the contrast of a strong one."""
    pixels = (RAMP % 100 + 60).astype(np.uint8)
    assert np.array_equal(_shown(_dicom(pixels, bits=8)), pixels)
    assert np.array_equal(_shown(_dicom(pixels, "MONOCHROME1", bits=8)), 255 - pixels)
    few = (RAMP % 16).astype(np.uint8)
    assert np.array_equal(_shown(_dicom(few, bits=4)), few * 17)
    scaled = _shown(_dicom(pixels, bits=8, RescaleSlope=2, RescaleIntercept=-100))
    assert (scaled.min(), scaled.max()) == (0, 255)


def _table(entries: list[int], first: int, bits: int) -> Dataset:
    """One item of a VOI LUT sequence."""
    table = Dataset()
    table.add_new("LUTDescriptor", "SS" if first < 0 else "US", [len(entries), first, bits])
    table.add_new("LUTData", "OW", np.array(entries, "<u2").tobytes())
    return table


@pytest.mark.parametrize("first", [-1024, 2**16 - 1024])
def test_a_voi_lut_is_indexed_with_the_scanners_units(first: int) -> None:
    """Of 12 bits to 8: the stored value 1000 is -24 and so entry 1000; a table may lack its sign."""
    entries = [number // 16 for number in range(4096)]
    file = _dicom(RescaleSlope=1, RescaleIntercept=-1024, VOILUTSequence=[_table(entries, first, 8)])
    assert np.array_equal(_shown(file), RAMP // 16)
    shifted = _dicom(RescaleSlope=1, RescaleIntercept=0, VOILUTSequence=[_table(entries[1024:], 1024, 8)])
    assert np.array_equal(_shown(shifted), np.maximum(RAMP, 1024) // 16)


def test_an_image_of_one_value_is_black() -> None:
    assert not _shown(_dicom(np.full_like(RAMP, 7))).any()


def test_where_low_means_bright_grays_are_inverted() -> None:
    assert np.array_equal(_shown(_dicom(photometric="MONOCHROME1")), 255 - _shown(_dicom()))


@pytest.mark.parametrize(
    ("fields", "low", "middle", "high"),
    [
        ({"WindowCenter": 1000, "WindowWidth": 201}, 899, 1000, 1100),
        ({"WindowCenter": [1000, 40], "WindowWidth": [201, 400]}, 899, 1000, 1100),
        ({"WindowCenter": 1000, "WindowWidth": 200, "VOILUTFunction": "LINEAR_EXACT"}, 900, 1000, 1100),
        (
            {"WindowCenter": -24, "WindowWidth": 201, "RescaleSlope": 1, "RescaleIntercept": -1024},
            899,
            1000,
            1100,
        ),
        (
            {"WindowCenter": 2000, "WindowWidth": 401, "RescaleSlope": 2, "RescaleIntercept": 0},
            899,
            1000,
            1100,
        ),
    ],
)
def test_the_file_s_own_window_shows_the_values_in_it(
    fields: dict[str, Any], low: int, middle: int, high: int
) -> None:
    shown = _shown(_dicom(**fields)).ravel()
    assert not shown[: low + 1].any()
    assert shown[middle] == pytest.approx(127.5, abs=1.5)
    assert (shown[high:] == 255).all()
    assert 0 < shown[low + 20] < shown[high - 20] < 255


def test_a_sigmoid_window_has_half_at_its_centre_and_no_edge() -> None:
    shown = _shown(_dicom(WindowCenter=1000, WindowWidth=400, VOILUTFunction="SIGMOID")).ravel()
    assert shown[1000] == 128
    assert 0 < shown[700] < 30
    assert shown[1200] == pytest.approx(255 / (1 + np.exp(-2)), abs=1)


def test_the_user_s_window_counts_more_than_the_file_s() -> None:
    file = _dicom(WindowCenter=1000, WindowWidth=201, RescaleSlope=1, RescaleIntercept=-1024)
    shown = _shown(file, ReadOptions(window=(40, 400))).ravel()
    assert (shown[863], shown[1264]) == (0, 255)
    assert shown[1064] == pytest.approx(127.5, abs=1.5)


@pytest.mark.parametrize("width", [0, -5])
def test_a_window_that_is_none_is_no_window(width: float) -> None:
    assert np.array_equal(_shown(_dicom(WindowCenter=1000, WindowWidth=width)), _shown(_dicom()))


def test_colors_stay_colors() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    data = _saved(_dicom(pixels, "RGB", 8))
    assert probe(data) == ((20, 30, 3), 0)
    assert np.array_equal(np.asarray(decode(data, (20, 30, 3))), pixels)


def test_several_frames_are_refused_unless_the_first_is_asked_for() -> None:
    frames = np.stack([RAMP, RAMP[::-1], RAMP])
    with pytest.raises(Unreadable, match="it has 3 frames: `first_frame`"):
        _shown(_dicom(frames))
    assert np.array_equal(_shown(_dicom(frames), ReadOptions(first_frame=True)), _shown(_dicom()))


def test_lossless_compression_changes_nothing() -> None:
    file = _dicom()
    file.compress(RLELossless)
    assert np.array_equal(_shown(file), _shown(_dicom()))


def test_a_missing_decoder_is_named_with_what_brings_it() -> None:
    data = _carried("SC_rgb_jpeg_gdcm.dcm")
    assert pydicom.dcmread(io.BytesIO(data)).file_meta.TransferSyntaxUID == JPEGLosslessSV1
    assert probe(data).shape == (100, 100, 3)
    with pytest.raises(Unreadable, match=r"JPEG Lossless.*decoder has to be installed.*pylibjpeg-libjpeg"):
        decode(data, (100, 100, 3))


def test_a_film_is_refused_by_its_name() -> None:
    file = _dicom()
    file.compress(RLELossless)
    file.file_meta.TransferSyntaxUID = MPEG2MPML
    with pytest.raises(Unreadable, match=r"MPEG2 .* which no decoder supports"):
        _shown(file)


@pytest.mark.parametrize("name", ["PhotometricInterpretation", "BitsStored"])
def test_what_a_header_lacks_is_named(name: str) -> None:
    file = _dicom()
    delattr(file, name)
    with pytest.raises(Unreadable, match=f"its header lacks {name}"):
        decode(_saved(file), (64, 64, 1))


def test_a_header_without_a_transfer_syntax_is_named() -> None:
    file = pydicom.dcmread(io.BytesIO(_saved(_dicom())))
    del file.file_meta.TransferSyntaxUID
    buffer = io.BytesIO()
    pydicom.dcmwrite(buffer, file, implicit_vr=False, little_endian=True)
    with pytest.raises(Unreadable, match="its header lacks TransferSyntaxUID"):
        decode(buffer.getvalue(), (64, 64, 1))


def test_a_file_without_an_image_is_refused() -> None:
    file = _dicom()
    del file.Rows, file.Columns, file.PixelData
    with pytest.raises(Unreadable, match="a DICOM file without an image"):
        probe(_saved(file))


@pytest.mark.parametrize("cut", [140, 500, 4000])
def test_a_file_that_is_cut_off_is_refused(cut: int) -> None:
    data = _saved(_dicom())[:cut]
    with pytest.raises(Unreadable):
        decode(data, (64, 64, 1))


def test_a_deflated_file_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dicom, "LARGEST_INFLATED", 100_000)
    with pytest.raises(Unreadable, match="decompression bomb"):
        probe(_carried("image_dfl.dcm"))


def test_an_absurd_size_is_refused_before_it_is_read() -> None:
    with pytest.raises(Unreadable, match="decompression bomb"):
        _shown(_dicom(Rows=60000, Columns=60000))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("CT_small.dcm", (128, 128, 1)),
        ("MR_small_bigendian.dcm", (64, 64, 1)),
        ("MR_small_implicit.dcm", (64, 64, 1)),
        ("MR_small_RLE.dcm", (64, 64, 1)),
        ("693_J2KI.dcm", (512, 512, 1)),
        ("SC_rgb_dcmtk_+eb+cy+np.dcm", (100, 100, 3)),
        ("SC_rgb_jpeg_dcmtk.dcm", (100, 100, 3)),
        ("SC_rgb_rle_16bit.dcm", (100, 100, 3)),
        ("examples_palette.dcm", (350, 800, 3)),
        ("image_dfl.dcm", (512, 512, 1)),
        ("liver_1frame.dcm", (512, 512, 1)),
        ("rtdose_1frame.dcm", (10, 10, 1)),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_real_files_of_many_kinds_become_pictures(name: str, shape: tuple[int, int, int]) -> None:
    data = _carried(name)
    assert probe(data).shape == shape
    image = np.asarray(shrink(data, min(shape[:2])))
    assert image.shape[:2] == shape[:2]
    assert (int(image.min()) < 60, int(image.max()) > 190) == (True, True)


def _study(root: Path, count: int = 30) -> list[str]:
    """As SIIM ships X-rays: <study>/<series>/<instance>.dcm."""
    names = [f"1.2.276.0.{number}" for number in range(count)]
    for number, name in enumerate(names):
        path = root / f"1.9.{number // 3}" / f"1.8.{number}" / f"{name}.dcm"
        path.parent.mkdir(parents=True)
        pixels = np.random.default_rng(number).integers(0, 4096, (32, 32)).astype(np.uint16)
        path.write_bytes(_saved(_dicom(pixels, ("MONOCHROME1", "MONOCHROME2")[number % 2])))
    return names


def test_a_table_names_dicom_files_however_deep_they_lie(tmp_path: Path) -> None:
    names = _study(tmp_path / "dicom-images-train")
    rows = [f"{name},{number % 2},{number // 3}" for number, name in enumerate(names)]
    (tmp_path / "train.csv").write_text("\n".join(["ImageId,Pneumothorax,Patient", *rows]))
    prepared = prepare(
        PrepareSpec(
            source="csv",
            source_path=str(tmp_path / "dicom-images-train"),
            table=str(tmp_path / "train.csv"),
            group_column="Patient",
            store=str(tmp_path / "store"),
        )
    )
    assert sorted(name for split in SPLITS for name in sample_ids(prepared.manifest_uri, split)) == sorted(
        names
    )
    reader = open_split(prepared.manifest_uri, "train")
    number = names.index(reader.sample_ids[0])
    pixels = np.random.default_rng(number).integers(0, 4096, (32, 32))
    own = np.rint((pixels - pixels.min()) / np.ptp(pixels) * 255)
    assert np.array_equal(reader.images([0])[0, ..., 0], own if number % 2 else 255 - own)


def test_another_window_of_dicom_files_is_another_version(
    tmp_path: Path,
) -> None:
    for number in range(20):
        path = tmp_path / "scans" / "ab"[number % 2] / f"p{number // 2}-{number}.dcm"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_saved(_dicom(np.roll(RAMP, number))))
    spec = PrepareSpec(source="folder", source_path=str(tmp_path / "scans"), store=str(tmp_path / "store"))
    plain = prepare(spec)
    windowed = prepare(replace(spec, window="1000/200"))
    assert windowed.encoded == 20
    assert windowed.manifest.source["encoding"]["window"] == [1000, 200]
    assert prepare(spec).dataset_id == plain.dataset_id


def test_a_window_is_two_numbers() -> None:
    for window in ("40", "40/", "40/0", "a/b", "nan/1", "1/inf", "1/2/3"):
        with pytest.raises(ParameterError, match="not CENTER/WIDTH"):
            PrepareSpec(window=window).validated()
    assert PrepareSpec(window="-600/1500").reading == ReadOptions((-600, 1500))


@pytest.mark.parametrize(
    "name",
    [
        "SC_rgb_jpeg_dcmtk.dcm",
        "SC_ybr_full_422_uncompressed.dcm",
        "SC_rgb_rle_16bit.dcm",
        "SC_rgb_gdcm_KY.dcm",
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_color_is_the_same_however_it_is_stored(name: str) -> None:
    """The same bars, red on top and white below, as RGB or YBR, of 8 bits or 16, compressed or not."""
    image = np.asarray(decode(_carried(name), (100, 100, 3))).astype(int)
    for row, color in {
        5: (255, 0, 0),
        15: (255, 128, 128),
        55: (128, 128, 255),
        95: (255, 255, 255),
    }.items():
        assert np.abs(image[row, 50] - color).max() <= 1


WHOLE = _saved(_dicom(WindowCenter=1000, WindowWidth=201, RescaleSlope=1, RescaleIntercept=-1024))


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_file_is_a_picture_or_refused(damage: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for place, value in damage:
        data[place] = value
    with suppress(Unreadable), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert decode(bytes(data), (64, 64, 1)).size == (64, 64)
