"""What a choice depends on and what it is: measured data, a device; a complete recipe with its reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddpipe.data.manifest import DatasetManifest
from ddpipe.train.recipe import Recipe

if TYPE_CHECKING:  # torch takes seconds to import
    from ddpipe.model.pretrained import Lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What prepare measured.

    Attributes:
        task: "multiclass" or "multilabel".
        shape: Height, width and channels of the images as they are stored.
        images: In the training split.
        per_class: How many of them show each class.
        validation: Images in the validation split.
        network: Of the weights of a warm start, if they name it.
        network_side: The shorter side of the images that it takes.
        weights: Whether pretrained weights that suit the images can be had; None if none were looked for.
        sized: Whether the user gave prepare the size of the images.
    """

    task: str
    shape: tuple[int, int, int]
    images: int
    per_class: tuple[int, ...]
    validation: int
    network: str = ""
    network_side: int = 0
    weights: Lookup | None = None
    sized: bool = False

    @property
    def side(self) -> int:
        """The shorter side."""
        return min(self.shape[:2])

    @property
    def imbalance(self) -> float:
        """The largest class to the smallest that is there; of labels, absent to present of the rarest."""
        counts = [count for count in self.per_class if count]
        if not counts:
            return 1.0
        return (max(counts) if self.task == "multiclass" else self.images - min(counts)) / min(counts)


@dataclass(frozen=True, slots=True)
class Device:
    """Where a training runs.

    Attributes:
        kind: "cpu" or "cuda".
        processes: That share each batch.
    """

    kind: str = "cpu"
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """Values for what was left open, and why.

    Attributes:
        recipe: Complete.
        reasons: By the names that were chosen.
        views: Test-time views that suit the images, and the reason.
        advice: What would probably give a better model; empty if nothing is known.
        restarted: Whether training has started again at a lower rate.
    """

    recipe: Recipe
    reasons: Mapping[str, str]
    views: tuple[str, str]
    advice: str = ""
    restarted: bool = False

    def lines(self) -> list[str]:
        """One for each choice, for a log."""
        return [f"{name} {getattr(self.recipe, name)}: {why}" for name, why in self.reasons.items()]

    def facts(self) -> dict[str, Any]:
        """As training.json holds it."""
        chosen = {
            name: {"value": getattr(self.recipe, name), "reason": why} for name, why in self.reasons.items()
        }
        views, why = self.views
        return {
            "chosen": {**chosen, "test_time_views": {"value": views, "reason": why}},
            "advice": self.advice,
        }


def measured(manifest: DatasetManifest) -> Measured:
    """What a dataset version's manifest says that matters here."""
    train = manifest.splits["train"]
    return Measured(
        task=manifest.task,
        shape=manifest.shape,
        images=train.count,
        per_class=train.per_class,
        validation=manifest.splits["validation"].count,
        sized="image_size" in manifest.source,
    )
