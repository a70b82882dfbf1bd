"""Predictions of many images: tables, and the page."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx_packages import a_small_package
from PIL import Image
from pyarrow import parquet

from ddpipe.__main__ import cli
from ddpipe.errors import ParameterError, UnreadableImages
from ddpipe.serve.model import load_model
from ddpipe.serve.scoring import score
from ddpipe.serve.spec import ScoreOptions


@pytest.fixture
def package(tmp_path: Path) -> str:
    a_small_package(str(tmp_path / "package"))
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


def test_page_shows_the_answers_and_the_least_sure_images(package: str, tmp_path: Path) -> None:
    images = pictures(tmp_path / "images", 60)
    outputs = {"predicted": tmp_path / "predicted", "predictions_page": tmp_path / "page"}
    writing = [part for name, path in outputs.items() for part in ("--write", name, str(path))]
    wanted = ["--images", json.dumps([images]), "--predictions", str(tmp_path / "out"), *writing]
    result = CliRunner().invoke(cli, ["score", "--model", package, *wanted])
    assert result.exit_code == 0, result.output
    assert outputs["predicted"].read_text() == str(tmp_path / "out")
    page = outputs["predictions_page"].read_text()
    assert "&lt;b&gt;top&lt;/b&gt;" in page
    assert "<b>top" not in page
    assert page.count("data:image/png;base64,") == 24


def test_memory_of_what_the_page_shows_is_bounded(package: str, tmp_path: Path) -> None:
    images = tmp_path / "images.csv"
    one = pictures(tmp_path / "images", 1) + "/0000.png"
    images.write_text("path\n" + f"{one}\n{tmp_path}/gone.png\n" * 200)
    options = ScoreOptions(images=[str(images)], predictions=str(tmp_path / "out"), most_unreadable=1.0)
    found = score(package, options)
    assert (found.images, found.unreadable) == (400, 200)
    assert found.page.count("gone.png") == 20
