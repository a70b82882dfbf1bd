"""The gate: its statistics, its rules as a table of cases, and the step on real files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from evaluation_runs import (
    SHAPE,
    a_dataset,
    a_grouped_dataset,
    a_multilabel_dataset,
    a_training,
    some_labels,
    some_logits,
)
from samples import a_manifest
from scipy.stats import binomtest

from ddpipe.data.index import hashed
from ddpipe.data.manifest import load_manifest
from ddpipe.data.npy import to_bytes
from ddpipe.data.reader import open_split
from ddpipe.errors import ParameterError
from ddpipe.evaluate.champion import NotComparable, champion_of, differences_to, logits_of_champion
from ddpipe.evaluate.evaluate import evaluate
from ddpipe.evaluate.gate import compare, decide, gate
from ddpipe.evaluate.resampling import gain_interval, mcnemar
from ddpipe.evaluate.spec import GateSpec
from ddpipe.export.export import export
from ddpipe.model.evaluation import load_evaluation
from ddpipe.model.history import NamedModel
from ddpipe.model.metrics import DECIDING, METRICS, Answers
from ddpipe.model.package import Signature, load_package
from ddpipe.model.tasks import TASKS, BoolArray, IntArray
from ddpipe.model.verdict import FORMAT, ClassPair, Comparison, Verdict, load_verdict
from ddpipe.storage import open_store

MULTICLASS = TASKS["multiclass"]
AUTOMATIC = GateSpec(gate_model="toys")
SPEC = GateSpec(gate_model="toys", gate_metric="accuracy")


def _answers(labels: IntArray, right: BoolArray, classes: int = 4) -> Answers:
    """Multiclass answers that are right where `right` says so; the wrong ones are the next class."""
    said = np.where(right, labels, (labels + 1) % classes)
    return Answers.of(MULTICLASS, 4.0 * (said[:, None] == np.arange(classes)), labels, [None] * classes)


def _pair(samples: int, only_candidate: int, only_champion: int, both: int) -> tuple[Answers, Answers]:
    """So many images of four classes, of which each model gets these right."""
    labels, place = np.arange(samples) % 4, np.arange(samples)
    end = only_candidate + only_champion
    candidate = (place < only_candidate) | ((place >= end) & (place < end + both))
    champion = (place >= only_candidate) & (place < end + both)
    return _answers(labels, candidate), _answers(labels, champion)


def _verdict(spec: GateSpec = SPEC, pair: tuple[Answers, Answers] | None = None, **given: object) -> Verdict:
    comparison = compare(*pair, "abcd"[: pair[0].truth.shape[1]], spec) if pair else None
    known = {"metric": "accuracy", "value": 0.9, "champion": "0123456789ab" if pair else ""}
    return decide(spec, comparison=comparison, **{**known, **given})  # type: ignore[arg-type]


BETTER, SAME, WORSE = _pair(500, 30, 5, 400), _pair(500, 10, 10, 400), _pair(500, 5, 30, 400)
ONE_CLASS_WORSE = (
    _answers(np.arange(400) % 4, np.arange(400) % 4 != 3),
    _answers(np.arange(400) % 4, np.arange(400) % 2 == 1),
)


@pytest.mark.parametrize(
    ("spec", "pair", "given", "decision", "reason"),
    [
        ({}, None, {}, "promote", "there is no champion yet"),
        ({"gate_minimum": 0.95}, None, {}, "fail", "accuracy is 0.9000, but at least 0.95 is required"),
        ({"gate_minimum": 0.9}, None, {}, "promote", "no champion"),
        ({}, None, {"value": float("nan")}, "fail", "undefined on these images"),
        ({}, BETTER, {}, "promote", "accuracy rose from 0.8100"),
        ({}, SAME, {}, "keep", "accuracy stayed"),
        ({}, WORSE, {}, "keep", "accuracy fell"),
        ({"gate_gain": 0.04}, BETTER, {}, "keep", "not certainly more than 0.04"),
        ({"gate_gain": -0.05}, SAME, {}, "promote", "accuracy stayed"),
        ({"gate_gain": -0.05}, WORSE, {}, "keep", "accuracy fell"),
        ({"gate_minimum": 0.95}, BETTER, {}, "fail", "at least 0.95 is required"),
        ({"gate_drop": 0.1}, ONE_CLASS_WORSE, {}, "keep", "class 'd' fell from 1.0000 to 0.0000"),
        ({}, ONE_CLASS_WORSE, {}, "promote", "accuracy rose"),
        ({}, None, {"champion": "0123", "trouble": "the champion cannot be read"}, "fail", "cannot be read"),
        ({}, None, {"value": float("nan"), "trouble": "there is no image"}, "fail", "there is no image"),
        ({"gate_minimum": 0.95}, None, {"trouble": "it cannot be read"}, "fail", "at least 0.95 is required"),
    ],
)
def test_rules_of_the_gate(
    spec: dict[str, float],
    pair: tuple[Answers, Answers] | None,
    given: dict[str, object],
    decision: str,
    reason: str,
) -> None:
    verdict = _verdict(dataclasses.replace(SPEC, **spec), pair, **given)  # type: ignore[arg-type]
    assert (verdict.decision, reason in verdict.reason) == (decision, True), verdict.reason


def test_a_class_with_few_images_does_not_decide() -> None:
    labels = np.r_[np.zeros(400, int), np.full(19, 3)]
    pair = _answers(labels, labels == 0), _answers(labels, (labels == 3) | (np.arange(419) < 200))
    verdict = _verdict(dataclasses.replace(SPEC, gate_drop=0.1), pair)
    assert verdict.decision == "promote"


def test_a_comparison_counts_which_model_is_right_on_which_images() -> None:
    """The first 30 images are the candidate's alone, the next 5 the champion's, and then 400 are both's."""
    found, place = compare(*BETTER, "abcd", SPEC), np.arange(500)
    candidate, champion = (place < 435) & ((place < 30) | (place >= 35)), (place >= 30) & (place < 435)
    low, high = gain_interval(*BETTER, "accuracy")
    assert found == Comparison(
        candidate=0.86,
        champion=0.81,
        low=low,
        high=high,
        confidence=0.95,
        p_value=pytest.approx(binomtest(30, 35, 0.5).pvalue),
        both_right=400,
        only_candidate=30,
        only_champion=5,
        both_wrong=65,
        classes=tuple(
            ClassPair(
                name=name, support=125, candidate=candidate[one::4].mean(), champion=champion[one::4].mean()
            )
            for one, name in enumerate("abcd")
        ),
    )


def test_a_class_that_no_image_shows_has_no_recall() -> None:
    labels = np.arange(40) % 2
    classes = compare(_answers(labels, labels == 0), _answers(labels, labels == 1), "abcd", SPEC).classes
    assert [(one.support, one.candidate, one.champion) for one in classes] == [
        (20, 1.0, 0.0),
        (20, 0.0, 1.0),
        (0, None, None),
        (0, None, None),
    ]


def test_labels_are_compared_by_their_aucs() -> None:
    labels = some_labels(60, 3)
    pair = [
        Answers.of(TASKS["multilabel"], some_logits(labels, 3, skill=skill), labels, [0.5] * 3)
        for skill in (2, 1)
    ]
    found = compare(*pair, "abc", dataclasses.replace(SPEC, gate_metric="macro_auc"))
    assert (found.candidate, found.champion) == tuple(METRICS["macro_auc"].of(one) for one in pair)
    assert [one.candidate for one in found.classes] == list(pair[0].aucs)
    assert [one.champion for one in found.classes] == list(pair[1].aucs)
    with pytest.raises(ValueError, match="longer"):
        compare(*pair, "ab", SPEC)


def test_mcnemar_is_the_exact_test_of_the_images_that_differ() -> None:
    candidate, champion = (one.right for one in BETTER)
    assert mcnemar(candidate, champion) == pytest.approx(binomtest(30, 35, 0.5).pvalue)
    assert mcnemar(candidate, candidate) == 1.0


@pytest.mark.parametrize("metric", DECIDING)
def test_equal_models_have_no_gain_in_any_metric(metric: str) -> None:
    labels = some_labels(200, 3)
    logits = some_logits(labels, 3)
    answers = Answers.of(TASKS["multilabel"], logits, labels, [0.5] * 3)
    assert gain_interval(answers, answers, metric) == (0, 0)


def test_the_interval_is_that_of_a_plain_bootstrap() -> None:
    candidate, champion = BETTER
    found = gain_interval(candidate, champion, "accuracy")
    apart = candidate.right.astype(float) - champion.right
    random = np.random.default_rng(5)
    drawn = [apart[random.integers(0, 500, 500)].mean() for _ in range(4000)]
    assert found == pytest.approx(np.percentile(drawn, (2.5, 97.5)), abs=0.003)


def test_a_macro_score_is_over_the_classes_that_occur() -> None:
    labels = np.zeros(10, int)
    assert METRICS["macro_f1"].of(_answers(labels, labels == 0)) == 1.0


def _promoted_share(draws: int, accuracies: Sequence[float], samples: int) -> float:
    """How often the candidate is promoted at the defaults, if answers are right with these probabilities."""
    random, labels = np.random.default_rng(0), np.zeros(samples, int)
    promoted = 0
    for _ in range(draws):
        pair = [_answers(labels, random.random(samples) < accuracy, 2) for accuracy in accuracies]
        promoted += _verdict(pair=(pair[0], pair[1])).promoted
    return promoted / draws


def test_equal_models_are_rarely_promoted() -> None:
    assert _promoted_share(60, (0.9, 0.9), 300) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("accuracy", "samples"), [(0.9, 2000), (0.7, 300)])
def test_equal_models_are_promoted_in_at_most_one_of_20_draws(accuracy: float, samples: int) -> None:
    assert _promoted_share(400, (accuracy, accuracy), samples) <= 0.05


def test_a_gain_that_may_be_no_more_than_the_wanted_one_is_too_small() -> None:
    low = compare(*BETTER, "abcd", SPEC).low
    assert _verdict(dataclasses.replace(SPEC, gate_gain=low), BETTER).decision == "keep"
    assert _verdict(dataclasses.replace(SPEC, gate_gain=low - 1e-9), BETTER).decision == "promote"


@pytest.mark.slow
def test_a_gain_of_three_points_is_found_in_most_draws() -> None:
    assert _promoted_share(150, (0.93, 0.90), 2000) >= 0.8


def test_groups_are_drawn_as_wholes() -> None:
    """Ten images of a patient that are all answered alike say no more than one of them."""
    labels = np.arange(40) % 4
    one = _answers(labels, np.arange(40) < 30), _answers(labels, (np.arange(40) < 22) | (np.arange(40) >= 38))
    many = [_answers(np.repeat(labels, 10), np.repeat(each.right, 10)) for each in one]
    groups = np.repeat(np.arange(40), 10)
    alone = gain_interval(*one, "accuracy")
    assert gain_interval(*many, "accuracy", groups) == pytest.approx(alone)
    assert compare(*many, "abcd", SPEC, groups).p_value is None
    assert gain_interval(*many, "accuracy") > alone


# The step


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path


def _run(folder: Path, dataset: str, name: str, **training: object) -> tuple[str, str]:
    """A training and its evaluation."""
    trained = a_training(str(folder / name / "training"), dataset, **training)  # type: ignore[arg-type]
    evaluate(trained, dataset, str(folder / name / "evaluation"))
    return trained, str(folder / name / "evaluation")


def _champion(folder: Path, dataset: str, trained: str, evaluation: str) -> NamedModel:
    export(trained, dataset, evaluation, str(folder / "champion"))
    model = NamedModel(open_store(str(folder / "store")), "toys")
    version = model.publish(load_package(str(folder / "champion")), {})
    champion = model.history().champion
    model.promote(version, against=champion.version if champion else None, reason="first")
    return model


def _gate(folder: Path, dataset: str, run: tuple[str, str], spec: GateSpec = AUTOMATIC) -> Verdict:
    found = gate(run[0], dataset, run[1], str(folder / "gate"), spec)
    assert load_verdict(str(folder / "gate")) == found
    return found


def test_a_first_model_is_promoted(runs: Path) -> None:
    dataset = a_dataset(str(runs / "store"))
    verdict = _gate(runs, dataset, _run(runs, dataset, "first"))
    assert (verdict.decision, verdict.champion, verdict.source) == ("promote", "", "")
    assert verdict.reason.startswith("there is no champion yet, and accuracy is ")
    assert "; but accuracy " in verdict.reason, "noise is as good as chance"
    assert (verdict.excluded, verdict.unknown) == (
        0,
        "the new model do not say what they were trained on",
    )


def test_the_champion_itself_is_not_better(runs: Path) -> None:
    dataset = a_dataset(str(runs / "store"))
    first = _run(runs, dataset, "first")
    _champion(runs, dataset, *first)
    verdict = _gate(runs, dataset, first)
    assert (verdict.decision, verdict.source) == ("keep", "from its own evaluation")
    assert verdict.comparison
    assert (verdict.comparison.gain, verdict.comparison.samples) == (0, 37)
    assert "; but " not in verdict.reason
    both = f"the new model and the champion {verdict.champion}"
    assert verdict.unknown == f"{both} do not say what they were trained on"


def test_images_of_a_group_are_no_proof_of_their_own(runs: Path) -> None:
    """McNemar's test takes every image for a draw of its own; of a grouped split it says nothing."""
    dataset = a_grouped_dataset(str(runs / "store"))
    first = _run(runs, dataset, "first")
    _champion(runs, dataset, *first)
    comparison = _gate(runs, dataset, _run(runs, dataset, "second", seed=1)).comparison
    assert comparison
    assert comparison.p_value is None


@pytest.mark.parametrize("make", [a_dataset, pytest.param(a_multilabel_dataset, marks=pytest.mark.slow)])
def test_a_champion_answers_alike_from_its_evaluation_and_again(runs: Path, make: type) -> None:
    dataset = make(str(runs / "store"))
    first, second = _run(runs, dataset, "first"), _run(runs, dataset, "second", seed=1)
    _champion(runs, dataset, *first)
    stored = _gate(runs, dataset, second)
    open_store(first[1]).delete("evaluation.json")
    again = _gate(runs, dataset, second)
    assert again.source == "computed again from its ONNX model"
    assert again.champion == stored.champion
    assert stored.comparison
    assert again.comparison
    for name in ("candidate", "champion", "low", "high", "only_champion"):
        assert getattr(again.comparison, name) == pytest.approx(getattr(stored.comparison, name), abs=1e-3)


def test_the_logits_of_a_champion_are_those_over_its_temperature(runs: Path) -> None:
    dataset = a_dataset(str(runs / "store"))
    first = _run(runs, dataset, "first")
    package = load_package(_champion(runs, dataset, *first).versions()[0].uri)
    warm = dataclasses.replace(package, signature=dataclasses.replace(package.signature, temperature=2.0))
    expected = load_evaluation(first[1]).predictions()[0] / 2
    manifest, samples = load_manifest(dataset), open_split(dataset, "test")
    logits, _ = logits_of_champion(warm, manifest, samples, "test")
    np.testing.assert_array_equal(logits, expected)
    assert logits.dtype == np.float32
    evaluation = dict(warm.lineage["evaluation"])
    for lineage in (
        {},
        {"evaluation": "its own"},
        {"evaluation": {**evaluation, "uri": None}},
        {"evaluation": {**evaluation, "sha256": {}}},
    ):
        unnamed = dataclasses.replace(warm, lineage=lineage)
        source = logits_of_champion(unnamed, manifest, samples, "test")[1]
        assert source == "computed again from its ONNX model", lineage
    train = open_split(dataset, "train")
    assert logits_of_champion(warm, manifest, train, "train")[1] == "computed again from its ONNX model"
    of_pytorch = dataclasses.replace(unnamed, folder=dataclasses.replace(warm.folder, sha256={}))
    with pytest.raises(NotComparable, match="the champion has no ONNX model"):
        logits_of_champion(of_pytorch, manifest, samples, "test")
    open_store(first[1]).delete("evaluation.json")
    again, source = logits_of_champion(warm, manifest, samples, "test")
    assert source == "computed again from its ONNX model"
    np.testing.assert_allclose(again, expected, atol=1e-4)
    assert again.dtype == np.float32


def test_the_champion_is_the_package_that_was_promoted(runs: Path) -> None:
    dataset = a_dataset(str(runs / "store"))
    model = _champion(runs, dataset, *_run(runs, dataset, "first"))
    promotion, manifest = model.history().champion, load_manifest(dataset)
    assert promotion
    found = champion_of(model, promotion, manifest)
    assert found.signature == load_package(str(runs / "champion")).signature
    with pytest.raises(NotComparable, match="is not the package that was promoted: roll back"):
        champion_of(model, dataclasses.replace(promotion, package="0" * 64), manifest)


@pytest.mark.parametrize(
    ("model", "dataset", "differences"),
    [
        ({}, {}, []),
        ({}, {"shape": (16, 16, 1)}, []),  # of which it sees reduced images
        ({"shape": (8, 8, 3)}, {}, ["its images are (8, 8, 3), the dataset's (8, 8, 1)"]),
        ({}, {"shape": (8, 16, 1)}, ["its images are (8, 8, 1), the dataset's (8, 16, 1)"]),
        ({"task": "multilabel"}, {}, ["it is multilabel, the dataset multiclass"]),
        ({"classes": ("kité", "ball")}, {}, ["other classes, in another order"]),
        ({}, {"classes": (*"abcdef", "ball")}, ["other classes, new: a, b, c, d, e, gone: kité"]),
        ({"classes": (*"abcdef", "ball", "kité")}, {}, ["other classes, gone: a, b, c, d, e"]),
    ],
    ids=repr,
)
def test_what_makes_a_model_one_of_something_else_is_said(
    model: dict[str, object], dataset: dict[str, object], differences: list[str]
) -> None:
    usual = {"architecture": "digits-cnn", "shape": SHAPE, "classes": ("ball", "kité")}
    signature = Signature(**(usual | model))  # type: ignore[arg-type]
    assert list(differences_to(signature, a_manifest(**({"shape": SHAPE} | dataset)))) == differences


def test_images_that_the_champion_was_trained_on_are_left_out(runs: Path) -> None:
    dataset = a_dataset(str(runs / "store"))
    first = _run(runs, dataset, "first")
    store, manifest = open_store(str(runs / "store")), load_manifest(dataset)
    from ddpipe.data.index import open_index  # noqa: PLC0415 - next to what it reads

    ids = open_index(manifest, "test", store).sample_ids.column
    open_store(first[0]).write("trained_on.npy", to_bytes(hashed(ids[:30])))
    with pytest.MonkeyPatch.context() as patch:  # evaluation rejects such a model, rightly
        patch.setattr("ddpipe.evaluate.evaluate.held_out_seen", lambda *_: {})
        _champion(runs, dataset, *first)
    second = _run(runs, dataset, "second", seed=1)
    verdict = _gate(runs, dataset, second)
    assert verdict.excluded == 30
    assert verdict.comparison
    assert verdict.comparison.samples == 7
    assert verdict.unknown == "the new model do not say what they were trained on"


def test_no_common_unseen_image_fails(runs: Path) -> None:
    dataset = a_dataset(str(runs / "store"))
    first = _run(runs, dataset, "first")
    from ddpipe.data.index import open_index  # noqa: PLC0415 - next to what it reads

    ids = open_index(load_manifest(dataset), "test", open_store(str(runs / "store"))).sample_ids.column
    open_store(first[0]).write("trained_on.npy", to_bytes(hashed(ids)))
    verdict = _gate(runs, dataset, first)
    assert verdict.decision == "fail"
    assert verdict.score is None
    assert verdict.excluded == 37
    assert verdict.reason == "there is no image that neither model was trained on: add new test images"


def test_a_vanished_champion_fails_with_a_way_out(runs: Path) -> None:
    dataset = a_dataset(str(runs / "store"))
    first = _run(runs, dataset, "first")
    model = _champion(runs, dataset, *first)
    version = model.versions()[0]
    open_store(version.uri).delete("package.json")
    verdict = _gate(runs, dataset, first)
    assert (verdict.decision, verdict.champion) == ("fail", version.version)
    assert "ddpipe models rollback toys" in verdict.reason


def test_a_changed_champion_fails(runs: Path) -> None:
    dataset = a_dataset(str(runs / "store"))
    first = _run(runs, dataset, "first")
    model = _champion(runs, dataset, *first)
    open_store(model.versions()[0].uri).write("model.onnx", b"another")
    verdict = _gate(runs, dataset, first)
    assert (verdict.decision, "cannot be read" in verdict.reason) == ("fail", True)


def test_a_champion_of_other_classes_fails(runs: Path) -> None:
    dataset = a_dataset(str(runs / "store"))
    _champion(runs, dataset, *_run(runs, dataset, "first"))
    other = a_multilabel_dataset(str(runs / "store"))
    verdict = _gate(runs, other, _run(runs, other, "second"))
    assert verdict.decision == "fail"
    assert "new: bone, lung, tube" in verdict.reason


def test_a_verdict_of_before_is_still_read(runs: Path) -> None:
    dataset = a_dataset(str(runs / "store"))
    first = _run(runs, dataset, "first")
    _champion(runs, dataset, *first)
    verdict = _gate(runs, dataset, first)
    made = FORMAT.open(str(runs / "gate"))
    files = {key: made.read(key) for key in made.sha256}
    former = {"cost": {"megabytes": 1.2, "milliseconds": None}, "export": True}
    written = json.loads(files["verdict.json"])
    written["comparison"]["slices"] = []
    former_json = json.dumps({**written, **former}).encode()
    FORMAT.publish(open_store(str(runs / "former")), {**files, "verdict.json": former_json}, facts=made.facts)
    assert load_verdict(str(runs / "former")) == verdict


@pytest.mark.parametrize(
    "spec", [GateSpec(), GateSpec(gate_model="toys", gate_metric="macro_average_precision")]
)
def test_a_gate_without_a_question_is_rejected(runs: Path, spec: GateSpec) -> None:
    dataset = a_dataset(str(runs / "store"))
    with pytest.raises(ParameterError, match="gate cannot decide"):
        _gate(runs, dataset, _run(runs, dataset, "first"), spec)


def test_everything_that_is_wrong_with_a_gate_is_said_at_once(runs: Path) -> None:
    dataset, other = a_dataset(str(runs / "store")), a_dataset(str(runs / "store"), test=20)
    with pytest.raises(ParameterError) as error:
        _gate(runs, other, _run(runs, dataset, "first"), GateSpec(gate_metric="macro_average_precision"))
    assert error.value.which == other
    assert error.value.seen.split("; ") == [
        "no model is named: give its name as parameter gate_model",
        f"the evaluation used dataset version {load_manifest(dataset).dataset_id}",
        "a multiclass dataset has no macro_average_precision",
        "it has accuracy, balanced_accuracy, macro_auc, macro_f1",
    ]


def test_a_model_name_that_is_no_part_of_a_path_is_rejected() -> None:
    with pytest.raises(ParameterError, match="not a name"):
        GateSpec(gate_model="../up").validated()


@pytest.mark.parametrize(("name", "low"), [("gate_minimum", 0), ("gate_gain", -1), ("gate_drop", 0)])
def test_what_a_score_may_have_to_reach_is_a_score(name: str, low: float) -> None:
    for value in (low, 0, 0.01, 1):
        assert getattr(GateSpec(gate_model="toys", **{name: value}).validated(), name) == value
    for value in (low - 0.01, 1.01):
        with pytest.raises(ParameterError, match=name):
            GateSpec(gate_model="toys", **{name: value}).validated()


def a_comparison(gain: float, low: float, p_value: float | None, lost: float = 0.0) -> Comparison:
    return Comparison(
        candidate=0.5 + gain,
        champion=0.5,
        low=low,
        high=gain + 0.1,
        confidence=0.95,
        p_value=p_value,
        both_right=40,
        only_candidate=10,
        only_champion=10,
        both_wrong=40,
        classes=(ClassPair(name="a", support=50, candidate=0.5 - lost, champion=0.5),),
    )


@pytest.mark.parametrize(
    ("gain", "metric", "p_value", "decision"),
    [
        (0.0, "accuracy", 0.04, "promote"),
        (0.0, "accuracy", 1 - 0.95, "promote"),
        (0.0, "accuracy", 0.06, "keep"),
        (0.0, "accuracy", None, "promote"),
        (0.0, "macro_auc", 0.06, "promote"),
        (0.005, "accuracy", 0.06, "keep"),
        (-0.01, "accuracy", 0.06, "promote"),
    ],
)
def test_accuracy_has_to_pass_two_tests_unless_a_loss_is_accepted(
    gain: float, metric: str, p_value: float | None, decision: str
) -> None:
    spec = GateSpec(gate_model="toys", gate_gain=gain)
    found = decide(spec, metric=metric, value=0.6, champion="v1", comparison=a_comparison(0.1, 0.01, p_value))
    assert found.decision == decision


@pytest.mark.parametrize(
    ("gain", "reason"),
    [(0.1, "although accuracy rose"), (0.0, "and accuracy stayed"), (-0.1, "and accuracy fell")],
)
def test_a_class_that_fell_is_the_reason_even_if_the_score_rose(gain: float, reason: str) -> None:
    spec = GateSpec(gate_model="toys", gate_drop=0.1)
    compared = a_comparison(gain, 0.01, 0.01, lost=0.2)
    found = decide(spec, metric="accuracy", value=0.6, champion="v1", comparison=compared)
    assert found.decision == "keep"
    assert f"class 'a' fell from 0.5000 to 0.3000, {reason}" in found.reason


def test_a_verdict_says_what_it_is_based_on() -> None:
    compared = a_comparison(0.0, -0.1, 1.0)
    assert decide(AUTOMATIC, metric="accuracy", value=0.5, champion="v1", comparison=compared) == Verdict(
        model="toys",
        decision="keep",
        reason="accuracy stayed from 0.5000 (champion v1) to 0.5000 on the same 100 images, a change of "
        "+0.0000 with a 95 % interval from -0.1000 to +0.1000",
        metric="accuracy",
        score=0.5,
        champion="v1",
        comparison=compared,
    )


@pytest.mark.parametrize(
    ("classes", "drop", "fallen"),
    [
        ([(20, 0.25)], 0.2, "a"),
        ([(20, 0.25)], 0.25, ""),
        ([(19, 0.25)], 0.2, ""),
        ([(20, 0.25), (20, 0.5), (19, 0.75), (20, 0.375)], 0.2, "b"),
        ([(20, -0.25), (20, 0.25)], 0.2, "b"),
        ([], 0.2, ""),
    ],
)
def test_the_class_that_lost_most_counts_if_it_has_enough_images(
    classes: list[tuple[int, float]], drop: float, fallen: str
) -> None:
    pairs = tuple(
        ClassPair(name=name, support=support, candidate=1 - loss, champion=1.0)
        for name, (support, loss) in zip("abcd", classes, strict=False)
    )
    compared = dataclasses.replace(a_comparison(0.2, 0.1, 0.01), classes=pairs)
    spec = dataclasses.replace(SPEC, gate_drop=drop)
    verdict = decide(spec, metric="accuracy", value=0.7, champion="v1", comparison=compared)
    assert (verdict.decision, f"class {fallen!r} fell" in verdict.reason) == (
        ("keep", True) if fallen else ("promote", False)
    )
