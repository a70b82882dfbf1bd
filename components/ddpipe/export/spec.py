"""How to export: what the card says, and which further formats the package holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ddpipe.data.names import printable
from ddpipe.parameters import Between, Parameters, parameter
from ddpipe.spelling import option

FP16, INT8, PROGRAM = "fp16", "int8", "torch-export"
FORMATS = (FP16, INT8, PROGRAM)

LONGEST_LICENSE, LONGEST_USE = 200, 2_000
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSpec(Parameters):
    """What a model package holds besides the model."""

    what: ClassVar[str] = "export cannot start"
    heading: ClassVar[str] = "Export"
    others: ClassVar[str] = "export_options"

    license: str = parameter("", "License of the model for its card, such as apache-2.0.")
    intended_use: str = parameter("", "What the model is for, and what it is not for: a text for its card.")
    export_formats: Sequence[str] = parameter(
        [],
        "Further formats of the model: fp16 and int8 (ONNX; int8 is calibrated on training images), "
        "torch-export (a program for PyTorch).",
    )
    export_loss: float = parameter(
        0.01,
        "Most that accuracy (macro AUC of labels) on the test split may lose in a further format; beyond it "
        "the format is left out of the package, with a warning.",
        Between(0, 1),
    )

    def missing_in(self, lineage: Mapping[str, Any]) -> list[str]:
        """The parameters whose values, if they are given, a package does not have; export_loss is in none."""
        formats = lineage.get("formats")
        has_formats = isinstance(formats, Mapping) and {*self.export_formats} <= {*formats}
        as_asked = {
            "license": self.license in ("", lineage.get("license")),
            "intended_use": self.intended_use in ("", lineage.get("intended_use")),
            "export_formats": not self.export_formats or has_formats,
        }
        return [name for name, is_so in as_asked.items() if not is_so]

    def conflicts(self) -> Iterator[str]:
        """Unknown formats, and texts that no card can show."""
        if unknown := [name for name in self.export_formats if name not in FORMATS]:
            yield f"{option('export_formats')} has {unknown[0]!r}, not {', '.join(FORMATS)}"
        for name, text, most in (
            ("license", self.license, LONGEST_LICENSE),
            ("intended_use", self.intended_use, LONGEST_USE),
        ):
            if len(text) > most:
                yield f"{option(name)} has {len(text):,} characters, at most {most:,} are allowed"
            if printable(text.replace("\n", " ")):
                yield f"{option(name)} has control characters"
