"""How an image file becomes the input of a model: part of a model's signature, in the order of its fields.

`ddpipe.sources.preprocess` does it; a program in another language can do the same from signature.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ddpipe.data.manifest import Shape

WHOLE_BYTE = 8
DEEPEST = 16  # bits per value that an image file may have
LARGEST_SIDE = 4096  # of an image, in pixels; preparing offers no larger one
BEST_QUALITY = 95  # the highest JPEG quality that preparing offers


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """How an image file becomes the pixels that the model takes; the signature has their height and width."""

    orientation: str = "exif"  # "exif": an image is turned upright as its EXIF tag says
    # Center and width of the values of a DICOM file that are shown, in the scanner's units; None: each file's
    # own window
    window: tuple[float, float] | None = None
    # Whether the first of several frames (DICOM, GIF, TIFF) is used; else such files are rejected
    first_frame: bool = False
    # Bits that the values of an image of 16 bits use, of which the upper 8 are kept; 0: the training had no
    # such images, and all 16 count
    depth: int = 0
    background: str = "white"  # what transparent pixels become, and what a whole image does not fill
    color: str = "gray"  # "gray" (ITU-R 601 weights) or "rgb"
    # Proportions are kept. "cover": until the image just covers height and width; "shorter side": until its
    # shorter side has `side` pixels; "contain": until it just fits, in the middle.
    scale: str = "cover"
    side: int = 0  # of "shorter side"; else 0
    filter: str = "bicubic"  # of scaling, as wide as the reduction asks for
    # The scaled image is compressed and decompressed as a JPEG of this quality, as the training images were;
    # 0: it is not
    jpeg_quality: int = 0
    crop: str = "center"  # "center": what is left over is cut off at both ends
    # Height and width to which the image is cropped, if it is then scaled to the smaller input of the model;
    # empty if cropping gives that already
    reduced_from: tuple[int, ...] = ()

    @classmethod
    def of_dataset(cls, encoding: Mapping[str, Any], shape: Shape, seen: Shape) -> Self:
        """What preparing did to a version's images, and training to reach the shape `seen` of the model."""
        window = encoding.get("window")
        is_jpeg = encoding.get("kind") == "jpeg"
        return cls(
            window=(float(window[0]), float(window[1])) if window else None,
            first_frame=encoding.get("frames") == "first",
            depth=encoding.get("depth", 0),
            color="gray" if shape[2] == 1 else "rgb",
            scale=encoding.get("fit", "shorter side" if is_jpeg else "cover"),
            side=encoding.get("side", 0),
            jpeg_quality=encoding["quality"] if is_jpeg else 0,
            reduced_from=() if seen == shape else shape[:2],
        )

    def problems(self) -> Iterator[str]:
        """Why this version of ddpipe cannot do it."""
        known = {
            "orientation": ("exif",),
            "background": ("white",),
            "color": ("gray", "rgb"),
            "scale": ("cover", "contain", "shorter side"),
            "filter": ("bicubic",),
            "crop": ("center",),
        }
        for name, values in known.items():
            if (value := getattr(self, name)) not in values:
                yield f"its preprocessing has {name} {value[:40]!r}, not {' or '.join(values)}"
        if self.depth and not WHOLE_BYTE <= self.depth <= DEEPEST:
            yield f"its preprocessing has depth {self.depth}"
        if not 0 <= self.jpeg_quality <= BEST_QUALITY or (self.scale == "shorter side") != bool(self.side):
            yield f"its preprocessing has side {self.side} and jpeg_quality {self.jpeg_quality}"
        if self.reduced_from and (
            len(self.reduced_from) != 2 or not all(0 < side <= LARGEST_SIDE for side in self.reduced_from)  # noqa: PLR2004 - height and width
        ):
            yield f"its preprocessing has reduced_from {self.reduced_from}"
        if self.window and self.window[1] <= 0:
            yield f"its preprocessing has the window {self.window}"
