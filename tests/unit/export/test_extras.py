"""What a package holds besides the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from evaluation_runs import a_dataset, a_training, exported

from ddpipe.model.package import FORMAT, answer_from, load_package, pattern_of
from ddpipe.model.session import Session
from ddpipe.storage import open_store


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was exported."""
    here = tmp_path_factory.mktemp("run")
    dataset = a_dataset(str(here / "store"))
    a_training(str(here / "training"), dataset)
    exported(here, dataset)
    (here / "dataset").write_text(dataset)
    return here


def test_a_package_with_further_formats_is_still_read(run: Path) -> None:
    """Exports of before also wrote `model.int8.onnx` and others, as files of the package."""
    made = load_package(str(run / "model"))
    files = {key: made.folder.read(key) for key in made.folder.sha256}
    facts = {"file": "model.int8.onnx", "megabytes": 0.1, "score": 0.9, "loss": 0.0}
    lineage = {**json.loads(files["lineage.json"]), "formats": {"int8": facts}}
    FORMAT.publish(
        open_store(str(run / "former")),
        {**files, "lineage.json": json.dumps(lineage).encode(), "model.int8.onnx": b"a graph"},
        facts=made.folder.facts,
    )
    assert load_package(str(run / "former")).model_id == made.model_id


def test_the_test_pattern_has_the_answer_of_a_prediction(run: Path) -> None:
    package = load_package(str(run / "model"))
    answer = answer_from(json.loads(package.folder.read("reference.json")))
    pattern = pattern_of(package.signature.shape)
    assert pattern.shape == (1, 8, 8, 1)
    assert pattern.ravel()[:8].tolist() == [0, 37, 74, 111, 148, 185, 222, 8]
    logits = Session(package.folder.read("model.onnx"))(pattern)
    np.testing.assert_allclose(package.signature.probabilities(logits)[0], answer, atol=1e-5)


def test_answer_to_the_test_pattern_is_read_from_packages_of_before() -> None:
    before = {"images": 9, "shares": [1.0], "brightness": [2.0], "spread": [0.5], "pattern": [0.25, 0.75]}
    assert answer_from(before) == (0.25, 0.75)
    assert answer_from({"images": 9}) == ()
    for wrong in ([], {"pattern": "x"}, {"pattern": ["a"]}, {"pattern": [float("nan")]}):
        with pytest.raises(ValueError, match="no probabilities"):
            answer_from(wrong)
