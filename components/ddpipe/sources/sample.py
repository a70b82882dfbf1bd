"""One sample of a source; a file of its own, as its readers need no numpy, and its columns do."""

from __future__ import annotations

from dataclasses import dataclass

from ddpipe.data.manifest import Label


@dataclass(frozen=True, slots=True)
class Sample:
    """One image and what it shows.

    Attributes:
        label: Multiclass: index of its class. Multilabel: 0 or 1 for each class.
        stamp: Changes when the image may have changed; known without reading the image.
        group: Samples of one group (such as one patient) belong in one split; "": it is a group of its own.
        split: The split that the source assigns; "": none.
    """

    id: str
    label: Label
    stamp: str
    where: str = ""
    group: str = ""
    split: str = ""
