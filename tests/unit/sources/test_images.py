"""Decoding: every readable file becomes upright pixels of one shape, every other one a reason."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ddpipe.data.manifest import Shape
from ddpipe.sources import Unreadable
from ddpipe.sources.base import ReadOptions
from ddpipe.sources.images import ORIENTATION, decode, probe, scaled, shrink, wrapped


def _file(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _gradient(width: int = 6, height: int = 4) -> Image.Image:
    return Image.fromarray(np.arange(width * height, dtype=np.uint8).reshape(height, width))


def _pixels(data: bytes, shape: Shape) -> NDArray[np.uint8]:
    return np.asarray(decode(data, shape)).reshape(shape)


def test_gray_pixels_are_kept_as_they_are() -> None:
    data = _file(_gradient())
    assert probe(data).shape == (4, 6, 1)
    np.testing.assert_array_equal(_pixels(data, (4, 6, 1))[..., 0], np.arange(24).reshape(4, 6))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK"])
def test_color_has_three_channels(mode: str) -> None:
    data = _file(Image.new("RGB", (6, 4), "red").convert(mode), "TIFF")
    assert probe(data).shape == (4, 6, 3)
    red, green, blue = _pixels(data, (4, 6, 3))[0, 0]
    assert red > 200
    assert max(green, blue) < 60


@pytest.mark.parametrize("turned", [0, 1, 6])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_the_header_of_a_jpeg_is_read_as_pillow_reads_it(mode: str, progressive: bool, turned: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = turned or 1
    more = {"comment": b"SOF", "progressive": progressive, **({"exif": exif} if turned else {})}
    data = _file(Image.new(mode, (6, 4)), "JPEG", **more)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert probe(data).shape == (upright.height, upright.width, 1 if mode == "L" else 3)
    for end in range(0, len(data) - 1, 9):  # wherever it is cut
        with pytest.raises(Unreadable):
            shrink(data[:end], 4)
        with suppress(Unreadable):
            assert probe(data[:end]) == probe(data)


def test_gray_among_color_becomes_three_equal_channels() -> None:
    pixels = _pixels(_file(_gradient()), (4, 6, 3))
    np.testing.assert_array_equal(pixels[..., 0], pixels[..., 2])


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_become_the_upper_eight(kind: str) -> None:
    """As medical images come: Pillow's own conversion would make nearly all of it white."""
    deep = np.linspace(0, 65535, 24, dtype=np.uint16).reshape(4, 6)
    data = _file(Image.fromarray(deep), kind)
    assert probe(data).shape == (4, 6, 1)
    np.testing.assert_array_equal(_pixels(data, (4, 6, 1))[..., 0], deep >> 8)
    np.testing.assert_array_equal(_pixels(data, (4, 6, 3))[..., 2], deep >> 8)


@pytest.mark.parametrize(
    ("brightest", "depth"), [(0, 8), (255, 8), (256, 9), (4095, 12), (4096, 13), (65535, 16)]
)
def test_the_depth_of_an_image_is_what_its_brightest_value_needs(brightest: int, depth: int) -> None:
    deep = np.full((4, 6), brightest, np.uint16)
    data = _file(Image.fromarray(deep))
    assert probe(data).depth == depth
    assert np.asarray(decode(data, (4, 6, 1), depth)).max() == brightest >> (depth - 8)
    assert (
        np.asarray(decode(_file(Image.fromarray(np.full_like(deep, 65535))), (4, 6, 1), depth)).min() == 255
    )
    assert probe(_file(_gradient())).depth == 0


def test_numbers_of_an_unknown_range_are_refused() -> None:
    data = _file(Image.new("F", (6, 4), 0.5), "TIFF")
    with pytest.raises(Unreadable, match="32-bit"):
        decode(data, (4, 6, 1))


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_what_is_transparent_shows_white(mode: str) -> None:
    picture = Image.new("RGBA", (6, 4), (0, 0, 0, 0)).convert(mode)
    picture.putpixel((0, 0), (0, 255) if mode == "LA" else (0, 0, 0, 255))
    pixels = _pixels(_file(picture), (4, 6, 1))[..., 0]
    assert (pixels[0, 0], pixels[0, 1], pixels[3, 5]) == (0, 255, 255)


def test_the_camera_s_orientation_is_undone() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # the camera was held upright: turn the picture a quarter clockwise
    data = _file(_gradient(), exif=exif)
    assert probe(data).shape == (6, 4, 1)
    np.testing.assert_array_equal(_pixels(data, (6, 4, 1))[..., 0], np.rot90(np.arange(24).reshape(4, 6), -1))


def test_another_size_keeps_its_proportions() -> None:
    """A wide picture loses its left and right, it is not squeezed."""
    picture = Image.new("L", (30, 10), 0)
    picture.paste(255, (10, 0, 20, 10))
    assert _pixels(_file(picture), (5, 5, 1)).min() > 200


@pytest.mark.parametrize(
    ("size", "expected"), [((800, 600), (85, 64)), ((60, 90), (64, 96)), ((64, 64), (64, 64))]
)
def test_the_shorter_side_gets_the_length_asked_for(size: tuple[int, int], expected: tuple[int, int]) -> None:
    picture = Image.radial_gradient("L").resize(size)
    small = shrink(_file(picture, "JPEG", quality=95), 64)
    assert small.size == expected
    wanted = np.asarray(picture.resize(expected, Image.Resampling.BICUBIC), dtype=int)
    assert np.abs(np.asarray(small) - wanted).mean() < 2, "scaled decoding looks like scaling afterwards"


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("size", [(85, 64), (120, 90), (300, 200)])
def test_the_fast_filter_is_pillow_s_but_for_rounding(mode: str, size: tuple[int, int]) -> None:
    picture = Image.effect_noise((133, 100), 20).convert(mode)
    wanted = np.asarray(picture.resize(size, Image.Resampling.BICUBIC), dtype=int)
    assert np.abs(np.asarray(scaled(picture, size)) - wanted).max() <= 2


def test_where_the_fast_filter_is_missing_pillow_s_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = Image.effect_noise((133, 100), 80)
    monkeypatch.setattr("ddpipe.sources.images.Resizer", None)
    assert scaled(picture, (85, 64)) == picture.resize((85, 64), Image.Resampling.BICUBIC)


def test_a_sideways_photograph_is_scaled_upright() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    photograph = _file(Image.effect_noise((1200, 800), 50).convert("RGB"), "JPEG", exif=exif)
    assert shrink(photograph, 100).size == (100, 150)
    assert decode(photograph, (150, 100, 3)).size == (100, 150)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3)])
def test_bare_pixels_come_back_as_they_went(shape: tuple[int, ...]) -> None:
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    np.testing.assert_array_equal(np.asarray(decode(wrapped(pixels), (4, 6, len(shape) * 2 - 3))), pixels)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello", "not an image"),
        (_file(Image.effect_noise((60, 40), 50), "PNG")[:500], "truncated"),
        (_file(Image.effect_noise((60, 40), 50), "JPEG")[:500], "truncated"),
    ],
)
def test_what_cannot_be_read_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        decode(data, (4, 6, 1))


@pytest.mark.parametrize(("size", "side"), [((3000, 2), 150), ((1, 700), 96), ((9, 80), 4000)])
def test_an_image_that_scaling_makes_absurd_is_refused(size: tuple[int, int], side: int) -> None:
    """No JPEG is so long, and a narrow image of a few bytes would take gigabytes."""
    with pytest.raises(Unreadable, match=f"with a shorter side of {side}, it would have"):
        shrink(_file(Image.new("RGB", size), "PNG"), side)


def test_a_long_image_keeps_its_proportions() -> None:
    assert shrink(_file(Image.new("L", (2000, 10)), "PNG"), 256).size == (51_200, 256)


def test_an_interlaced_png_with_missing_rows_is_refused() -> None:
    """A valid file whose stream ends after some rows."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", 48, 64, 8, 0, 0, 0, 1)
    packed = zlib.compress(bytes(10 * 49))
    parts = (
        chunk(b"IHDR", header),
        chunk(b"IDAT", packed[:1]),
        chunk(b"IDAT", packed[1:]),
        chunk(b"IEND", b""),
    )
    short = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    with pytest.raises(Unreadable, match="truncated"):
        decode(short, (64, 48, 1))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_a_png_with_a_black_last_row_is_whole(mode: str) -> None:
    black = Image.new("L", (13, 7), 0).convert(mode)
    assert decode(_file(black), (7, 13, 1)).size == (13, 7)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_further_frames_are_not_lost_silently(kind: str) -> None:
    frames = [Image.effect_noise((16, 12), 50).convert("RGB") for _ in range(3)]
    data = _file(frames[0], kind, save_all=True, append_images=frames[1:])
    with pytest.raises(Unreadable, match="it has 3 frames: `first_frame` uses the first of them"):
        probe(data)
    assert decode(data, (12, 16, 3), reading=ReadOptions(first_frame=True)).size == (16, 12)


def test_the_preview_in_a_photograph_is_no_frame() -> None:
    frames = [Image.effect_noise((16, 12), 50).convert("RGB") for _ in range(2)]
    data = _file(frames[0], "MPO", save_all=True, append_images=frames[1:])
    assert decode(data, (12, 16, 3)).size == (16, 12)


def test_a_decompression_bomb_is_not_opened() -> None:
    """A few kilobytes that would become 400 million pixels, and fewer that Pillow itself only warns of."""
    for side in (20_000, 10_000):
        bomb = _file(Image.new("1", (side, side)), compress_level=9)
        with pytest.raises(Unreadable, match="bomb"):
            probe(bomb)


def _picture() -> Image.Image:
    """A scene of gradients and a little noise, as photographs are."""
    down, right = np.mgrid[0:120, 0:180]
    scene = np.stack([right, 2 * down, (right + down) / 2], axis=-1) + 10
    return Image.fromarray(
        np.clip(scene + np.random.default_rng(0).normal(0, 6, scene.shape), 1, 255).astype("u1")
    )


def _zero_tail(data: bytes, share: float = 0.6) -> bytes:
    start = int(len(data) * share)
    return data[:start] + bytes(len(data) - start)


@pytest.mark.parametrize("quality", [75, 95])
@pytest.mark.parametrize("damage", ["tail", "hole", "closed"])
def test_a_damaged_jpeg_is_refused(damage: str, quality: int) -> None:
    """Pillow shows gray for what is missing, and says nothing."""
    data = _file(_picture(), "JPEG", quality=quality)
    middle = len(data) // 2
    broken = {
        "tail": _zero_tail(data),
        "hole": data[:middle] + bytes(1024) + data[middle + 1024 :],
        "closed": data[:middle] + b"\xff\xd9",
    }[damage]
    for size in (64, 15):  # as it is, and by an eighth
        with pytest.raises(Unreadable, match=r"damaged|truncated"):
            shrink(broken, size)


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "PPM", "WEBP", "AVIF", "PNG", "GIF"])
def test_a_file_whose_end_is_zeros_is_refused(kind: str) -> None:
    """As a download leaves it that reserves the whole size first."""
    data = _file(_picture(), kind, **({"lossless": True} if kind == "WEBP" else {}))
    shrink(data, 64)
    with pytest.raises(Unreadable):
        shrink(_zero_tail(data), 64)


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "PPM", "JPEG", "WEBP", "PNG"])
@pytest.mark.parametrize("color", ["black", "white", "gray"])
def test_even_borders_are_no_damage(kind: str, color: str) -> None:
    whole = Image.new("RGB", (180, 160), color)
    whole.paste(_picture(), (0, 0))
    for picture in (whole, whole.rotate(180), Image.new("RGB", (180, 160), color)):
        options = {"optimize": True} if kind == "JPEG" else {}  # its codes for one color are all 0
        shrink(_file(picture, kind, **options), 64)


def test_a_jpeg_of_a_million_segments_is_read_once() -> None:
    data = _file(Image.new("L", (8, 8), 90), "JPEG")
    # To add each segment to the ones before would copy a terabyte, and outlast the test.
    many = data[:2] + b"\xff\xfe\0\6text" * 1_000_000 + data[2:]
    assert probe(many).shape == (8, 8, 1)


def test_what_cameras_append_to_a_jpeg_is_no_damage() -> None:
    data = _file(_picture(), "JPEG", comment=bytes(2000))
    shrink(data + bytes(5000), 64)
    shrink(data + b"a film" * 500, 64)
