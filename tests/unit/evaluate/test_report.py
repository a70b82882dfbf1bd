"""The page that a person puts in front of a colleague."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from evaluation_runs import a_dataset, a_record, a_subject, a_training_record, some_logits
from PIL import Image
from recipes import plain
from samples import some_images
from scipy.special import softmax

from ddpipe.data.manifest import load_manifest
from ddpipe.data.reader import open_split
from ddpipe.evaluate.figures import learning_curves, losses_by_epoch
from ddpipe.evaluate.measure import measure
from ddpipe.evaluate.mistakes import WrongAnswer, worst_mistakes, wrong_answers
from ddpipe.evaluate.report import (
    RunRecord,
    change,
    confusions,
    drawn,
    gather,
    gather_evaluation,
    percent,
    picture,
    ratio,
    render,
    score,
)
from ddpipe.model.evaluation import Evaluation, publish
from ddpipe.model.package import ModelPackage
from ddpipe.model.verdict import Verdict
from ddpipe.model.verdict import publish as publish_verdict
from ddpipe.storage import open_store
from ddpipe.storage.sealed import Folder, to_json

VOID = {"meta", "img", "br"}
SEVERAL = ("bone", "lung", "tube")
APPROVED = Path(__file__).parents[2] / "golden" / "reports"


class _Balance(HTMLParser):
    """Fails where a tag is closed that was not the last opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, _attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _assert_well_formed(page: str) -> None:
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []


def _text(page: str) -> str:
    return " ".join(re.sub(r"<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL).split())


def _exported(record: RunRecord) -> RunRecord:
    lineage = {
        "checks": {"samples": 60, "largest_difference": 4.2e-7},
        "made_by": {"job": "job-4711", "versions": {"torch": "2.0"}},
        "exported": "2026-01-01T00:00:00+00:00",
    }
    package = ModelPackage(
        signature=None,  # type: ignore[arg-type]
        metrics=record.evaluation.metrics,
        lineage=lineage,
        folder=Folder(open_store("/models/a"), {}, {"model.safetensors": "cafe" * 16}, b""),
    )
    return replace(record, package=package, seconds={"prepare": 1.5, "train": 200.0})


def test_values_that_the_data_chose_are_shown_with_reasons() -> None:
    record = a_record()
    choice = {
        "chosen": {"model": {"value": "digits-cnn", "reason": "images of <8> pixels"}},
        "advice": "trained from random weights",
    }
    recipe = plain(epochs=3).to_dict()
    page = render(replace(record, training={**record.training, "recipe": recipe, "choice": choice}))
    _assert_well_formed(page)
    assert "Chosen by the data: digits-cnn, 3 epochs, sgd at a rate of 0.1" in _text(page)
    assert "images of &lt;8&gt; pixels" in page
    assert "Model trained from random weights." in _text(page)


def test_page_describes_the_whole_run() -> None:
    page = render(_exported(a_record()))
    text = _text(page)
    for expected in (
        "first",
        "digits-cnn",
        "toys",
        "95 %",
        "by 2 processes",
        "d" * 64,
        "cafe" * 16,
        "job-4711",
    ):
        assert expected in text
    for expected in ("macro AUC", "3 min 20 s", "4e-07"):
        assert expected in text
    assert page.startswith("<!doctype html>")
    _assert_well_formed(page)


def test_page_shows_what_a_constant_answer_scores() -> None:
    record = a_record()
    text = _text(render(record))
    assert f"what always answering {record.evaluation.metrics.commonest.name} scores" in text
    assert text.count("constant answer:") == 3


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_page_looks_as_a_person_approved(task: str) -> None:
    """With APPROVE=1, what it looks like now is approved: open the file in a browser before you commit it."""
    page = render(_exported(a_record(SEVERAL, task=task)))
    approved = APPROVED / f"{task}.html"
    if os.environ.get("APPROVE"):
        approved.write_text(page)
    assert page == approved.read_text()


def test_curves_of_several_runs_look_as_a_person_approved() -> None:
    """Ten of them: from the tenth on, a look comes again."""
    runs = {f"run {number}": [1 / (epoch + number) for epoch in range(1, 6)] for number in range(1, 11)}
    drawn, approved = losses_by_epoch(runs), APPROVED / "losses.svg"
    if os.environ.get("APPROVE"):
        approved.write_text(drawn)
    assert drawn == approved.read_text()


def test_numbers_are_written_as_readers_expect_them() -> None:
    space = "\N{NO-BREAK SPACE}"
    assert (percent(0.1234), percent(0.1234, 0)) == (f"12.3{space}%", f"12{space}%")
    assert (score(0.1234, "accuracy"), score(0.12345, "log_loss")) == (f"12.3{space}%", "0.1235")
    assert (change(0.0123, "accuracy"), change(-0.0123, "accuracy")) == ("+1.2 points", "-1.2 points")
    assert (change(0.0123, "log_loss"), change(-0.0123, "log_loss")) == ("+0.0123", "-0.0123")
    assert (ratio(0.12345), ratio(None)) == ("0.123", "–")  # noqa: RUF001 - a dash


def test_the_commonest_confusions_come_first_and_right_answers_are_none() -> None:
    metrics = a_record(("ant", "bee", "cat")).evaluation.metrics
    metrics = replace(metrics, confusion_matrix=((9, 2, 0), (5, 9, 1), (0, 2, 9)))
    expected = [(5, "bee", "ant"), (2, "ant", "bee"), (2, "cat", "bee"), (1, "bee", "cat")]
    assert confusions(metrics) == expected
    assert confusions(metrics, most=1) == expected[:1]


def test_fifteen_confusions_are_listed() -> None:
    metrics = a_record(("ant", "bee", "cat", "dog", "elk")).evaluation.metrics
    assert len(confusions(replace(metrics, confusion_matrix=((1,) * 5,) * 5))) == 15


def test_pictures_are_small_and_keep_their_proportions() -> None:
    data = base64.b64decode(picture(np.zeros((300, 600, 3), np.uint8)).partition(",")[2])
    assert Image.open(io.BytesIO(data)).size == (192, 96)


@pytest.mark.parametrize("channels", [1, 3])
def test_small_pictures_show_every_pixel(channels: int) -> None:
    image = some_images(1, (4, 6, channels))[0]
    shown = Image.open(io.BytesIO(base64.b64decode(picture(image).partition(",")[2])))
    np.testing.assert_array_equal(np.asarray(shown).reshape(image.shape), image)


def test_curves_are_computed_of_at_most_forty_classes() -> None:
    forty = a_record([f"class {number}" for number in range(40)])
    assert list(forty.curves) == [scores.name for scores in forty.evaluation.metrics.classes]
    assert a_record([f"class {number}" for number in range(41)]).curves == {}


def _in_legend(page: str, drawing: str) -> list[str]:
    """The texts of a legend."""
    svg = page[page.index(f'aria-label="{drawing}"') :].partition("</svg>")[0]
    return re.findall("<text[^>]*>([^<]+)</text>", svg[svg.index('id="legend') :])


@pytest.mark.parametrize(
    ("scores", "named"), [((0.9, 0.6, None), "b"), ((0.5, 0.9, 0.0), "c"), ((0.7, 0.6, 0.6), "b")]
)
def test_the_lowest_curve_is_named(scores: tuple[float | None, ...], named: str) -> None:
    record = a_record(["a", "b", "c"], task="multilabel")
    evaluation = record.evaluation
    classes = zip(evaluation.metrics.classes, scores, strict=True)
    some = tuple(replace(one, auc=score, average_precision=score) for one, score in classes)
    metrics = replace(evaluation.metrics, classes=some)
    page = render(replace(record, evaluation=replace(evaluation, metrics=metrics)))
    assert _in_legend(page, "ROC curves") == [named, "micro average"]
    assert _in_legend(page, "precision-recall curves") == [named]


def test_page_names_the_groups_that_were_resampled() -> None:
    record = a_record()
    evaluation = record.evaluation
    grouped = replace(evaluation, metrics=replace(evaluation.metrics, groups=1234))
    text = _text(render(replace(record, evaluation=grouped)))
    assert "test images of 1,234 groups, which are resampled as a whole." in text


def test_page_names_what_the_data_lacks() -> None:
    record = a_record()
    source = {
        "kind": "csv",
        "uncertain": {"as": "drop", "labels": 4, "blanks": 9},
        "left_out": {"rows with an uncertain label": 1200},
    }
    text = _text(
        render(replace(record, manifest=replace(record.manifest, source=source, skipped=("a.png",))))
    )
    for expected in (
        "1,200 rows with an uncertain label were left out.",
        "1 unreadable images were left out.",
        "Policy for uncertain labels (-1): drop.",
    ):
        assert expected in text


def test_page_of_an_unchanged_run_names_the_run_that_trained() -> None:
    text = _text(render(replace(a_record(), since="first, 2026-11-22 17:16 UTC")))
    assert "Nothing changed since run first, 2026-11-22 17:16 UTC : its trained model is reused." in text
    assert "Nothing changed" not in render(a_record())


def test_page_asks_nothing_of_anyone() -> None:
    page = render(_exported(a_record()))
    assert not re.findall(r"<script|<link|@import|<iframe|url\(\s*['\"]?\w+:|(?:src|href)=\"https?:", page)


def test_it_is_there_before_the_model_is_exported() -> None:
    page = render(a_record())
    assert "not exported yet" in page
    assert "<h2>Time</h2>" not in page
    _assert_well_formed(page)


@pytest.mark.parametrize("classes", [2, 25])
def test_names_are_shown_and_never_run(classes: int) -> None:
    evil = '<script>alert("1")</script>'
    names = [evil, *(f"{number}&" for number in range(1, classes))]
    record = a_record(names)
    page = render(replace(record, run=evil, manifest=replace(record.manifest, name=evil)))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    _assert_well_formed(page)


@pytest.mark.parametrize(
    ("classes", "matrix", "listed"), [(8, ["matrix"], False), (40, ["matrix dense"], True), (61, [], True)]
)
def test_many_classes_have_a_dense_matrix_and_a_list(classes: int, matrix: list[str], listed: bool) -> None:
    page = render(a_record([f"class {number}" for number in range(classes)]))
    assert re.findall('class="(matrix[^"]*)"', page) == matrix
    assert ("taken for</th>" in page) is listed
    _assert_well_formed(page)


def test_page_has_the_command_that_repeats_the_run() -> None:
    record = replace(a_record(), run="it's mine")
    page = render(record)
    command = html.unescape(re.findall("repeat it</dt><dd><code>(.*?)</code>", page)[0])
    program, step, *options = shlex.split(command)
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert (program, step) == ("ddpipe", "train")
    assert (given["--run"], given["--processes"]) == ("it's mine-again", "2")
    assert given["--dataset"] == record.evaluation.subject.dataset
    assert json.loads(given["--recipe"]) == record.training["recipe"]
    alone = render(replace(record, training={**record.training, "world_size": 1}))
    assert "--processes" not in re.findall("repeat it</dt><dd><code>(.*?)</code>", alone)[0]


def test_page_names_the_class_that_is_separated_worst() -> None:
    record = a_record(["a", "b", "c"])
    metrics = record.evaluation.metrics
    some = tuple(replace(one, auc=auc) for one, auc in zip(metrics.classes, (0.9, 0.6, None), strict=True))
    page = render(
        replace(record, evaluation=replace(record.evaluation, metrics=replace(metrics, classes=some)))
    )
    assert "the class with the lowest by its name" in page
    none = tuple(replace(one, auc=None) for one in metrics.classes)
    page = render(
        replace(record, evaluation=replace(record.evaluation, metrics=replace(metrics, classes=none)))
    )
    assert "with the lowest by its name" not in page


def test_page_links_to_its_sections_and_to_the_data_and_the_model() -> None:
    page = render(replace(_exported(a_record()), data_page="data.html"))
    links = dict(re.findall('<a href="([^"]+)">([^<]+)</a>', page))
    titles = dict(re.findall('<h2 id="([^"]+)">([^<]+)</h2>', page))
    assert {f"#{anchor}": title for anchor, title in titles.items()}.items() <= links.items()
    assert {"data.html", "model/"} <= links.keys()
    elsewhere = re.findall('<a href="([^"]+)"', render(_exported(a_record())))
    assert all(link.startswith("#") for link in elsewhere), "nothing lies beside the page"


def test_faultless_model_has_no_gallery() -> None:
    page = render(a_record(skill=50))
    assert "all 60 images were classified correctly" in _text(page)
    assert "<img" not in page


def test_what_can_not_be_said_is_said() -> None:
    record = a_record(["ball", "kité", "unicorn"], skill=50, absent=1)
    text = _text(render(record))
    assert "There is no macro AUC: no sample of 'unicorn' in this split." in text.replace("&#39;", "'")


def test_training_of_one_epoch_has_curves() -> None:
    page = render(replace(a_record(), training=a_training_record(epochs=1)))
    assert "accuracy by epoch" in page
    assert "loss by epoch" in page


def test_curves_are_drawn_of_everything_measured() -> None:
    """A quantity that was measured on one of both splits only, or not in every epoch."""
    history = [
        {"epoch": 1, "validation_loss": 0.7, "train_loss": 0.9},
        {"epoch": 2, "validation_macro_auc": 0.8, "validation_loss": 0.6, "train_loss": 0.8},
    ]
    assert list(learning_curves(history)) == ["loss by epoch", "macro AUC by epoch"]


def test_multilabel_page_has_a_row_for_each_label() -> None:
    record = a_record(SEVERAL, task="multilabel")
    page = render(record)
    text = _text(page)
    assert "which of 3 labels apply" in text
    for scores in record.evaluation.metrics.classes:
        row = f"{scores.name} {scores.auc:.3f} {scores.average_precision:.3f} {scores.f1:.3f}"
        assert row in text
        assert f"{scores.threshold:.3f} {scores.support} {100 * scores.support / 60:.1f}" in text
    assert "macro average precision" in text
    assert 'class="matrix"' not in page
    assert 'aria-label="ROC curves"' in page
    assert ", missed at" in text or ", found at" in text
    _assert_well_formed(page)


def test_label_that_cannot_be_judged_is_dashed_and_named() -> None:
    text = _text(render(a_record(SEVERAL, task="multilabel", absent=1))).replace("&#39;", "'")
    assert "tube – – – – – – 0 0.0" in text  # noqa: RUF001 - dashes, as readers see them
    assert "There is no macro AUC: no sample of 'tube' in this split." in text


def test_faultless_multilabel_model_has_no_gallery() -> None:
    page = render(a_record(SEVERAL, task="multilabel", skill=50))
    assert "every prediction of a label with a threshold was right" in page
    assert "<img" not in page


def test_views_are_shown_with_what_they_gain() -> None:
    record = a_record()
    evaluation = record.evaluation
    subject = replace(evaluation.subject, views="flips-and-shifts")
    metrics = replace(evaluation.metrics, plain={"accuracy": 0.5, "log_loss": 1.25})
    text = _text(render(replace(record, evaluation=replace(evaluation, subject=subject, metrics=metrics))))
    assert "the mirror images of the three; without that" in text
    assert "accuracy 50.0 %, log loss 1.2500" in text.replace("\N{NO-BREAK SPACE}", " ")


def test_what_a_training_took_is_shown_as_far_as_known() -> None:
    record = a_record()
    took = {"data_wait": 0.031, "memory": 1_230_000_000, "gpu_memory": 8e9, "node_hours": 0.25}
    text = _text(render(replace(record, training={**record.training, "summary": took})))
    for expected in (
        "3.1 % of the time",
        "at most 1.2 GB",
        "8.0 GB on its GPU",
    ):
        assert expected in text.replace("\N{NO-BREAK SPACE}", " ")


def test_a_dark_page_has_other_colors_for_everything_that_is_drawn() -> None:
    page = render(a_record())
    light, dark = re.findall(r":root \{(.*?)\}", page, re.DOTALL)
    assert set(re.findall(r"--(\w+):", light)) == set(re.findall(r"--(\w+):", dark))
    drawn = "".join(re.findall("<svg.*?</svg>", page, re.DOTALL))
    assert re.findall(r"var\(--(\w+), #", drawn)
    assert not re.findall("(?<!, )#[0-9a-f]{6}", drawn)


def test_surest_mistake_comes_first(tmp_path: Path) -> None:
    dataset = a_dataset(str(tmp_path / "store"), test=60)
    labels = np.arange(60) % 2
    logits = some_logits(labels, 2, skill=0)
    store = open_store(str(tmp_path / "evaluation"))
    metrics = measure(logits, labels, ("ball", "kité"))
    evaluation = publish(store, a_subject(dataset=dataset), metrics, logits, labels)
    mistakes = worst_mistakes(evaluation, ("ball", "kité"), most=5)
    wrong = np.flatnonzero(logits.argmax(axis=1) != labels)
    margins = np.abs(logits[wrong, 0] - logits[wrong, 1])
    surest = wrong[np.argsort(-margins)][:5]
    assert [mistake.sample_id for mistake in mistakes] == [f"{index % 2}/{index}.png" for index in surest]
    assert len(wrong) > len(worst_mistakes(evaluation, ("ball", "kité"))) == 24
    images, shares = open_split(dataset, "test").images(surest), softmax(logits[surest], axis=1)
    for mistake, sample, image, share in zip(mistakes, surest, images, shares, strict=True):
        assert (mistake.confidence, mistake.expected) == pytest.approx(
            (share[logits[sample].argmax()], share[labels[sample]])
        )
        assert mistake.true == ("ball", "kité")[labels[sample]]
        np.testing.assert_array_equal(mistake.image, image)
    for mistake in mistakes:
        assert {mistake.true, mistake.said} == {"ball", "kité"}
        assert mistake.confidence + mistake.expected == pytest.approx(1)


def test_wrong_label_farthest_from_its_threshold_comes_first(tmp_path: Path) -> None:
    """As log-odds go: 0.01 where 0.5 is the threshold, then 0.9, and at last 0.3 where 0.2 is."""
    probabilities = np.array([[0.01, 0.1], [0.9, 0.1], [0.1, 0.3]])
    labels = np.array([[1, 0], [0, 0], [0, 0]])
    logits = np.log(probabilities / (1 - probabilities)).astype(np.float32)
    metrics = measure(logits, labels, ("bone", "lung"), task="multilabel", thresholds=(0.5, 0.2))
    found = wrong_answers(publish(open_store(str(tmp_path)), a_subject(), metrics, logits, labels))
    assert [(one.sample, one.true, one.said) for one in found] == [(0, 0, None), (1, None, 0), (2, None, 1)]
    assert [one.expected for one in found] == [0.5, 0.5, 0.2]
    assert [one.confidence for one in found] == pytest.approx([0.01, 0.9, 0.3])


def test_certain_answers_are_as_sure_as_numbers_can_tell_and_labels_without_a_threshold_give_none(
    tmp_path: Path,
) -> None:
    """Probabilities of 1 and 0, of which the second is farther from its threshold."""
    logits = np.array([[1000, 0, 0], [0, -1000, 0], [0, 0, 9]], np.float32)
    labels = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]])
    metrics = measure(logits, labels, SEVERAL, task="multilabel", thresholds=(0.6, 0.9, None))
    found = wrong_answers(publish(open_store(str(tmp_path)), a_subject(), metrics, logits, labels))
    assert found == [WrongAnswer(1, 1, None, 0.0, 0.9), WrongAnswer(0, None, 0, 1.0, 0.6)]


def test_run_is_gathered_from_what_its_steps_left(tmp_path: Path) -> None:
    dataset, labels = a_dataset(str(tmp_path / "store"), test=20), np.arange(20) % 2
    logits, training = some_logits(labels, 2), open_store(str(tmp_path / "training"))
    training.write("training.json", to_json(a_training_record()))
    metrics = measure(logits, labels, ("ball", "kité"))
    store = open_store(str(tmp_path / "evaluation"))
    publish(store, a_subject(dataset=dataset), metrics, logits, labels)
    seconds = {"prepare": 1.0, "train": 2.0}
    record = gather("Käthe's", training.uri, store.uri, seconds=seconds)
    assert isinstance(record.evaluation, Evaluation)
    # 2 s in the last attempt, 4.5 s in all of them
    assert record.seconds == {"prepare": 1.0, "train": 4.5}
    longer = gather("a", training.uri, store.uri, seconds={**seconds, "train": 9.0})
    assert longer.seconds["train"] == 9.0
    # of a run that took over the model of another, which is the one that trained
    assert gather("b", training.uri, store.uri, seconds=seconds, since="a").seconds == seconds
    assert gather("c", training.uri, store.uri).seconds == {}
    assert "<h1>Käthe&#39;s</h1>" in render(record)
    assert (record.run, record.training) == ("Käthe's", json.loads(training.read("training.json")))
    assert record.manifest == load_manifest(dataset)
    assert list(record.curves) == ["ball", "kité"]
    wrong = np.flatnonzero(logits.argmax(axis=1) != labels)
    assert sorted(one.sample_id for one in record.mistakes) == sorted(f"{one % 2}/{one}.png" for one in wrong)
    assert (record.package, record.since, record.verdict, record.data_page) == (None, "", None, "")
    verdict = Verdict(model="toys", decision="keep", reason="not better", metric="accuracy", score=0.9)
    publish_verdict(open_store(str(tmp_path / "gate")), verdict)
    judged = gather(
        "d", training.uri, store.uri, since="a", gate_uri=str(tmp_path / "gate"), data_page="data.html"
    )
    assert (judged.verdict, judged.since, judged.data_page) == (verdict, "a", "data.html")


def test_an_evaluation_of_its_own_is_gathered_without_a_run(tmp_path: Path) -> None:
    dataset, labels = a_dataset(str(tmp_path / "store"), test=20), np.arange(20) % 2
    manifest, logits = load_manifest(dataset), some_logits(labels, 2)
    raw = to_json({"schema": 1, "location": "/data/photos"})
    Path(dataset).with_name("origin.json").write_bytes(raw)
    store, metrics = open_store(str(tmp_path / "evaluation")), measure(logits, labels, ("ball", "kité"))
    evaluation = publish(store, a_subject(dataset=dataset), metrics, logits, labels)
    record = gather_evaluation(store.uri)
    assert (record.run, record.training, record.manifest) == ("runs/a/training", {}, manifest)
    assert record.location == "/data/photos"
    assert record.evaluation.subject == evaluation.subject
    assert record.curves == drawn(evaluation)


def test_report_does_not_wait_for_torch() -> None:
    code = "import sys, ddpipe.evaluate.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_curve_of_one_epoch_has_whole_numbers() -> None:
    (figure,) = learning_curves([{"epoch": 1, "train_loss": 1.0, "validation_loss": 1.1}]).values()
    texts = re.findall("<text[^>]*>([^<]+)</text>", figure)
    assert texts[: texts.index("epoch")] == ["0", "1", "2"]
    assert texts[-2:] == ["train", "validation"]


def test_page_of_a_kept_champion_says_why_there_is_no_model() -> None:
    verdict = Verdict(model="toys", decision="keep", reason="not better", metric="accuracy", score=0.9)
    page = render(replace(a_record(), verdict=verdict))
    assert "not exported: the gate decided so" in page
    assert "Orange: before calibration.Predicted" not in page
