"""How images of any size and shape are fitted to the shape of training: cropped, never squashed.

Squashing a photograph or an X-ray changes its proportions, by which classes differ, and by another factor for
each file; a deployed model would see shapes that it never learned. Cropping loses the ends of the longer
side, where the subject rarely is. So proportions are kept, and the report says how much area is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Sizes = Mapping[tuple[int, int], int]
"""Number of images of each height and width."""


def what_is_there(images: int, classes: int, sizes: Sizes, *, channels: int, exclusive: bool) -> str:
    """What a source holds, in a line: "120 images, 2 classes, 160 × 200, RGB"."""  # noqa: RUF002
    kinds = "classes" if exclusive else "labels"
    (height, width), _ = max(sizes.items(), key=lambda item: item[1])
    others = f" and {len(sizes) - 1:,} other sizes" if len(sizes) > 1 else ""
    color = "RGB" if channels > 1 else "gray"
    return f"{images:,} images, {classes:,} {kinds}, {width} × {height}{others}, {color}"  # noqa: RUF001


def how_shaped(encoding: Mapping[str, Any], sizes: Sizes) -> str:
    """What happens to images of these sizes, in a few sentences."""
    is_whole = encoding["kind"] == "jpeg"
    height, width = (encoding["side"], encoding["side"]) if is_whole else encoding["shape"][:2]
    target = f"{width} × {height} pixels"  # noqa: RUF001
    if not is_whole and set(sizes) <= {(height, width)}:
        return f"Images are kept as they are, {target}."
    how = (
        f"Images are kept whole, scaled to a shorter side of {height} pixels; readers get {target} "
        "from the center"
        if is_whole
        else f"Images are scaled to {target}, keeping proportions; the longer side is cropped at both ends"
    )
    losses = {size: _lost(size, (height, width)) for size in sizes}
    cropped = sum(count for size, count in sizes.items() if losses[size] > 0)
    enlarged = sum(count for (high, wide), count in sizes.items() if high < height or wide < width)
    details = []
    if cropped:
        mean = sum(losses[size] * count for size, count in sizes.items()) / cropped
        details.append(
            f"{cropped:,} of {sum(sizes.values()):,} images lose {mean:.0%} of their area on average"
        )
    if enlarged:
        details.append(f"{enlarged:,} are enlarged")
    seen = f" ({', '.join(details)})" if details else ""
    return f"{how}{seen}. Proportions never change."


def _lost(size: tuple[int, int], target: tuple[int, int]) -> float:
    """The fraction of an image's area that is cropped; less than a pixel is none."""
    factor = max(target[0] / size[0], target[1] / size[1])
    kept = [min(length, wanted / factor) for length, wanted in zip(size, target, strict=True)]
    if all(length - part < 1 for length, part in zip(size, kept, strict=True)):
        return 0.0
    return 1 - kept[0] * kept[1] / (size[0] * size[1])
