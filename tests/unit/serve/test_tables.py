"""Predictions of many images: the table, its numbers and the page."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from onnx_packages import a_small_package
from PIL import Image

from ddpipe.__main__ import cli
from ddpipe.errors import ParameterError, UnreadableImages
from ddpipe.serve.predictor import load_model


@pytest.fixture
def package(tmp_path: Path) -> str:
    a_small_package(str(tmp_path / "package"))
    return str(tmp_path / "package")


def pictures(folder: Path, count: int) -> str:
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        pixels = np.clip(random.normal(100, 30, (6, 8)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04}.png")
    return str(folder)


def predict(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["predict", *arguments])


def test_table_has_what_the_model_predicts(package: str, tmp_path: Path) -> None:
    images, out = pictures(tmp_path / "images", 40), tmp_path / "out"
    (tmp_path / "images" / "0007.png").write_bytes(b"not an image")
    done = predict(package, images, "--table", str(out), "--most-unreadable", "0.1", "--json")
    expected = load_model(package).predict(sorted(map(str, Path(images).iterdir())))
    with (out / "predictions.csv").open() as text:
        lines = list(csv.DictReader(text))
    assert [one["image"] for one in lines] == [one.image for one in expected]
    for one, line in zip(expected, lines, strict=True):
        assert line["answer"] == ";".join(one.answer)
        assert line["problem"] == one.problem
        for name, value in one.probabilities.items():
            assert float(line[name]) == pytest.approx(value, abs=1e-6)
    facts = json.loads(done.stdout)
    assert (facts["images"], facts["unreadable"]) == (40, 1)
    assert sum(facts["shares"].values()) == pytest.approx(1)


def test_names_of_files_make_no_formulas_and_control_no_terminal(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures(tmp_path / "images", 1))
    names = ["=HYPERLINK(1).png", "+1.png", "@a.png", "a\x1b[2J\x07.png"]
    for name in names:
        Path(name).write_bytes(Path("0000.png").read_bytes())
    assert predict(package, *names, "--table", str(tmp_path / "out")).exit_code == 0
    with (tmp_path / "out/predictions.csv").open(newline="") as text:
        assert [one["image"] for one in csv.DictReader(text)] == [
            *(f"'{name}" for name in names[:3]),
            names[3],
        ]
    printed = predict(package, names[3]).output
    assert r"a\x1b[2J\x07.png: " in printed
    assert "\x1b" not in printed


def test_unreadable_images_fail_after_the_results(package: str, tmp_path: Path) -> None:
    images, out = pictures(tmp_path / "images", 4), tmp_path / "out"
    (tmp_path / "images" / "0002.png").write_bytes(b"not an image")
    ended = predict(package, images, "--table", str(out))
    assert ended.exit_code == UnreadableImages.exit_code
    assert "1 of 4 images" in ended.stderr
    assert "0002.png" in ended.stderr
    assert json.loads((out / "summary.json").read_text())["images"] == 4
    assert "0002.png" in (out / "predictions.html").read_text()


def test_no_images_are_an_error(package: str, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("path\n")
    for arguments in ([package, str(tmp_path / "none.csv"), "--table", str(tmp_path / "out")], [package]):
        ended = predict(*arguments)
        assert ended.exit_code == ParameterError.exit_code
        assert "there is no image to predict" in ended.stderr
    assert not (tmp_path / "out" / "summary.json").exists()


def test_component_gets_the_folder_and_a_page_of_unsure_images(package: str, tmp_path: Path) -> None:
    images, outputs = pictures(tmp_path / "images", 60), {}
    for name in ("predicted", "predictions_page"):
        outputs[name] = tmp_path / name
    writing = [part for name, path in outputs.items() for part in ("--write", name, str(path))]
    wanted = ["--model", package, "--images", json.dumps([images]), *writing]
    assert "nobody to print to" in predict(*wanted).stderr
    result = predict(*wanted, "--table", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert outputs["predicted"].read_text() == str(tmp_path / "out")
    page = outputs["predictions_page"].read_text()
    assert "&lt;b&gt;top&lt;/b&gt;" in page
    assert "<b>top" not in page
    assert page.count("data:image/png;base64,") == 24


def test_what_the_page_shows_is_bounded(package: str, tmp_path: Path) -> None:
    images, out = tmp_path / "images.csv", tmp_path / "out"
    one = pictures(tmp_path / "images", 1) + "/0000.png"
    images.write_text("path\n" + f"{one}\n{tmp_path}/gone.png\n" * 200)
    done = predict(package, str(images), "--table", str(out), "--most-unreadable", "1")
    assert "400 images, 200 of them unreadable" in done.stdout
    assert (out / "predictions.html").read_text().count("gone.png") == 20


def test_a_list_without_models_says_how_one_appears(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["models", "ls", "--store", str(tmp_path)])
    assert (done.exit_code, "`ddpipe run photos --gate-model photos`" in done.stdout) == (0, True)
