"""How to export: what the card says. The step itself is in export.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ddpipe.data.manifest import printable
from ddpipe.parameters import Parameters, parameter

LONGEST_LICENSE, LONGEST_USE = 200, 2_000  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSpec(Parameters):
    """What a model package holds besides the model."""

    what: ClassVar[str] = "export cannot start"
    heading: ClassVar[str] = "Export"
    others: ClassVar[str] = "export_options"

    license: str = parameter("", "License of the model for its card, such as apache-2.0.")
    intended_use: str = parameter("", "What the model is for, and what it is not for: a text for its card.")

    def missing_in(self, lineage: Mapping[str, Any]) -> list[str]:
        """The parameters whose values, if they are given, a package does not have."""
        given = {"license": self.license, "intended_use": self.intended_use}
        return [name for name, text in given.items() if text not in ("", lineage.get(name))]

    def conflicts(self) -> Iterator[str]:
        """Texts that no card can show."""
        for name, text, most in (
            ("license", self.license, LONGEST_LICENSE),
            ("intended_use", self.intended_use, LONGEST_USE),
        ):
            if len(text) > most:
                yield f"`{name}` has {len(text):,} characters, at most {most:,} are allowed"
            if printable(text.replace("\n", " ")):
                yield f"`{name}` has control characters"
