"""One sample of a source; without numpy, as the names of prepare's parameters are asked for without it."""

from __future__ import annotations

from dataclasses import dataclass

from ddpipe.data.manifest import Label


@dataclass(frozen=True, slots=True)
class Sample:
    """One image and what it shows.

    Attributes:
        id: A name that stays with it from version to version.
        label: Multiclass: index of its class. Multilabel: 0 or 1 for each class.
        stamp: Changes whenever the image may have changed; known without reading it.
        where: What its source needs to find it again.
        group: Samples of one group (such as one patient) belong into one split; empty: it stands alone.
        split: The split that the source itself puts it into; empty: it leaves that to us.
    """

    id: str
    label: Label
    stamp: str
    where: str = ""
    group: str = ""
    split: str = ""
