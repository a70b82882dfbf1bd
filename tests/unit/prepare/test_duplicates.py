"""Pictures that are there twice, although their files differ."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from samples import a_picture

from ddpipe.data.columns import text
from ddpipe.prepare.duplicates import near_duplicates, perceptual_hash


def saved(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


def test_a_scaled_brightened_or_resaved_picture_is_found() -> None:
    pictures = [a_picture(seed) for seed in range(40)]
    again = [
        saved(pictures[3], 60),
        pictures[11].resize((200, 150)),
        pictures[20].point(lambda value: value * 0.8),
    ]
    hashes = [perceptual_hash(image) for image in (*pictures, *again)]
    assert near_duplicates(text(hashes)) == [(3, 40), (11, 41), (20, 42)]


def test_what_shows_nothing_is_like_nothing() -> None:
    flat, tiny = Image.new("RGB", (300, 300), "black"), a_picture(0, (16, 16))
    assert [perceptual_hash(flat), perceptual_hash(tiny)] == ["", ""]
    assert near_duplicates(text(["", ""])) == []
    assert near_duplicates(text([])) == []


@pytest.mark.parametrize(("bits", "found"), [(7, [(0, 1)]), (8, [])])
def test_looks_are_alike_up_to_seven_bits_wherever_they_are(bits: int, found: list[tuple[int, int]]) -> None:
    first = int(perceptual_hash(a_picture(1)), 16)
    places = np.random.default_rng(0).choice(256, bits, replace=False)
    second = first ^ sum(1 << int(place) for place in places)
    assert near_duplicates(text([f"{first:064x}", f"{second:064x}"])) == found
