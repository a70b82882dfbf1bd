"""When more epochs are not worth their time: a pure function of the history, which a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

History = Sequence[Mapping[str, Any]]


def best_epoch(history: History, metric: str) -> int:
    """The place in the history of the first epoch with the largest value of a metric."""
    return max(range(len(history)), key=lambda place: history[place][metric])


def is_over(history: History, metric: str, patience: int) -> bool:
    """Whether the metric has not been better for `patience` epochs; never if that is 0."""
    return 0 < patience < len(history) - best_epoch(history, metric) if history else False
