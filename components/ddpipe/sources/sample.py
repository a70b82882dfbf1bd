"""One sample of a source; a file of its own, as its readers need no numpy, and its columns do."""

from __future__ import annotations

from dataclasses import dataclass

from ddpipe.data.manifest import Label


@dataclass(frozen=True, slots=True)
class Sample:
    """One image and what it shows."""

    id: str
    label: Label  # Multiclass: index of its class. Multilabel: 0 or 1 for each class.
    stamp: str  # changes when the image may have changed; known without reading the image
    where: str = ""
    # Samples of one group (such as one patient) belong in one split; "": it is a group of its own
    group: str = ""
    split: str = ""  # the split that the source assigns; "": none
