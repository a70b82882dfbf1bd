"""Two models on the same images: which is better, and how sure that is. Pure functions.

Both answers to an image share how hard it is, so their difference varies much less than either score. The
bootstrap therefore draws images, each with both answers; where images belong together, whole groups of them.

Sources: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 8 and 13 (percentile interval
of a paired difference); McNemar, Psychometrika 12 (1947), in its exact form, as Dietterich, Neural
Computation 10 (1998), recommends for two classifiers on one test set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from ddpipe.evaluate.metrics import (
    BUDGET,
    FEWEST_RESAMPLES,
    RESAMPLES,
    Answers,
    Statistic,
    macro_average_precision,
    macro_f1,
    mean,
    resampled,
    resampled_macro_auc,
)
from ddpipe.model.tasks import BoolArray, FloatArray, IntArray

METRICS: Mapping[str, Callable[[Answers], Statistic]] = {
    "accuracy": lambda answers: mean(answers.right.astype(np.float32)),
    "macro_f1": lambda answers: macro_f1(answers.decisions, answers.truth),
    "macro_auc": lambda answers: resampled_macro_auc(answers.probabilities, answers.truth),
    "macro_average_precision": lambda answers: macro_average_precision(answers.probabilities, answers.truth),
}
"""By name, from answers to a statistic of resamples; the larger the better, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """How much better the candidate is than the champion.

    Attributes:
        candidate: Its score.
        champion: Its score on the same images.
        low: Lower end of the interval of the difference.
        high: Upper end.
    """

    candidate: float
    champion: float
    low: float
    high: float

    @property
    def value(self) -> float:
        """The difference."""
        return self.candidate - self.champion


def gain(
    candidate: Answers,
    champion: Answers,
    metric: str,
    confidence: float,
    groups: IntArray | None = None,
    seed: int = 0,
) -> Gain:
    """The difference of a score, with its percentile interval from a paired bootstrap.

    A macro average of a resample is over the classes that occur in it.

    Args:
        candidate: Answers of shape (samples, classes).
        champion: To the same samples, in the same order.
        metric: A name in `METRICS`.
        confidence: Of the two-sided interval, such as 0.95.
        groups: Shape (samples,): samples with equal numbers belong together, and are drawn together; None:
            each is on its own.
        seed: The same seed gives the same interval.
    """
    of_candidate, of_champion = METRICS[metric](candidate), METRICS[metric](champion)
    units = np.arange(len(candidate.truth)) if groups is None else np.unique(groups, return_inverse=True)[1]
    # Twice what one model's intervals take, as both are scored.
    resamples = max(FEWEST_RESAMPLES, min(RESAMPLES, BUDGET // (2 * candidate.probabilities.size)))
    drawn = np.concatenate(
        [
            of_candidate(weights) - of_champion(weights)
            for weights in resampled(units, resamples, np.random.default_rng(seed))
        ]
    )
    tail = 50 * (1 - confidence)
    low, high = np.nanpercentile(drawn, (tail, 100 - tail))
    return Gain(
        candidate=score(candidate, metric),
        champion=score(champion, metric),
        low=float(low),
        high=float(high),
    )


def score(answers: Answers, metric: str) -> float:
    """A score of a model on all samples, by its name in `METRICS`.

    A macro average is over the classes that occur; it is NaN if the samples do not define it at all.
    """
    whole = np.ones((len(answers.truth), 1), np.float64)
    return float(METRICS[metric](answers)(whole)[0])


def mcnemar(candidate: BoolArray, champion: BoolArray) -> float:
    """The probability that models of equal accuracy disagree at least as one-sidedly (two-sided, exact).

    Args:
        candidate: Whether each of its answers is right, shape (samples,).
        champion: Likewise.
    """
    gained, lost = int((candidate & ~champion).sum()), int((champion & ~candidate).sum())
    return float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0


def by_class(answers: Answers, *, exclusive: bool) -> tuple[float | None, ...]:
    """What each class is judged by: recall of an exclusive class, AUC of a label; None where undefined.

    Args:
        answers: Of shape (samples, classes).
        exclusive: Whether an image shows exactly one of the classes.
    """
    if not exclusive:
        from ddpipe.model.tasks import class_aucs  # noqa: PLC0415 - brings scikit-learn

        return class_aucs(answers.probabilities, answers.truth)
    hits: FloatArray = (answers.truth & answers.decisions).sum(axis=0)
    support: FloatArray = answers.truth.sum(axis=0)
    return tuple(float(hit / count) if count else None for hit, count in zip(hits, support, strict=True))
