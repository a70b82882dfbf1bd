"""Recurring runs: nothing is trained twice, and only complete earlier runs are reused."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from evaluation_runs import a_training
from recipes import plain
from safetensors.torch import save
from samples import a_folder, sample_ids

from ddpipe import reuse, workflow
from ddpipe.__main__ import cli
from ddpipe.data.catalogue import difference
from ddpipe.data.columns import text
from ddpipe.data.index import hashed
from ddpipe.data.manifest import load_manifest, store_of
from ddpipe.data.npy import to_bytes
from ddpipe.errors import ReplicaFailed
from ddpipe.evaluate.spec import EvaluateSpec
from ddpipe.jobs.job import Owner
from ddpipe.model.classifier import load_model
from ddpipe.model.evaluation import load_evaluation
from ddpipe.model.package import ModelPackage, Signature, load_package, publish
from ddpipe.model.training_record import METRICS
from ddpipe.prepare.prepare import prepare as prepare_dataset
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.runs import Run
from ddpipe.steps import TrainOptions
from ddpipe.storage import open_store
from ddpipe.train.recipe import AT_FIRST, LATEST, Recipe

RECIPE = plain(model="digits-cnn", epochs=3)
JOB = TrainOptions(backend="pytorchjob", image="registry.example.com/trainer:1", nodes=2)


def train_quickly(run: Run, dataset: str, recipe: Recipe, _options: TrainOptions) -> None:
    """What a training leaves, without training."""
    a_training(run.training, dataset, seed=recipe.seed)
    path = Path(run.training, "training.json")
    record = {**json.loads(path.read_text()), "recipe": recipe.to_dict()}
    path.write_text(json.dumps({**record, "final": {"validation_accuracy": 0.4, "validation_loss": 1.0}}))


def export_quickly(training: str, dataset: str, evaluation: str, output: str, _network: str) -> ModelPackage:
    """What an export leaves, without ONNX."""
    manifest, (classifier, _) = load_manifest(dataset), load_model(training)
    lineage = {
        "dataset": {"id": manifest.dataset_id},
        "checks": {"samples": 1, "largest_difference": 0.0},
        "made_by": {"versions": {}},
        "exported": "today",
    }
    return publish(
        open_store(output),
        onnx=b"onnx",
        weights=save(classifier.state_dict()),
        signature=Signature(architecture="digits-cnn", shape=manifest.shape, classes=manifest.classes),
        metrics=load_evaluation(evaluation).metrics,
        lineage=lineage,
        card="# Toys",
    )


@pytest.fixture(scope="module")
def steps() -> Iterator[list[Recipe]]:
    """The recipes that were trained, in steps that take no time."""
    trained: list[Recipe] = []

    def train(run: Run, dataset: str, recipe: Recipe, options: TrainOptions) -> None:
        trained.append(recipe)
        train_quickly(run, dataset, recipe, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workflow, "_train_here", train)
        patch.setattr("ddpipe.export.export.export", export_quickly)
        patch.setattr("ddpipe.evaluate.report.render", lambda record: f"since {record.since}")
        yield trained


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> PrepareSpec:
    folder = tmp_path_factory.mktemp("data")
    photos = a_folder(folder / "photos", {"ball": 20, "kite": 20})
    return PrepareSpec(
        source="folder", source_path=str(photos), dataset_name="toys", store=str(folder / "store")
    )


@pytest.fixture(scope="module")
def complete(steps: list[Recipe], toys: PrepareSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with a complete one, `first`."""
    folder = tmp_path_factory.mktemp("runs")
    go(folder, toys, "first")
    return folder


@pytest.fixture
def runs(complete: Path, steps: list[Recipe], tmp_path: Path) -> Path:
    """The same, for a test of its own; nothing was trained yet."""
    steps.clear()
    return Path(shutil.copytree(complete, tmp_path / "runs"))


def go(
    runs: Path,
    data: PrepareSpec,
    name: str,
    recipe: Recipe = RECIPE,
    *,
    views: str = "plain",
) -> Run:
    """A run of all steps."""
    run = Run.named(str(runs), name)
    dataset = workflow.prepare(run, data).manifest_uri
    workflow.train(run, dataset, recipe, TrainOptions(), Owner(), reuse=True)
    workflow.evaluate(run, dataset, EvaluateSpec(test_time_views=views))
    workflow.export(run, dataset)
    return run


def train(runs: Path, data: PrepareSpec, name: str, recipe: Recipe = RECIPE) -> Run:
    """The first two of them, reusing what can be reused."""
    run = Run.named(str(runs), name)
    workflow.train(run, workflow.prepare(run, data).manifest_uri, recipe, TrainOptions(), Owner(), reuse=True)
    return run


def grown(data: PrepareSpec, folder: Path, classes: tuple[str, ...] = ("ball", "kite")) -> PrepareSpec:
    """The data after ten more images of each class have arrived."""
    photos = Path(shutil.copytree(data.source_path, folder / "grown"))
    a_folder(photos, dict.fromkeys(classes, 10), start=100)
    return replace(data, source_path=str(photos))


def test_an_unchanged_run_reuses_the_earlier_model(
    runs: Path, toys: PrepareSpec, steps: list[Recipe], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    second, first = go(runs, toys, "second"), Run.named(str(runs), "first")
    assert steps == []
    assert "nothing changed since run first, 20" in caplog.text
    assert [second.origin(step) for step in ("train", "evaluate", "export")] == [first] * 3
    assert not any(Path(second.uri, part).exists() for part in ("training", "evaluation", "model"))
    assert Path(second.report).read_text().startswith("since first, 20")
    assert second.facts("prepare")["reused"]


def test_a_third_run_names_the_run_that_trained(runs: Path, toys: PrepareSpec) -> None:
    go(runs, toys, "second")
    shutil.rmtree(runs / "second")
    assert train(runs, toys, "third").origin("train").name == "first"


def test_training_again_is_what_happens_unless_reuse_is_asked_for(
    runs: Path, toys: PrepareSpec, steps: list[Recipe]
) -> None:
    run = Run.named(str(runs), "second")
    dataset = workflow.prepare(run, toys).manifest_uri
    workflow.train(run, dataset, RECIPE, TrainOptions(), Owner())
    assert steps == [RECIPE]


def test_new_images_are_encoded_alone_and_trained_on(
    runs: Path, toys: PrepareSpec, steps: list[Recipe], tmp_path: Path
) -> None:
    second = train(runs, grown(toys, tmp_path), "second")
    facts = second.facts("prepare")
    assert (facts["reused"], facts["encoded"]) == (False, 20)
    assert steps == [RECIPE]
    assert second.origin("train") == second
    before, after = (Run.named(str(runs), name).facts("prepare")["dataset"] for name in ("first", "second"))
    arrived = difference((load_manifest(before), store_of(before)), (load_manifest(after), store_of(after)))
    assert (len(arrived.added), arrived.removed, arrived.moved) == (20, (), {})


@pytest.mark.parametrize(
    "other",
    [
        (replace(RECIPE, learning_rate=0.2), TrainOptions()),
        (RECIPE, TrainOptions(processes=2)),
        (RECIPE, JOB),
        (RECIPE, replace(JOB, image="registry.example.com/trainer:2")),
        (RECIPE, replace(JOB, nodes=3)),
        (RECIPE, replace(JOB, gpus=1)),
    ],
)
def test_everything_that_shapes_a_model_is_in_its_key(
    runs: Path, toys: PrepareSpec, other: tuple[Recipe, TrainOptions]
) -> None:
    dataset = Run.named(str(runs), "first").facts("prepare")["dataset"]
    plain, job = (reuse.reuse_keys(dataset, RECIPE, options).same for options in (TrainOptions(), JOB))
    same = reuse.reuse_keys(dataset, *other).same
    assert same != plain
    assert (same == job) is (other == (RECIPE, JOB))
    assert same == reuse.reuse_keys(dataset, *other).same


def test_what_does_not_shape_a_model_does_not(runs: Path) -> None:
    dataset = Run.named(str(runs), "first").facts("prepare")["dataset"]
    kept = replace(RECIPE, checkpoint_minutes=1)
    assert reuse.reuse_keys(dataset, kept, TrainOptions(memory="9Gi")) == reuse.reuse_keys(
        dataset, RECIPE, TrainOptions()
    )


def test_other_code_trains_again(
    runs: Path, toys: PrepareSpec, steps: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "_code", lambda: "newer")
    train(runs, toys, "second")
    assert steps == [RECIPE]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [Path.unlink, cut])
@pytest.mark.parametrize(
    "pattern",
    [
        "training/training.json",
        "training/checkpoints/*/*.pt",
        "evaluation/evaluation.json",
        "evaluation/predictions.npz",
        "model/package.json",
        "model/model.onnx",
    ],
)
def test_a_damaged_earlier_run_is_not_used(
    runs: Path,
    toys: PrepareSpec,
    steps: list[Recipe],
    pattern: str,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (victim,) = (runs / "first").glob(pattern)
    damage(victim)
    train(runs, toys, "second")
    assert steps == [RECIPE]
    assert "the earlier run first, 20" in caplog.text
    assert f"{victim.relative_to(runs / 'first')} " in caplog.text


def test_a_deleted_or_replaced_run_is_not_used(runs: Path, toys: PrepareSpec, steps: list[Recipe]) -> None:
    shutil.rmtree(runs / "first")
    other = replace(RECIPE, seed=1)
    go(runs, toys, "first", other)
    train(runs, toys, "second")
    assert steps == [other, RECIPE]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"run": "../first", "title": "", "finished": "", "files": {"a": "b"}}',
    ],
)
def test_a_damaged_record_is_not_used(
    runs: Path, toys: PrepareSpec, steps: list[Recipe], content: str, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (runs / reuse.FOLDER).rglob("*.json"):
        path.write_text(content)
    train(runs, toys, "second")
    assert steps == [RECIPE]
    assert "the record of an earlier run is damaged" in caplog.text


def test_a_record_without_files_is_not_used(runs: Path, toys: PrepareSpec, steps: list[Recipe]) -> None:
    for path in (runs / reuse.FOLDER).rglob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "files": {}}))
    train(runs, toys, "second")
    assert steps == [RECIPE]


def test_a_run_repeated_after_its_deletion_is_complete(
    runs: Path, toys: PrepareSpec, steps: list[Recipe]
) -> None:
    """No step is green with nothing written."""
    shutil.rmtree(runs / "first")
    again = go(runs, toys, "first")
    assert steps == [RECIPE]
    assert load_package(again.model)
    assert load_evaluation(again.evaluation)
    assert Path(again.report).is_file()


def test_a_training_that_has_begun_is_resumed(runs: Path, toys: PrepareSpec, steps: list[Recipe]) -> None:
    begun = Run.named(str(runs), "second")
    open_store(begun.training).write("checkpoints/0001-00000000/latest.json", b"{}")
    train(runs, toys, "second")
    assert steps == [RECIPE]


def test_two_runs_at_once_train_and_the_last_is_reused(
    runs: Path, toys: PrepareSpec, steps: list[Recipe]
) -> None:
    recipe = replace(RECIPE, seed=3)
    pair = [train(runs, toys, name, recipe) for name in ("one", "two")]
    assert steps == [recipe, recipe]
    for run in pair:
        workflow.evaluate(run, run.facts("prepare")["dataset"], EvaluateSpec())
        workflow.export(run, run.facts("prepare")["dataset"])
    assert train(runs, toys, "three", recipe).origin("train").name == "two"


def test_an_unfinished_run_is_not_reused(runs: Path, toys: PrepareSpec, steps: list[Recipe]) -> None:
    recipe = replace(RECIPE, seed=3)
    run = train(runs, toys, "one", recipe)
    workflow.evaluate(run, run.facts("prepare")["dataset"], EvaluateSpec())
    train(runs, toys, "two", recipe)
    assert steps == [recipe, recipe]


def test_a_reused_model_is_evaluated_with_other_views(
    runs: Path, toys: PrepareSpec, steps: list[Recipe]
) -> None:
    second = go(runs, toys, "second", views="flips")
    assert steps == []
    assert second.origin("evaluate") == second.origin("export") == second
    assert load_evaluation(second.evaluation).subject.training == Run.named(str(runs), "first").training
    assert train(runs, toys, "third").origin("train").name == "first"


def test_own_code_is_identified_by_an_image_digest_only(
    runs: Path, toys: PrepareSpec, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run.named(str(runs), "first")
    own = replace(RECIPE, model="mine.net:build")
    dataset = first.facts("prepare")["dataset"]
    for options in (TrainOptions(), JOB):
        keys = reuse.reuse_keys(dataset, own, options)
        assert "mine.net:build is your own code" in keys.unknown
        with caplog.at_level(logging.INFO):
            assert reuse.unchanged_since(first, keys) is None
    assert "it is unknown whether anything has changed: mine.net:build" in caplog.text
    pinned = replace(JOB, image=f"trainer@sha256:{'0' * 64}")
    assert reuse.reuse_keys(dataset, own, pinned).same
    (runs.parent / "shipped_net.py").write_text("")
    monkeypatch.chdir(runs.parent)  # the function comes from here, not from the image
    assert (
        "is your own code"
        in reuse.reuse_keys(dataset, replace(own, model="shipped_net:build"), pinned).unknown
    )


def test_changed_weights_behind_the_same_uri_change_the_key(runs: Path, tmp_path: Path) -> None:
    dataset = Run.named(str(runs), "first").facts("prepare")["dataset"]
    weights = tmp_path / "weights.pt"
    recipe = replace(RECIPE, pretrained=str(weights))
    assert "cannot be read" in reuse.reuse_keys(dataset, recipe, TrainOptions()).unknown
    found = []
    for content in (b"one", b"another"):
        weights.write_bytes(content)
        found.append(reuse.reuse_keys(dataset, recipe, TrainOptions()).same)
    assert len(set(found)) == 2
    warm = replace(RECIPE, warm_start=str(runs / "first/model"))
    assert reuse.reuse_keys(dataset, warm, TrainOptions()).same


def test_new_data_is_trained_on_from_the_latest_model(
    runs: Path, toys: PrepareSpec, steps: list[Recipe], tmp_path: Path
) -> None:
    recurring = replace(RECIPE, warm_start=LATEST, pretrained="torchvision")
    second = go(runs, grown(toys, tmp_path), "second", recurring)
    (trained,) = steps
    assert trained == replace(RECIPE, warm_start=f"{runs}/first/model")
    assert go(runs, grown(toys, tmp_path / "same"), "third", recurring).origin("train") == second


def test_each_attempt_of_a_run_starts_from_the_same_model(
    runs: Path, toys: PrepareSpec, steps: list[Recipe], tmp_path: Path
) -> None:
    recurring, newer = replace(RECIPE, warm_start=LATEST), grown(toys, tmp_path)
    train(runs, newer, "second", recurring)
    go(runs, newer, "third", replace(RECIPE, seed=9))
    shutil.rmtree(runs / "first")
    train(runs, newer, "second", recurring)
    assert [recipe.warm_start for recipe in steps] == [f"{runs}/first/model", "", f"{runs}/first/model"]


@pytest.mark.parametrize(
    "why",
    ["no run yet", "another class", "another split", "its model is damaged", "it saw a test image"],
)
def test_without_a_latest_model_that_fits_training_starts_without_one(
    runs: Path, toys: PrepareSpec, steps: list[Recipe], tmp_path: Path, why: str
) -> None:
    data = toys
    if why == "no run yet":
        shutil.rmtree(runs)
    elif why == "another class":
        data = grown(toys, tmp_path, ("ball", "kite", "kiwi"))
    elif why == "another split":
        data = replace(toys, split_seed=1)
    elif why == "it saw a test image":
        tested = sample_ids(prepare_dataset(toys).manifest_uri, "test")[:1]
        (runs / "first/model/trained_on.npy").write_bytes(to_bytes(hashed(text(tested))))
    else:
        cut(runs / "first/model/model.safetensors")
    recipe = replace(RECIPE, warm_start=LATEST, pretrained="torchvision", seed=5)
    train(runs, data, "second", recipe)
    assert steps == [replace(recipe, warm_start="")]


def test_records_work_in_any_store_and_for_large_files(
    store_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "CHUNK", 4)
    first, second = (Run.named(store_uri, name) for name in ("first", "second"))
    store, keys = open_store(first.uri), reuse.ReuseKeys(f"{reuse.FOLDER}/latest/a.json", "b.json")
    files: dict[str, Any] = {"model/large": b"0123456789", "model/empty": b""}
    for key, content in files.items():
        store.write(key, content)
    assert reuse.unchanged_since(second, keys) is None
    hashes = {key: hashlib.sha256(content).hexdigest() for key, content in files.items()}
    reuse.record(first, keys.keys, hashes)
    found = reuse.unchanged_since(second, keys)
    assert found
    assert (found.run, str(found).partition(",")[0]) == (first, "first")
    store.write("model/large", b"012345678x")
    assert reuse.unchanged_since(second, keys) is None


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The memory of the last training, as each job gets it."""
    given: list[int] = []

    def launch(_options: TrainOptions, *, peak_memory: int, outputs: tuple[str], **_: Any) -> None:
        given.append(peak_memory)
        raise ReplicaFailed(what="training failed", which=outputs[0], seen="exit code 1", do="Correct it.")

    monkeypatch.setattr(workflow, "_run_job", launch)
    return given


def launch(runs: Path, data: PrepareSpec, name: str) -> Run:
    """A run whose job fails."""
    run = Run.named(str(runs), name)
    dataset = workflow.prepare(run, data).manifest_uri
    with pytest.raises(ReplicaFailed):
        workflow.train(run, dataset, replace(RECIPE, seed=5), JOB, Owner())
    return run


def test_a_job_gets_the_memory_of_the_last_training(runs: Path, toys: PrepareSpec, peaks: list[int]) -> None:
    first = Run.named(str(runs), "first")
    history = [{"epoch": 1, "memory": 3 * 2**30}, {"epoch": 2, "memory": 2**30}, {"epoch": 3}]
    lines = "".join(json.dumps(epoch) + "\n" for epoch in history)
    Path(first.training, METRICS).write_text(lines)
    launch(runs, toys, "early")
    workflow.export(first, first.facts("prepare")["dataset"])
    second = launch(runs, toys, "second")
    launch(runs, replace(toys, dataset_name="others"), "others")
    Path(second.training).mkdir()
    Path(second.training, METRICS).write_text(lines.replace(str(3 * 2**30), str(5 * 2**30)))
    launch(runs, toys, "second")
    assert peaks == [0, 3 * 2**30, 0, 5 * 2**30]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"memory": 1e999}',
        '{"memory": "2"}',
        '{"memory": 1' + 400 * "0" + "}",
        "[" * 10**5,
    ],
)
def test_a_damaged_record_of_memory_is_no_measurement(tmp_path: Path, content: str) -> None:
    assert reuse.peak_memory(str(tmp_path), "gone.json") == 0
    (tmp_path / METRICS).write_text(content)
    assert reuse.peak_memory(str(tmp_path), METRICS) == 0


def test_each_step_hands_an_engine_what_the_earlier_run_left(
    runs: Path, steps: list[Recipe], tmp_path: Path
) -> None:
    first = Run.named(str(runs), "first")
    dataset = ("--dataset", first.facts("prepare")["dataset"])
    which = ("--runs", str(runs), "--run-id", "second")
    recipe = ("--recipe", json.dumps(AT_FIRST), "--epochs", str(RECIPE.epochs), "--if-unchanged", "reuse")
    handed = {}
    for name, result, more in (
        ("train", "training", recipe),
        ("evaluate", "evaluation", ()),
        ("export", "model", ()),
    ):
        file = tmp_path / result
        command = CliRunner().invoke(cli, [name, *dataset, *which, *more, "--write", result, str(file)])
        assert command.exit_code == 0, command.output
        handed[name] = (file.read_text(), command.output)
    assert [place for place, _ in handed.values()] == [first.training, first.evaluation, first.model]
    assert "nothing changed since run first, 20" in handed["train"][1]
    assert steps == []
