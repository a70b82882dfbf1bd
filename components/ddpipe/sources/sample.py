"""One sample of a source; samples.py has columns of many, with numpy, which naming a source must not need."""

from __future__ import annotations

from dataclasses import dataclass

from ddpipe.data.manifest import Label


@dataclass(frozen=True, slots=True)
class Sample:
    """One image and what it shows.

    Attributes:
        id: Its name in all versions.
        label: Multiclass: index of its class. Multilabel: 0 or 1 for each class.
        stamp: Changes when the image may have changed; known without reading the image.
        where: What its source needs to read it.
        group: Samples of one group (such as one patient) belong in one split; "": it is a group of its own.
        split: The split that the source assigns; "": none.
    """

    id: str
    label: Label
    stamp: str
    where: str = ""
    group: str = ""
    split: str = ""
