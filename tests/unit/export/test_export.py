"""From an evaluated training to a package that answers as it did."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from evaluation_runs import SHAPE, a_dataset, a_multilabel_dataset, a_training, exported
from safetensors.torch import load_file
from samples import an_image, some_images

from ddpipe.data.manifest import load_manifest
from ddpipe.data.reader import open_split
from ddpipe.errors import ExportError, NoSuchObject, ParameterError
from ddpipe.evaluate.evaluate import evaluate
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.export.agreement import BATCH_SIZES, SHARE, check, tolerance
from ddpipe.export.export import export, made_by
from ddpipe.model.classifier import Classifier, build, load_model
from ddpipe.model.evaluation import load_evaluation
from ddpipe.model.onnx import to_onnx
from ddpipe.model.package import Signature, load_package
from ddpipe.model.session import Session

SIGNATURE = Signature(architecture="digits-cnn", shape=SHAPE, classes=("ball", "kité"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained, evaluated and exported."""
    here = tmp_path_factory.mktemp("run")
    dataset = a_dataset(str(here / "store"))
    a_training(str(here / "training"), dataset)
    exported(here, dataset)
    (here / "dataset").write_text(dataset)
    return here


def _dataset(run: Path) -> str:
    return (run / "dataset").read_text()


def _export_to(output: Path, run: Path, **changes: str) -> None:
    uris = {"training_uri": run / "training", "evaluation_uri": run / "evaluation", "output_uri": output}
    arguments = {"manifest_uri": _dataset(run), **{name: str(uri) for name, uri in uris.items()}, **changes}
    export(**arguments)


@pytest.mark.parametrize("batch", [1, 3, 37])
def test_onnx_model_answers_as_the_trained_one(run: Path, batch: int) -> None:
    images = open_split(_dataset(run), "test").images(range(batch))
    (logits,) = onnxruntime.InferenceSession(run / "model" / "model.onnx").run(["logits"], {"images": images})
    classifier, _ = load_model(str(run / "training"))
    with torch.inference_mode():
        expected = classifier(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_its_accuracy_is_the_evaluated_one(run: Path) -> None:
    package, samples = load_package(str(run / "model")), open_split(_dataset(run), "test")
    answers = Session(package.folder.read("model.onnx"))(samples.images(range(len(samples))))
    accuracy = (answers.argmax(axis=1) == samples.labels).mean()
    assert accuracy == package.metrics.scores["accuracy"].value
    assert package.lineage["checks"]["same_decisions"] == len(samples)


def test_weights_are_the_trained_ones(run: Path) -> None:
    classifier, _ = load_model(str(run / "training"))
    weights = load_file(run / "model" / "model.safetensors")
    assert weights.keys() == classifier.state_dict().keys()
    for name, tensor in classifier.state_dict().items():
        assert torch.equal(weights[name], tensor)


def test_lineage_leads_back_to_the_data(run: Path) -> None:
    lineage = load_package(str(run / "model")).lineage
    assert lineage["dataset"]["id"] == load_manifest(_dataset(run)).dataset_id
    assert lineage["training"]["processes"] == 1
    assert lineage["training"]["recipe"] == {"model": "digits-cnn", "seed": 0}
    assert lineage["evaluation"]["sha256"] == load_evaluation(str(run / "evaluation")).folder.sha256
    assert lineage["checks"]["batch_sizes"] == list(BATCH_SIZES)
    assert lineage["checks"]["largest_difference"] < 1e-5 < lineage["checks"]["tolerance"]
    assert lineage["made_by"]["versions"]["torch"] in torch.__version__


def test_run_job_and_image_come_from_the_environment() -> None:
    maker = made_by({"DDPIPE_JOB": "job-4711", "DDPIPE_IMAGE": "trainer@sha256:1", "DDPIPE_RUN": ""})
    assert (maker["job"], maker["image"]) == ("job-4711", "trainer@sha256:1")
    assert "run" not in maker


def test_what_the_card_says_to_run_runs(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = (run / "model" / "README.md").read_text()
    by_ddpipe, by_onnx, by_torch = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    monkeypatch.chdir(run / "model")
    an_image(Path("image.png"), (11, 9))
    names: dict[str, Any] = {}
    try:
        exec(by_ddpipe, names)  # noqa: S102 - our own text
        assert re.match(r"image\.png \('(ball|kité)',\) \{'ball': 0", capsys.readouterr().out)
        exec(by_onnx, names)  # noqa: S102 - our own text
    finally:
        Path("image.png").unlink()
    expected = list(names["prediction"].probabilities.values())
    np.testing.assert_allclose(names["probabilities"][0], expected, atol=1e-4)
    exec(by_torch, names)  # noqa: S102 - our own text
    images = some_images(5, SHAPE)
    with torch.inference_mode():
        assert names["model"](torch.from_numpy(images)).shape == (5, 2)  # type: ignore[operator]


def test_onnx_file_is_reproducible_and_names_no_local_path(run: Path) -> None:
    classifier, _ = load_model(str(run / "training"))
    model = to_onnx(classifier, load_package(str(run / "model")).signature)
    assert model == (run / "model" / "model.onnx").read_bytes()
    assert b".py" not in model


def test_onnx_metadata_is_the_signature(run: Path) -> None:
    metadata = onnxruntime.InferenceSession(run / "model" / "model.onnx").get_modelmeta().custom_metadata_map
    found = {name: json.loads(value) for name, value in metadata.items()}
    assert found == json.loads((run / "model" / "signature.json").read_text())
    assert found["preprocessing"]["scale"] == "cover"
    assert (found["classes"], found["temperature"]) == (["ball", "kité"], 1.0)


def test_exporting_is_quiet(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _export_to(tmp_path, run)
    assert capfd.readouterr() == ("", "")


def test_model_that_was_not_evaluated_is_not_published(run: Path, tmp_path: Path) -> None:
    """The training continued, or was repeated, after the evaluation."""
    other = a_training(str(tmp_path / "training"), _dataset(run), bias=0.01)
    with pytest.raises(ExportError, match="probabilities away from the evaluated logits"):
        _export_to(tmp_path / "model", run, training_uri=other)
    assert not list((tmp_path / "model").glob("*"))


def test_onnx_model_that_differs_is_rejected(run: Path) -> None:
    classifier, _ = load_model(str(run / "training"))
    torch.manual_seed(1)
    otherwise = Classifier(build("digits-cnn", SHAPE, 2), mean=[0.5], std=[0.25]).eval()
    with pytest.raises(ExportError) as refused:
        check(
            Session(to_onnx(otherwise, SIGNATURE)),
            classifier,
            open_split(_dataset(run), "test"),
            load_evaluation(str(run / "evaluation")),
        )
    for size in (1, 2, 7, 37):
        assert f"PyTorch's logits of {size} images" in str(refused.value)


def test_dataset_of_another_version_is_refused(run: Path, tmp_path: Path) -> None:
    other = a_dataset(str(tmp_path / "store"), test=20)
    with pytest.raises(ParameterError, match="2 problems"):
        _export_to(tmp_path / "model", run, manifest_uri=other)


@pytest.mark.parametrize(
    "labels",
    [pytest.param(("bone", "lung", "tube"), marks=pytest.mark.slow), ("bone", "lung", "a|b", "none")],
)
def test_multilabel_model_says_how_its_answers_are_read(
    tmp_path: Path,
    labels: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The validation split has two images, of which one shows the first label and none the others."""
    dataset = a_multilabel_dataset(str(tmp_path / "store"), labels=labels)
    training, evaluation = a_training(str(tmp_path / "training"), dataset), str(tmp_path / "evaluation")
    evaluated = evaluate(training, dataset, evaluation)
    package = export(training, dataset, evaluation, str(tmp_path / "model"))
    signature = json.loads((tmp_path / "model" / "signature.json").read_bytes())
    assert (signature["task"], signature["output"]["activation"]) == ("multilabel", "sigmoid")
    assert signature["thresholds"] == [evaluated.metrics.classes[0].threshold, *[None] * (len(labels) - 1)]
    assert package.lineage["checks"]["same_decisions"] == 37
    card = (tmp_path / "model" / "README.md").read_text()
    assert "lung has no threshold" in card
    monkeypatch.chdir(tmp_path / "model")
    an_image(Path("image.png"), (8, 8))
    by_ddpipe, by_onnx, _ = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(by_ddpipe, names)  # noqa: S102 - our own text
    assert re.match(r"image\.png \(('bone',)?\) \{'bone': 0", capsys.readouterr().out)
    exec(by_onnx, names)  # noqa: S102 - our own text
    shown = re.findall(r"^\s*(\S+) [\d.]+ (True|False)", capsys.readouterr().out, flags=re.MULTILINE)
    found = dict(shown)
    assert [name for name in labels if found[name] == "True"] == list(names["prediction"].answer)


@pytest.mark.parametrize("views", ["flips", pytest.param("flips-and-shifts", marks=pytest.mark.slow)])
def test_what_was_evaluated_with_several_views_is_exported_with_them(
    run: Path, tmp_path: Path, views: str
) -> None:
    training, dataset, evaluation = str(run / "training"), _dataset(run), str(tmp_path / "evaluation")
    evaluated = evaluate(training, dataset, evaluation, EvaluateSpec(test_time_views=views))
    package = export(training, dataset, evaluation, str(tmp_path / "model"))
    logits, _ = evaluated.predictions()
    images = open_split(dataset, "test").images(range(37))
    model = Session(package.folder.read("model.onnx"))
    np.testing.assert_allclose(model(images), logits, rtol=1e-4, atol=1e-5)
    assert package.signature.views == views
    assert package.lineage["evaluation"]["views"] == views
    assert load_file(tmp_path / "model" / "model.safetensors").keys() == (
        load_file(run / "model" / "model.safetensors").keys()
    )
    one = load_evaluation(str(run / "evaluation"))
    plain = one.headline()
    assert package.metrics.plain == plain
    assert not np.allclose(one.predictions()[0], logits, atol=1e-3)
    assert (
        f"For the plain image alone: accuracy {plain['accuracy']:.4f}"
        in (tmp_path / "model" / "README.md").read_text()
    )


@pytest.mark.slow
def test_untrained_network_is_exported(tmp_path: Path) -> None:
    """Its logits are small sums of large terms: what rounding moves is a large share of the largest."""
    dataset = a_dataset(str(tmp_path / "store"))
    images = torch.from_numpy(open_split(dataset, "test").images(range(37)))
    training = a_training(
        str(tmp_path / "training"), dataset, adjust=lambda one: _add_terms_that_cancel(one, images, 3000)
    )
    evaluate(training, dataset, str(tmp_path / "evaluation"))
    checks = export(training, dataset, str(tmp_path / "evaluation"), str(tmp_path / "model")).lineage[
        "checks"
    ]
    logits, _ = load_evaluation(str(tmp_path / "evaluation")).predictions()
    share = SHARE * np.abs(logits).max()
    assert share < checks["largest_difference"] < checks["tolerance"]


def _add_terms_that_cancel(classifier: Classifier, images: torch.Tensor, size: float) -> None:
    """Change the last layer's weights in a direction that none of these images has."""
    last = [layer for layer in classifier.modules() if isinstance(layer, torch.nn.Linear)][-1]
    inputs: list[torch.Tensor] = []
    hook = last.register_forward_pre_hook(lambda _, seen: inputs.append(seen[0]))
    classifier(images)
    hook.remove()
    nowhere = torch.linalg.svd(inputs[0].double(), full_matrices=True).Vh[-1]
    last.weight += size * nowhere.float()


def test_floor_is_far_below_the_distance_of_two_networks() -> None:
    images = torch.from_numpy(some_images(64, (32, 32, 3)))
    one, other = _fresh(0), _fresh(1)
    with torch.inference_mode():
        logits = one(images)
        apart = float((logits - other(images)).abs().max())
        exact = copy.deepcopy(one).double()(images)
    allowed = tolerance(one, images, largest=0.0)
    assert float((logits - exact).abs().max()) < allowed < apart / 100


def test_network_without_layers_of_weights_has_the_share_alone() -> None:
    assert tolerance(torch.nn.Flatten(), torch.zeros(2, 3), largest=3.0) == 3 * SHARE


def _fresh(seed: int) -> Classifier:
    torch.manual_seed(seed)
    return Classifier(build("digits-cnn", (32, 32, 3), 10), mean=[0.5] * 3, std=[0.25] * 3).eval()


def test_without_an_evaluation_there_is_no_package(run: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSuchObject, match="ddpipe evaluate"):
        _export_to(tmp_path / "model", run, evaluation_uri=str(tmp_path / "nowhere"))
