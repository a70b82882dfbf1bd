"""What a model says about one image, as a value; and as text, JSON and a row of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ddpipe.model.package import Signature
from ddpipe.model.tasks import TASKS, BoolArray, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a model says about one image, or why it says nothing.

    Attributes:
        image: Name of the image.
        answer: The most probable class; of a multilabel model all labels that reach their thresholds.
        probabilities: Of every class, in the model's order; empty if the image cannot be read.
        warnings: What about the image is unusual for this model.
        problem: Why the image cannot be read; empty if it was.
    """

    image: str
    answer: tuple[str, ...] = ()
    probabilities: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    problem: str = ""

    def best(self, top: int) -> dict[str, float]:
        """The `top` most probable classes, the most probable first; 0: all classes."""
        ranked = sorted(self.probabilities.items(), key=lambda one: -one[1])
        return dict(ranked[: top or None])

    def to_dict(self, top: int = 0) -> dict[str, Any]:
        """Plain values for JSON, with the probabilities of the `top` most probable classes; 0: of all."""
        if self.problem:
            return {"image": self.image, "problem": self.problem}
        return {
            "image": self.image,
            "answer": list(self.answer),
            "probabilities": self.best(top),
            "warnings": list(self.warnings),
        }

    def to_text(self, top: int = 0) -> str:
        """One line for a person: the answer, or the `top` most probable classes."""
        if self.problem:
            return f"{self.image}: cannot be read: {self.problem}"
        shown = self.best(top) if top else {name: self.probabilities[name] for name in self.answer}
        return f"{self.image}: {', '.join(f'{name} {value:.4f}' for name, value in shown.items()) or 'none'}"

    def to_row(self, classes: Sequence[str]) -> list[str]:
        """Cells under the columns of `header`."""
        values = [f"{self.probabilities[name]:.6f}" if self.probabilities else "" for name in classes]
        return [self.image, ";".join(self.answer), *values, "; ".join(self.warnings), self.problem]


def header(classes: Sequence[str]) -> list[str]:
    """Names of the columns of `Prediction.to_row`."""
    return ["image", "answer", *classes, "warnings", "problem"]


class Answer(NamedTuple):
    """Of a model: the classes that it decides for, and the probabilities of all."""

    answer: tuple[str, ...]
    probabilities: dict[str, float]


def answers(signature: Signature, logits: FloatArray) -> list[Answer | None]:
    """For each row of logits, shape (images, classes); None where they are NaN or infinite."""
    known: BoolArray = np.asarray(np.isfinite(logits).all(axis=1))
    probabilities = signature.probabilities(np.where(known[:, None], logits, 0))
    decisions = TASKS[signature.task].decisions(probabilities, signature.thresholds)
    return [
        Answer(
            tuple(name for name, chosen in zip(signature.classes, row, strict=True) if chosen),
            dict(zip(signature.classes, claims.tolist(), strict=True)),
        )
        if is_known
        else None
        for is_known, row, claims in zip(known, decisions, probabilities, strict=True)
    ]
