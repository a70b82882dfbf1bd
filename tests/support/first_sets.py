"""Six kinds of sets that people bring first, drawn from seeds: small, rare, wide, of any size, tables."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

Random = np.random.Generator

SIGNS = {
    "faces": 420,
    "animals": 310,
    "food": 260,
    "places": 250,
    "things": 240,
    "signs": 210,
    "flags": 110,
    "tools": 70,
}
"""Pictures in each group: 1,870."""


def signs(folder: Path) -> dict[str, Any]:
    """Small colored signs of 72 pixels in eight groups, each its own kind of form, with an alpha channel."""
    random = np.random.default_rng(1)
    for group, (name, count) in enumerate(SIGNS.items()):
        for number in range(count):
            picture = Image.new("RGBA", (72, 72))
            draw = ImageDraw.Draw(picture)
            for part in range(3):
                # The form says which group it is; in every fifth sign it is that of any group.
                form = int(random.integers(len(SIGNS))) if random.random() < 1 / 5 else group
                _form(draw, form, random, 30 - 8 * part)
            _save(picture, folder / name / f"{number:04}.png")
    return {"source_path": str(folder)}


def _form(draw: ImageDraw.ImageDraw, form: int, random: Random, radius: int) -> None:
    color = (*map(int, random.integers(40, 256, 3)), 255)
    x, y = (int(value) for value in random.integers(radius, 72 - radius + 1, 2))
    box = (x - radius, y - radius, x + radius, y + radius)
    if form == 0:
        draw.ellipse(box, fill=color)
    elif form == 1:
        draw.ellipse(box, outline=color, width=5)
    elif form == 2:
        draw.chord(box, 0, 180, fill=color)
    else:
        sides = {3: 3, 4: 4, 5: 6}.get(form)
        if sides:
            draw.regular_polygon((x, y, radius), sides, rotation=int(random.integers(360)), fill=color)
        elif form == 6:
            draw.rectangle((x - radius, y - radius // 2, x + radius, y + radius // 2), fill=color)
        else:
            draw.line((x - radius, y - radius, x + radius, y + radius), fill=color, width=7)


def glyphs(folder: Path) -> dict[str, Any]:
    """40 kinds of characters, each of five strokes, 30 drawn by hand of each: gray, 32 pixels."""
    random = np.random.default_rng(2)
    for kind in range(40):
        strokes = random.uniform(5, 27, (6, 2))
        for number in range(30):
            picture = Image.new("L", (32, 32))
            points = strokes + random.normal(0, 1.6, strokes.shape) + random.normal(0, 1.5, 2)
            ImageDraw.Draw(picture).line([*map(tuple, points)], fill=255, width=int(random.integers(1, 4)))
            _save(picture, folder / f"kind-{kind:02}" / f"{number:02}.png")
    return {"source_path": str(folder)}


def parts(folder: Path) -> dict[str, Any]:
    """Pictures of 380 good parts, and of 20 with a scratch, often near an end; 341 of the 400 are wide."""
    random = np.random.default_rng(3)
    for number in range(400):
        width, height = (320, 120) if number < 341 else (160, 120)
        metal = 120 + random.normal(0, 6, (height, width)) + 20 * np.sin(np.arange(width) / 17)
        picture = Image.fromarray(metal.clip(0, 255).astype(np.uint8))
        is_bad = number % 20 == 7
        if is_bad:
            end = random.random() < 0.7
            x = int(random.integers(8, 40) if end else random.integers(width // 3, width // 2))
            y = int(random.integers(15, height - 45))
            ImageDraw.Draw(picture).line((x, y, x + 12, y + 30), fill=235, width=4)
        _save(picture, folder / ("defective" if is_bad else "good") / f"{number:03}.png")
    return {"source_path": str(folder)}


def three_each(folder: Path) -> dict[str, Any]:
    """Three pictures of each of five colors."""
    random = np.random.default_rng(4)
    for name, color in {"red": 0, "green": 1, "blue": 2, "dark": 3, "light": 4}.items():
        for number in range(3):
            pixels = random.integers(60, 120, (48, 48, 3))
            if color < 3:
                pixels[:, :, color] += 110
            else:
                pixels = pixels // 2 if name == "dark" else pixels + 110
            _save(Image.fromarray(pixels.astype(np.uint8)), folder / name / f"{number}.png")
    return {"source_path": str(folder)}


def many_sizes(folder: Path) -> dict[str, Any]:
    """240 pictures of 240 sizes: stripes that rise, fall or lie."""
    random = np.random.default_rng(5)
    for number in range(240):
        width, height = 40 + number % 16 * 7, 40 + number // 16 * 8
        kind = number % 3
        rows, columns = np.mgrid[0:height, 0:width]
        slope = {0: 1, 1: -1, 2: 0}[kind] * random.uniform(0.6, 1.4)
        wave = 128 + 60 * np.sin((rows + slope * columns) / random.uniform(2, 5))
        picture = (wave + random.normal(0, 30, wave.shape)).clip(0, 255).astype(np.uint8)
        _save(Image.fromarray(picture), folder / ("rising", "falling", "lying")[kind] / f"{number:03}.jpg")
    return {"source_path": str(folder)}


def table(folder: Path) -> dict[str, Any]:
    """A table `filename,label,sex` of 240 pictures of one folder: two labels, people of two sexes."""
    random = np.random.default_rng(6)
    rows = []
    for number in range(240):
        is_ill, sex = number % 3 == 0, ("female", "male")[int(random.integers(2))]
        picture = 90 + 25 * random.normal(size=(64, 64)) + (15 if sex == "male" else 0)
        if is_ill:
            y, x = random.integers(10, 46, 2)
            picture[y : y + 9, x : x + 9] += 55
        name = f"{number:03}.png"
        _save(Image.fromarray(picture.clip(0, 255).astype(np.uint8)), folder / "pictures" / name)
        rows.append((name, "ill" if is_ill else "healthy", sex))
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("filename", "label", "sex"), *rows])
    return {"source_path": str(folder)}


def _save(picture: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)


FIRST_SETS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "signs": signs,
    "glyphs": glyphs,
    "parts": parts,
    "three of each": three_each,
    "240 sizes": many_sizes,
    "table": table,
}
"""What prepare is asked for, by the name of the set, once it is drawn in a folder."""
