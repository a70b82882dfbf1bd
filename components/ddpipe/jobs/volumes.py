"""The volumes that can be mounted into the pods of a job, and their notation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from ddpipe.kube.capacity import quantity

VOLUME = "KIND:NAME:/PATH[:ro], or for a snapshot KIND:NAME:/PATH:SIZE[:ro]"
"""The notation of a volume."""


class VolumeKind(StrEnum):
    """The source of a volume."""

    CLAIM = "claim"
    SECRET = "secret"  # noqa: S105 - a kind of volume
    CONFIG = "config"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume that is mounted into every replica.

    Attributes:
        kind: Claim, secret, config map, or volume snapshot; each pod gets its own copy of a snapshot.
        name: The object's name.
        path: Where it appears in the container.
        read_only: Whether it is mounted read-only; secrets and config maps always are.
        size: The size of a snapshot's copy.
    """

    kind: VolumeKind
    name: str
    path: str
    read_only: bool = False
    size: str = ""

    @classmethod
    def parsed(cls, text: str) -> Volume:
        """The volume that `text` names: KIND:NAME:PATH, for a snapshot also :SIZE, with :ro if read-only."""
        parts = text.split(":")
        if read_only := parts[-1] == "ro":
            parts.pop()
        match parts:
            case [VolumeKind.SNAPSHOT, name, path, size] if name and path.startswith("/"):
                with suppress(ValueError):
                    quantity(size)
                    return cls(kind=VolumeKind.SNAPSHOT, name=name, path=path, read_only=read_only, size=size)
            case [kind, name, path] if (
                kind in set(VolumeKind) - {VolumeKind.SNAPSHOT} and name and path.startswith("/")
            ):
                return cls(kind=VolumeKind(kind), name=name, path=path, read_only=read_only)
        raise ValueError(f"{text!r} is not {VOLUME}, where KIND is one of {', '.join(VolumeKind)}")
