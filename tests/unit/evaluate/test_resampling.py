"""Intervals: what is drawn, how often, and the bounds that follow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from evaluation_runs import some_labels, some_logits
from scipy.stats import t as student
from threadpoolctl import threadpool_info, threadpool_limits

from ddpipe.evaluate import resampling
from ddpipe.evaluate.measure import measure
from ddpipe.evaluate.resampling import bootstrap, gain_interval, intervals, resampled
from ddpipe.model.metrics import Answers
from ddpipe.model.tasks import TASKS, FloatArray

GROUPS = np.array([0, 0, 1, 2, 2, 2, 3])


def _answers(samples: int = 60, skill: float = 1) -> Answers:
    labels = np.arange(samples) % 3
    return Answers.of(TASKS["multiclass"], some_logits(labels, 3, skill=skill), labels, [None] * 3)


@pytest.mark.parametrize(("resamples", "blocks"), [(1, [1]), (32, [32]), (33, [32, 1]), (70, [32, 32, 6])])
def test_resamples_come_in_blocks(resamples: int, blocks: list[int]) -> None:
    drawn = list(resampled(GROUPS, resamples))
    assert [block.shape for block in drawn] == [(7, size) for size in blocks]
    assert {block.dtype for block in drawn} == {np.dtype(np.float32)}


def test_each_resample_has_as_many_groups_as_there_are_and_each_of_them_whole() -> None:
    weights = np.concatenate(list(resampled(GROUPS, 500)), axis=1)
    first = [0, 2, 3, 6]  # a sample of each group
    assert np.array_equal(weights, weights[first][GROUPS])
    assert (weights[first].sum(axis=0) == 4).all()
    assert weights[first].mean(axis=1) == pytest.approx(1, abs=0.15)
    assert len(np.unique(weights, axis=1).T) > 20, "they differ"
    again = np.concatenate(list(resampled(GROUPS, 500)), axis=1)
    assert np.array_equal(weights, again)


def test_the_same_data_give_the_same_intervals_in_every_release() -> None:
    drawn = np.random.default_rng(0).integers(0, 4, (4, 3))
    (weights,) = resampled(GROUPS, 3)
    assert np.array_equal(weights[[0, 2, 3, 6]], [(drawn == group).sum(axis=0) for group in range(4)])


def test_resamples_are_weighed_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, whole = set[int](), resampling.resampled

    def noted(groups: np.ndarray, resamples: int) -> object:
        threads.update(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return whole(groups, resamples)

    monkeypatch.setattr(resampling, "resampled", noted)
    with threadpool_limits(2, user_api="blas"):
        intervals(_answers(), ["log_loss"], None)
        assert threads == {1}
        threads.clear()
        gain_interval(_answers(), _answers(skill=2), "accuracy")
        assert threads == {1}


def test_a_gain_is_resampled_by_groups_of_any_numbers() -> None:
    candidate, champion, groups = _answers(), _answers(skill=0.3), np.arange(60) // 4
    weights = np.concatenate(list(resampled(groups, 1000)), axis=1)
    gains = (candidate.right.astype(float) - champion.right) @ weights / weights.sum(axis=0)
    expected = pytest.approx(np.percentile(gains, (2.5, 97.5)), abs=1e-6)
    assert gain_interval(candidate, champion, "accuracy", 7 * groups + 3) == expected


def test_the_bounds_are_percentiles_of_what_was_resampled() -> None:
    """Of 1,000 values 0, 1, ..., the lowest and the highest 2.5 % are outside; a NaN does not count."""
    numbers = itertools.count()

    def counted(weights: FloatArray) -> FloatArray:
        return np.array([next(numbers) for _ in weights.T], np.float64)

    def holes(weights: FloatArray) -> FloatArray:
        return np.where(np.arange(weights.shape[1]) % 2, np.nan, np.arange(weights.shape[1]))

    found = bootstrap({"counted": counted, "holes": holes}, groups=GROUPS, resamples=1000)
    assert found["counted"] == pytest.approx((24.975, 974.025))
    assert found["holes"] == (0, 30)


def test_without_spread_there_is_no_interval() -> None:
    found = bootstrap({"same": lambda weights: np.ones(weights.shape[1])}, groups=GROUPS, resamples=200)
    assert found == {"same": (None, None)}
    assert bootstrap({}, groups=GROUPS, resamples=200) == {}


@pytest.mark.parametrize(("budget", "expected"), [(10**9, 1000), (600, 600), (199, 200)])
def test_large_splits_are_resampled_less_often(
    budget: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget of one is a resample of all probabilities of one model; two models take twice that."""
    answers, drawn = _answers(), list[int]()
    whole = resampling.resampled

    def noted(groups: np.ndarray, resamples: int) -> object:
        drawn.append(resamples)
        return whole(groups, resamples)

    monkeypatch.setattr(resampling, "resampled", noted)
    monkeypatch.setattr(resampling, "BUDGET", budget * answers.probabilities.size)
    intervals(answers, ["log_loss"], None)
    monkeypatch.setattr(resampling, "BUDGET", 2 * budget * answers.probabilities.size)
    gain_interval(answers, _answers(skill=2), "accuracy")
    assert drawn == [expected, expected]


def test_the_accuracy_of_groups_has_wilsons_interval_for_their_variance() -> None:
    """Its bounds p are where (share - p)² = quantile² p (1 - p) / count: the definition, solved by hand.

    The count is that of independent samples whose share has the variance of a ratio of sums over groups.
    """
    groups = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 4, 5, 6, 6, 6, 7, 7, 8, 9]) * 3
    right = np.array([1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1], bool)
    logits = np.where(np.stack([right, ~right], 1), 2.0, -2.0).astype(np.float32)
    score = measure(logits, np.zeros(20, int), ("a", "b"), groups=groups).scores["accuracy"]
    share, units = 0.75, [right[groups == unit] for unit in np.unique(groups)]
    variance = 10 / 9 * sum((unit.sum() - share * len(unit)) ** 2 for unit in units) / 20**2
    count = share * (1 - share) / variance
    assert count < 20
    assert score.low is not None
    assert score.high is not None
    assert score.low < share == score.value < score.high
    for bound in (score.low, score.high):
        assert (share - bound) ** 2 == pytest.approx(student.ppf(0.975, 9) ** 2 * bound * (1 - bound) / count)


def test_groups_do_not_make_more_of_the_samples_than_there_are() -> None:
    """Two of three are right in each group but one: their shares hardly vary, and 21 samples stay 21."""
    right = np.arange(21) % 3 > 0
    right[20] = False
    groups = np.arange(21) // 3
    logits = np.where(np.stack([right, ~right], 1), 2.0, -2.0).astype(np.float32)
    score = measure(logits, np.zeros(21, int), ("a", "b"), groups=groups).scores["accuracy"]
    share, quantile = right.mean(), student.ppf(0.975, 6)
    for bound in (score.low, score.high):
        assert bound is not None
        assert (share - bound) ** 2 == pytest.approx(quantile**2 * bound * (1 - bound) / 21)


@pytest.mark.parametrize(("rare", "headline"), [(10, "accuracy"), (9, "balanced_accuracy")])
def test_a_class_with_less_than_a_fifth_of_an_even_share_is_rare(rare: int, headline: str) -> None:
    labels = (np.arange(100) < rare).astype(np.int64)
    assert measure(some_logits(labels, 2), labels, ("ok", "defect")).headline == headline


def test_labels_have_no_rare_class() -> None:
    labels = some_labels(100, 2)
    labels[:, 0] = np.arange(100) < 5
    assert measure(some_logits(labels, 2), labels, ("a", "b"), task="multilabel").headline == "macro_auc"
