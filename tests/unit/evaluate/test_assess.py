"""Any package on any split of any dataset version with the same classes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from evaluation_runs import a_dataset, a_multilabel_dataset, a_training, exported

from ddpipe.__main__ import cli
from ddpipe.data.index import hashed
from ddpipe.data.npy import to_bytes
from ddpipe.data.reader import open_split
from ddpipe.errors import DatasetError, ParameterError
from ddpipe.evaluate import evaluate as evaluating
from ddpipe.evaluate.evaluate import assess, evaluate
from ddpipe.model.package import load_package


@pytest.fixture(scope="module", params=[a_dataset, a_multilabel_dataset], ids=["multiclass", "multilabel"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained, evaluated and exported."""
    here = tmp_path_factory.mktemp("run")
    dataset = request.param(str(here / "store"))
    a_training(str(here / "training"), dataset)
    (here / "training/trained_on.npy").write_bytes(
        to_bytes(hashed(open_split(dataset, "train").sample_ids.column))
    )
    exported(here, dataset)
    (here / "dataset").write_text(dataset)
    return here


def _dataset(run: Path) -> str:
    return (run / "dataset").read_text()


def test_the_test_split_gives_the_scores_of_the_evaluation(run: Path, tmp_path: Path) -> None:
    expected = evaluate(str(run / "training"), _dataset(run), str(tmp_path / "again"))
    found = assess(str(run / "model"), _dataset(run), str(tmp_path / "other"), "test")
    np.testing.assert_allclose(found.predictions()[0], expected.predictions()[0], atol=1e-4)
    assert found.metrics.temperature == pytest.approx(expected.metrics.temperature, rel=1e-3)
    assert found.headline() == pytest.approx(expected.headline(), abs=1e-3)
    assert found.subject == replace(
        expected.subject, training=str(run / "model"), device="cpu", seconds=found.subject.seconds
    )
    worth = len(_classes(run)) == 2  # of several labels, the score is no share of images
    guess = next(text for text in found.metrics.warnings if "rough guess" in text)
    assert ("points of accuracy" in guess) is worth


def test_the_training_split_is_scored_with_a_warning(run: Path, tmp_path: Path) -> None:
    found = assess(str(run / "model"), _dataset(run), str(tmp_path), "train")
    assert found.metrics.samples == 6
    assert "trained on 6 of these 6 train images: scores are too good" in found.metrics.warnings[-1]


def test_another_version_of_the_dataset_is_scored(run: Path, tmp_path: Path) -> None:
    kind = a_dataset if len(_classes(run)) == 2 else a_multilabel_dataset
    other = kind(str(tmp_path / "store"), 50)
    assert assess(str(run / "model"), other, str(tmp_path / "evaluation"), "test").metrics.samples == 50


def test_the_temperature_of_a_package_is_not_fitted_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluating, "fitted", lambda *_: 7.0)
    found = assess(str(run / "model"), _dataset(run), str(tmp_path), "test")
    assert found.metrics.temperature == load_package(str(run / "model")).signature.temperature != 7.0


@pytest.mark.parametrize(
    "lineage", [{}, {"training": "a"}, {"training": {}}, {"training": {"epoch": "3"}}], ids=repr
)
def test_a_package_that_does_not_say_its_epoch_has_epoch_0(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lineage: dict[str, object]
) -> None:
    package = replace(load_package(str(run / "model")), lineage=lineage)
    monkeypatch.setattr(evaluating, "load_package", lambda _: package)
    assert assess(str(run / "model"), _dataset(run), str(tmp_path), "test").subject.epoch == 0


def test_a_package_without_onnx_is_rejected(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = load_package(str(run / "model"))
    monkeypatch.setattr(
        evaluating, "load_package", lambda _: replace(package, folder=replace(package.folder, sha256={}))
    )
    with pytest.raises(ParameterError, match=r"it has no model\.onnx"):
        assess(str(run / "model"), _dataset(run), str(tmp_path), "test")


def _classes(run: Path) -> list[str]:
    return list(json.loads((run / "model/signature.json").read_text())["classes"])


def test_the_split_that_fits_a_model_is_scored_with_a_warning(run: Path, tmp_path: Path) -> None:
    found = assess(str(run / "model"), _dataset(run), str(tmp_path), "validation")
    assert any("are fitted on validation images" in one for one in found.metrics.warnings)


def test_other_classes_are_rejected(run: Path, tmp_path: Path) -> None:
    other = a_multilabel_dataset(str(tmp_path / "store"), labels=("a", "b", "c", "d"))
    with pytest.raises(ParameterError, match="other classes"):
        assess(str(run / "model"), other, str(tmp_path / "evaluation"), "test")


def test_another_shape_is_rejected(run: Path, tmp_path: Path) -> None:
    kind = a_dataset if len(_classes(run)) == 2 else a_multilabel_dataset
    other = kind(str(tmp_path / "store"), shape=(8, 12, 3))
    with pytest.raises(ParameterError, match="its images are"):
        assess(str(run / "model"), other, str(tmp_path / "evaluation"), "test")


def test_a_split_without_images_is_rejected(run: Path, tmp_path: Path) -> None:
    kind = a_dataset if len(_classes(run)) == 2 else a_multilabel_dataset
    with pytest.raises(DatasetError, match="its test split is empty"):
        assess(str(run / "model"), kind(str(tmp_path / "store"), 0), str(tmp_path / "evaluation"), "test")


def test_command_writes_a_page(run: Path, tmp_path: Path) -> None:
    arguments = ["models", "evaluate", str(run / "model"), "--dataset", _dataset(run), "--json"]
    result = CliRunner().invoke(cli, [*arguments, "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    page = Path(json.loads(result.stdout)["page"]).read_text()
    assert "Training run" not in page
    assert "none of which it was trained on" not in page
