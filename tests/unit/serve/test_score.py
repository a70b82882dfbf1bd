"""Scoring many images: tables, the page, and drift against the images of the evaluation."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx_packages import CLASSES, a_small_package
from PIL import Image
from pyarrow import parquet

from ddpipe.__main__ import cli
from ddpipe.errors import ParameterError, UnreadableImages
from ddpipe.model.package import FORMAT
from ddpipe.model.reference import FILE, Reference
from ddpipe.serve.drift import Seen, changes
from ddpipe.serve.model import load_model
from ddpipe.serve.scoring import score
from ddpipe.serve.spec import ScoreOptions
from ddpipe.storage import open_store
from ddpipe.storage.sealed import to_json

EVEN = Reference(images=1000, shares=(0.4, 0.4, 0.2), brightness=(100.0,), spread=(20.0,))


@pytest.fixture
def package(tmp_path: Path) -> str:
    made = a_small_package(str(tmp_path / "package"))
    files = {name: made.folder.read(name) for name in made.folder.sha256}
    reference = to_json(EVEN.to_dict())
    FORMAT.publish(open_store(str(tmp_path / "package")), {**files, FILE: reference}, facts={})
    return str(tmp_path / "package")


def pictures(folder: Path, count: int, brightness: int = 100) -> str:
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        pixels = np.clip(random.normal(brightness, 30, (6, 8)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04}.png")
    return str(folder)


def test_both_tables_have_what_the_model_predicts(package: str, tmp_path: Path) -> None:
    images = pictures(tmp_path / "images", 40)
    (tmp_path / "images" / "0007.png").write_bytes(b"not an image")
    options = ScoreOptions(images=[images], predictions=str(tmp_path / "out"), most_unreadable=0.1)
    found = score(package, options)
    expected = load_model(package).predict(sorted(map(str, Path(images).iterdir())))
    with (tmp_path / "out" / "predictions.csv").open() as text:
        lines = list(csv.DictReader(text))
    rows = parquet.read_table(tmp_path / "out" / "predictions.parquet").to_pylist()
    assert (
        [one["image"] for one in lines] == [one["image"] for one in rows] == [one.image for one in expected]
    )
    for one, line, row in zip(expected, lines, rows, strict=True):
        assert row["answer"] == list(one.answer)
        assert line["answer"] == ";".join(one.answer)
        if one.problem:
            assert row["problem"] == line["problem"] == one.problem
            assert row["probabilities"] is None
        else:
            assert row["probabilities"] == pytest.approx(one.probabilities, abs=1e-6)
    assert (found.images, found.unreadable) == (40, 1)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_unreadable_images_fail_the_step_after_the_results(package: str, tmp_path: Path) -> None:
    images = pictures(tmp_path / "images", 4)
    (tmp_path / "images" / "0002.png").write_bytes(b"not an image")
    with pytest.raises(UnreadableImages, match="1 of 4 images") as failed:
        score(package, ScoreOptions(images=[images], predictions=str(tmp_path / "out")))
    assert "0002.png" in str(failed.value)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["images"] == 4
    assert "0002.png" in (tmp_path / "out" / "predictions.html").read_text()


def test_no_images_are_an_error(package: str, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("path\n")
    with pytest.raises(ParameterError, match="the tables name none"):
        score(package, ScoreOptions(images=[str(tmp_path / "none.csv")], predictions=str(tmp_path / "out")))
    assert CliRunner().invoke(cli, ["score", package]).exit_code == ParameterError.exit_code


@pytest.mark.parametrize(
    ("shares", "brightness", "count", "drifted"),
    [
        ((0.4, 0.4, 0.2), 100.0, 1000, []),
        ((0.45, 0.35, 0.2), 104.0, 100_000, []),  # certain, but small
        ((0.1, 0.7, 0.2), 100.0, 1000, ["share of ball", "share of kité"]),
        ((0.1, 0.7, 0.2), 100.0, 10, []),  # large, but ten images say nothing
        ((0.4, 0.4, 0.2), 130.0, 1000, ["brightness"]),
        ((0.4, 0.4, 0.2), 130.0, 3, []),
    ],
)
def test_difference_that_is_large_and_certain_is_drift(
    shares: tuple[float, ...], brightness: float, count: int, drifted: list[str]
) -> None:
    counts = {name: round(share * count) for name, share in zip(CLASSES, shares, strict=True)}
    seen = Seen(images=count, counts=counts, total=[brightness * count])
    assert [one.what for one in changes(EVEN, seen, CLASSES) if one.drifted] == drifted


def test_samples_of_the_same_images_are_rarely_drift() -> None:
    """Of a thousand batches, with four numbers each."""
    random = np.random.default_rng(0)
    alarms = 0
    for _ in range(1000):
        counts = dict(zip(CLASSES, random.multinomial(40, EVEN.shares).tolist(), strict=True))
        seen = Seen(images=40, counts=counts, total=[float(random.normal(100, 20, 40).sum())])
        alarms += any(one.drifted for one in changes(EVEN, seen, CLASSES))
    assert alarms <= 20


def test_brighter_images_are_drift_and_the_page_says_so(package: str, tmp_path: Path) -> None:
    images = pictures(tmp_path / "images", 60, brightness=180)
    outputs = {"drift": tmp_path / "drift", "predictions_page": tmp_path / "page"}
    writing = [part for name, path in outputs.items() for part in ("--write", name, str(path))]
    wanted = ["--images", json.dumps([images]), "--predictions", str(tmp_path / "out"), *writing]
    result = CliRunner().invoke(cli, ["score", "--model", package, *wanted])
    assert result.exit_code == 0, result.output
    assert outputs["drift"].read_text() == "yes"
    page = outputs["predictions_page"].read_text()
    assert "<strong>Drift:</strong>" in page
    assert "brightness is 17" in page
    assert "&lt;b&gt;top&lt;/b&gt;" in page
    assert "<b>top" not in page
    assert page.count("data:image/png;base64,") == 24


def test_package_without_a_reference_says_that_drift_is_not_known(tmp_path: Path) -> None:
    a_small_package(str(tmp_path / "package"))
    images = pictures(tmp_path / "images", 3)
    found = score(str(tmp_path / "package"), ScoreOptions(images=[images], predictions=str(tmp_path / "out")))
    assert found.changes == ()
    assert "Drift is not known" in found.page


def test_memory_of_what_the_page_shows_is_bounded(package: str, tmp_path: Path) -> None:
    images = tmp_path / "images.csv"
    one = pictures(tmp_path / "images", 1) + "/0000.png"
    images.write_text("path\n" + f"{one}\n{tmp_path}/gone.png\n" * 200)
    options = ScoreOptions(images=[str(images)], predictions=str(tmp_path / "out"), most_unreadable=1.0)
    found = score(package, options)
    assert (found.images, found.unreadable) == (400, 200)
    assert found.page.count("gone.png") == 20


def test_reference_is_read_back_and_rejected_if_malformed() -> None:
    assert Reference.from_dict(json.loads(json.dumps(EVEN.to_dict()))) == EVEN
    wrong: list[Any] = [[], {}, replace(EVEN, images=0).to_dict(), {**EVEN.to_dict(), "shares": ["a"]}]
    for values in wrong:
        with pytest.raises(ValueError, match=r".+"):
            Reference.from_dict(values)


def test_reference_counts_answers_and_brightness() -> None:
    decisions = np.array([[True, False], [True, False], [False, True], [True, False]])
    means = np.array([[10.0], [20.0], [30.0], [40.0]])
    found = Reference.of(decisions, means)
    assert found.shares == (0.75, 0.25)
    assert found.brightness == (25.0,)
    assert found.spread == pytest.approx((np.std([10, 20, 30, 40]),))
