"""Slices of a split by columns of a table: which sample is where, scores with intervals, and the gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from evaluation_runs import a_dataset, a_multilabel_dataset, a_record, a_training, some_labels, some_logits
from samples import an_image, sample_ids
from sklearn import metrics as sklearn

from ddpipe.errors import CorruptObject, DdpipeError, ParameterError
from ddpipe.evaluate.evaluate import evaluate
from ddpipe.evaluate.gate import compare, decide, gate
from ddpipe.evaluate.measure import measure, precision_recall
from ddpipe.evaluate.report import render
from ddpipe.evaluate.slices import MOST_VALUES, publish_sliced, slice_scores, sliced, sliced_version
from ddpipe.evaluate.spec import EvaluateSpec, GateSpec
from ddpipe.export.export import export
from ddpipe.model.evaluation import load_evaluation
from ddpipe.model.history import NamedModel
from ddpipe.model.metrics import Answers
from ddpipe.model.slices import Slicing, slicing_of, worst_first
from ddpipe.model.tasks import TASKS
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.storage import open_store

IDS = ("cat/a.png", "cat/b.png", "dog/c.png", "dog/d.png")


def _table(folder: Path, text: str, columns: Sequence[str] = ("site",)) -> EvaluateSpec:
    place = folder / "table.csv"
    place.write_text(text)
    return EvaluateSpec(slice_table=str(place), slice_columns=list(columns))


def _members(slicing: Slicing) -> dict[str, list[int]]:
    return {f"{column}={value}": np.flatnonzero(mask).tolist() for column, value, mask in slicing.each()}


@pytest.mark.parametrize(
    "names", [IDS, ("cat/a", "cat/b", "dog/c", "dog/d"), "abcd", ("a.png", "b.png", "c.png", "d.png")]
)
def test_rows_are_found_by_path_or_name_of_the_file(tmp_path: Path, names: Sequence[str]) -> None:
    rows = "".join(f"{name},{site}\n" for name, site in zip(names, "NSNS", strict=True))
    assert _members(sliced(_table(tmp_path, f"image,site\n{rows}"), IDS)) == {
        "site=N": [0, 2],
        "site=S": [1, 3],
    }


def test_unknown_is_a_slice_of_its_own(tmp_path: Path) -> None:
    found = sliced(_table(tmp_path, "image,site,sex\ncat/a.png,N,F\ncat/b.png,,M\n", ("site", "sex")), IDS)
    assert _members(found) == {
        "site=(blank)": [1],
        "site=(not in the table)": [2, 3],
        "site=N": [0],
        "sex=(not in the table)": [2, 3],
        "sex=F": [0],
        "sex=M": [1],
    }


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("a", ("x/a.png", "y/a.png", "b.png")),
        ("a", ("a.png", "a.jpg", "b.png")),
        ("x/a", ("x/a.png", "x/a.jpg", "b.png")),
        ("a", ("x/a.png", "a.jpg", "b.png")),
    ],
)
def test_a_name_that_two_samples_share_finds_neither(tmp_path: Path, name: str, ids: Sequence[str]) -> None:
    found = sliced(_table(tmp_path, f"image,site\n{name},N\nb,S\n"), ids)
    assert _members(found) == {"site=(not in the table)": [0, 1], "site=S": [2]}


def test_many_numbers_are_divided_at_their_quartiles(tmp_path: Path) -> None:
    ids = [f"{number}.png" for number in range(101)]
    rows = "".join(f"{number}.png,{number}\n" for number in range(100))
    found = _members(sliced(_table(tmp_path, f"image,age\n{rows}", ("age",)), ids))
    assert {name: len(members) for name, members in found.items()} == {
        "age=(not in the table)": 1,
        "age=over 24 to 49": 25,
        "age=over 49 to 74": 25,
        "age=over 74": 25,
        "age=up to 24": 25,
    }


def test_long_numbers_have_ranges_of_their_own(tmp_path: Path) -> None:
    ids = [f"{number}.png" for number in range(20230101, 20230141)]
    rows = "".join(f"{name},{name[:8]}\n" for name in ids)
    found = _members(sliced(_table(tmp_path, f"image,day\n{rows}", ("day",)), ids))
    assert {name: len(members) for name, members in found.items()} == {
        "day=up to 20230110": 10,
        "day=over 20230110 to 20230120": 10,
        "day=over 20230120 to 20230130": 10,
        "day=over 20230130": 10,
    }


def test_the_rarest_of_many_values_are_combined(tmp_path: Path) -> None:
    ids = [f"{number}.png" for number in range(200)]
    rows = "".join(f"{name},site {number % (MOST_VALUES + 30)}\n" for number, name in enumerate(ids))
    found = _members(sliced(_table(tmp_path, f"image,site\n{rows}"), ids))
    assert len(found) == MOST_VALUES
    assert len(found["site=(other values)"]) == 200 - 4 * (MOST_VALUES - 1)
    assert sum(map(len, found.values())) == 200


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("image,place\na,N\n", "it has no column 'site'; it has image, place"),
        ("image,site\na,N\na,S\n", "line 3 repeats 'a' of an earlier line"),
        ("image,site\na,N,x\n", "line 2 does not have the 2 cells of the header"),
        ("image,site\na,N\n,S\n", "line 3 names no image"),
        ("image,site\nz,N\n", "no column names the samples, such as 'cat/a.png'"),
        ("site\n", "it has 0 rows"),
    ],
)
def test_tables_that_fit_no_samples_are_rejected(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DdpipeError) as caught:
        sliced(_table(tmp_path, text), IDS)
    assert reason in str(caught.value)


def test_rows_are_found_as_the_source_csv_finds_its_files(tmp_path: Path) -> None:
    """By another system's spelling, in any column; also what only another split has is no name of these."""
    rows = "1,cat\\A.PNG,N\n2,./cat/b.png,S\n3,/home/me/dog/c.png,N\n4,/home/me/bird/d.png,S\n"
    found = sliced(_table(tmp_path, f"number,image,site\n{rows}"), IDS, ["bird/d.png"])
    assert _members(found) == {"site=(not in the table)": [3], "site=N": [0, 2], "site=S": [1]}


def test_the_table_that_a_dataset_was_made_from_has_its_slices(tmp_path: Path) -> None:
    rows = [f"{number}.png,{'ab'[number % 2]},{'NS'[number // 2 % 2]}" for number in range(80)]
    for number in range(80):
        an_image(tmp_path / "photos" / f"{number}.png", seed=number)
    (tmp_path / "photos" / "train.csv").write_text("\n".join(["image,label,site", *rows]))
    spec = PrepareSpec(source="csv", source_path=str(tmp_path / "photos"), store=str(tmp_path / "store"))
    prepared = prepare(dataclasses.replace(spec, label_columns="label"))
    evaluation = EvaluateSpec(slice_columns=["site"]).validated()
    found = sliced_version(evaluation, "train", prepared.manifest, open_store(spec.store))
    assert {name: len(rows) for name, rows in _members(found).items()} == {"site=N": 34, "site=S": 30}
    digits = prepare(PrepareSpec(store=spec.store))
    with pytest.raises(ParameterError, match="was not made from one"):
        sliced_version(evaluation, "train", digits.manifest, open_store(spec.store))


def test_a_table_needs_columns() -> None:
    with pytest.raises(ParameterError, match="is given without"):
        EvaluateSpec(slice_table="a.csv").validated()
    with pytest.raises(ParameterError, match="at most 20, each once"):
        EvaluateSpec(slice_columns=["site"] * 2, slice_table="a.csv").validated()


def _slicing(codes: Sequence[int], values: Sequence[str] = ("N", "S")) -> Slicing:
    return Slicing((("site", tuple(values)),), np.array([codes], np.int16))


def test_a_bad_slice_is_found_and_comes_first() -> None:
    """Of 200 images of one site a tenth is wrong, of 100 of the other a half; of a third there are 5."""
    labels, sites = np.arange(305) % 3, np.repeat([0, 1, 2], [200, 100, 5])
    wrong = np.where(sites == 0, np.arange(305) % 10 == 0, np.arange(305) % 2 == 0)
    said = np.where(wrong, (labels + 1) % 3, labels)
    answers = Answers.of(TASKS["multiclass"], 4.0 * (said[:, None] == np.arange(3)), labels, [None] * 3)
    scores = slice_scores(_slicing(sites.tolist(), "NSX"), answers, TASKS["multiclass"], "accuracy")
    by_value = {one.value: one for one in scores}
    assert (by_value["N"].score, by_value["S"].score) == (0.9, 0.5)
    assert [one.value for one in worst_first(scores)] == ["S", "N", "X"]
    assert [by_value[value].is_worse for value in "NSX"] == [False, True, False]
    assert by_value["X"].is_small
    low, high = by_value["S"].low, by_value["S"].high
    assert low is not None
    assert high is not None
    assert 0.35 < low < 0.5 < high < 0.65
    assert by_value["S"].whole == pytest.approx(answers.right.mean())


def test_a_slice_is_compared_over_the_labels_that_it_defines() -> None:
    labels = some_labels(64, 3)
    labels[:32, 2] = 0
    task, logits = TASKS["multilabel"], some_logits(labels, 3)
    answers = Answers.of(task, logits, labels, [0.5] * 3)
    found = slice_scores(_slicing([0] * 32 + [1] * 32), answers, task, task.scores[0])[0]
    of_two = sklearn.roc_auc_score(labels[:32, :2], logits[:32, :2], average="macro")
    whole = sklearn.roc_auc_score(labels[:, :2], logits[:, :2], average="macro")
    assert (found.score, found.whole, found.classes) == (pytest.approx(of_two), pytest.approx(whole), 2)


def test_a_slice_that_defines_nothing_has_no_score() -> None:
    labels = some_labels(40, 2)
    labels[:10] = 0
    answers = Answers.of(TASKS["multilabel"], some_logits(labels, 2), labels, [0.5] * 2)
    empty = slice_scores(_slicing([0] * 10 + [1] * 30), answers, TASKS["multilabel"], "macro_auc")[0]
    assert (empty.score, empty.low, empty.whole, empty.classes) == (None, None, None, 0)


def test_patients_widen_the_interval_of_a_slice() -> None:
    labels = np.arange(80) % 2
    right = np.arange(80) // 8 % 2 == 0
    said = np.where(right, labels, 1 - labels)
    answers = Answers.of(TASKS["multiclass"], 4.0 * (said[:, None] == np.arange(2)), labels, [None] * 2)
    alone, grouped = (
        slice_scores(_slicing([0] * 80, "N"), answers, TASKS["multiclass"], "accuracy", groups)[0]
        for groups in (None, np.arange(80) // 8)
    )
    assert alone.low is not None
    assert grouped.low is not None
    assert grouped.low < alone.low


@pytest.mark.parametrize("kind", [a_dataset, a_multilabel_dataset])
def test_evaluation_publishes_slices(tmp_path: Path, kind: object) -> None:
    dataset = kind(str(tmp_path / "store"))  # type: ignore[operator]
    training = a_training(str(tmp_path / "training"), dataset)
    ids = sample_ids(dataset, "test")
    rows = "".join(f"{name},{'NS'[number % 2]}\n" for number, name in enumerate(ids))
    spec = _table(tmp_path, f"image,site\n{rows}")
    evaluate(training, dataset, str(tmp_path / "evaluation"), spec)
    found = load_evaluation(str(tmp_path / "evaluation"))
    assert [(one.name, one.samples) for one in found.metrics.slices] == [("site = N", 19), ("site = S", 18)]
    slicing = found.slicing()
    assert slicing
    assert [mask.sum() for _, _, mask in slicing.each()] == [19, 18]


def test_a_table_that_does_not_fit_fails_before_scoring(tmp_path: Path) -> None:
    dataset = a_dataset(str(tmp_path / "store"))
    training = a_training(str(tmp_path / "training"), dataset)
    spec = _table(tmp_path, "image,site\nnobody.png,N\n")
    with pytest.raises(ParameterError, match="no column names the samples"):
        evaluate(training, dataset, str(tmp_path / "evaluation"), spec)
    assert not (tmp_path / "evaluation/evaluation.json").exists()


def test_damaged_slices_are_rejected(tmp_path: Path) -> None:
    labels = np.arange(40) % 2
    metrics = measure(some_logits(labels, 2), labels, "ab")
    slicing = _slicing([0, 1] * 20)
    evaluation = publish_sliced(
        open_store(str(tmp_path)),
        a_record().evaluation.subject,
        metrics,
        some_logits(labels, 2),
        labels,
        slicing,
    )
    good = slicing.to_bytes()
    scores = evaluation.metrics.slices
    for bad in (b"", good[:-2], Slicing((), np.full((1, 40), 2, np.int16)).to_bytes()):
        with pytest.raises(ValueError, match=r".+"):
            slicing_of(scores, bad, 40)
    (tmp_path / "slices.npy").write_bytes(good[:-1] + b"\x07")
    with pytest.raises(CorruptObject):
        load_evaluation(str(tmp_path)).slicing()


def test_report_shows_the_worst_slice_first_and_escapes_it() -> None:
    record = a_record(samples=200, skill=3.0)
    labels = record.evaluation.metrics
    task, sites = TASKS["multiclass"], [0] * 100 + [1] * 100
    truth = np.arange(200) % 2
    said = np.where(np.array(sites) == 1, 1 - truth, truth)
    answers = Answers.of(task, 4.0 * (said[:, None] == np.arange(2)), truth, [None] * 2)
    slices = slice_scores(_slicing(sites, ("good", "<b>bad")), answers, task, task.scores[0])
    metrics = dataclasses.replace(labels, slices=slices)
    page = render(
        dataclasses.replace(record, evaluation=dataclasses.replace(record.evaluation, metrics=metrics))
    )
    assert page.index("&lt;b&gt;bad") < page.index(">good<")
    assert "<b>bad" not in page
    assert 'class="worse"' in page


def test_report_has_precision_recall_curves() -> None:
    page = render(a_record(("bone", "lung"), task="multilabel", samples=60))
    assert "Precision-recall curves of each label" in page


def test_precision_recall_is_that_of_scikit_learn() -> None:
    labels = np.arange(50) % 3 == 0
    probabilities = np.random.default_rng(0).random(50)
    found = precision_recall(labels, probabilities)
    precision, recall, thresholds = sklearn.precision_recall_curve(labels, probabilities)
    assert found.precision == tuple(precision[::-1])
    assert found.recall == tuple(recall[::-1])
    assert found.threshold == (1.0, *thresholds[::-1])


def test_curves_are_thinned_to_a_hundred_points() -> None:
    labels = np.arange(5000) % 3 == 0
    found = precision_recall(labels, np.random.default_rng(0).random(5000))
    assert len(found.recall) == 100
    assert (found.recall[0], found.recall[-1]) == (0, 1)


@pytest.mark.parametrize(
    ("most", "decision"),
    [(0.05, "keep"), (0.6, "promote")],
)
def test_the_gate_judges_slices(most: float, decision: str) -> None:
    """Better on the whole, but half as good on the 60 images of one site."""
    labels, place = np.arange(600) % 4, np.arange(600)
    site = place < 60
    sides = {
        "new": np.where(site, place % 2 == 0, place % 20 != 0),
        "old": np.where(site, place % 30 != 1, place % 3 != 0),
    }
    said = {name: np.where(right, labels, (labels + 1) % 4) for name, right in sides.items()}
    task = TASKS["multiclass"]
    new, old = (
        Answers.of(task, 4.0 * (one[:, None] == np.arange(4)), labels, [None] * 4) for one in said.values()
    )
    spec = GateSpec(gate_model="toys", gate_metric="accuracy", gate_drop=most)
    compared = compare(new, old, "abcd", spec, slices={"site = N": site, "site = S": ~site})
    verdict = decide(spec, metric="accuracy", value=0.9, champion="0" * 12, comparison=compared)
    assert verdict.decision == decision, verdict.reason
    assert ("slice 'site = N' fell from 0.9667 to 0.5000" in verdict.reason) == (decision == "keep")


def test_the_gate_compares_the_slices_of_the_evaluation(tmp_path: Path) -> None:
    dataset = a_dataset(str(tmp_path / "store"))
    ids = sample_ids(dataset, "test")
    rows = "".join(f"{name},{'NS'[number % 2]}\n" for number, name in enumerate(ids))
    spec = _table(tmp_path, f"image,site\n{rows}")
    for seed in (0, 1):
        run = tmp_path / str(seed)
        training = a_training(str(run / "training"), dataset, seed=seed)
        evaluate(training, dataset, str(run / "evaluation"), spec)
        verdict = gate(
            training, dataset, str(run / "evaluation"), str(run / "gate"), GateSpec(gate_model="toys")
        )
        if verdict.comparison is None:
            package = export(training, dataset, str(run / "evaluation"), str(run / "model"))
            model = NamedModel(open_store(str(tmp_path / "store")), "toys")
            version = model.publish(package, {"decision": verdict.decision})
            model.promote(version, against=None, reason="first", run="a")
    assert verdict.comparison
    assert [(one.name, one.support) for one in verdict.comparison.slices] == [
        ("site = N", 19),
        ("site = S", 18),
    ]
