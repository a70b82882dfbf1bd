"""The gate's part of the report: the verdict, and images on which new model and champion differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpipe.data.reader import open_split
from ddpipe.model.evaluation import Evaluation
from ddpipe.model.tasks import TASKS
from ddpipe.model.verdict import Verdict, load_verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An image that one of the models gets right, and the other wrong.

    Attributes:
        sample_id: Of the sample.
        image: uint8, shape (H, W, C).
        true: Names of the classes that it shows.
        said: Names of those that the new model says.
        is_gain: Whether the new model is right.
    """

    sample_id: str
    image: npt.NDArray[np.uint8]
    true: str
    said: str
    is_gain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A verdict with its pictures.

    Attributes:
        verdict: What was decided.
        differences: The largest first.
    """

    verdict: Verdict
    differences: tuple[Difference, ...]

    @property
    def gains(self) -> list[Difference]:
        """Images that only the new model gets right."""
        return [one for one in self.differences if one.is_gain]

    @property
    def losses(self) -> list[Difference]:
        """Images that only the champion gets right."""
        return [one for one in self.differences if not one.is_gain]


def gate_of(uri: str, evaluation: Evaluation) -> Gate:
    """The verdict at a URI, with the images of the evaluated split."""
    verdict, rows = load_verdict(uri)
    metrics, (logits, labels) = evaluation.metrics, evaluation.calibrated()
    rows = rows[(rows[:, 0] >= 0) & (rows[:, 0] < len(logits))]
    places = rows[:, 0]
    if not len(places):
        return Gate(verdict=verdict, differences=())
    task, names = TASKS[metrics.task], [one.name for one in metrics.classes]
    truth = task.truth(labels[places], len(names))
    said = task.decisions(task.probabilities(logits[places]), metrics.thresholds)
    samples = open_split(evaluation.subject.dataset, evaluation.subject.split)

    def named(row: npt.NDArray[np.bool_]) -> str:
        return ", ".join(name for name, shown in zip(names, row, strict=True) if shown) or "none"

    return Gate(
        verdict=verdict,
        differences=tuple(
            Difference(
                sample_id=samples.sample_ids[place],
                image=image,
                true=named(shown),
                said=named(answer),
                is_gain=bool(better),
            )
            for (place, better), image, shown, answer in zip(
                rows.tolist(), samples.images(places), truth, said, strict=True
            )
        ),
    )
