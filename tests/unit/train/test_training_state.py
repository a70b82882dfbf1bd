"""What a training leaves and takes up again, by one process: its result, its time, its place in a store."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from model_packages import a_classifier, a_package
from recipes import plain
from samples import a_manifest, a_split, published, some_images, written
from stored import latest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ddpipe.data.index import TRAINED_ON, trained_on
from ddpipe.data.manifest import SPLITS, load_manifest, store_of
from ddpipe.data.npy import to_bytes
from ddpipe.data.reader import SplitReader, open_split
from ddpipe.distributed.group import STALL, World
from ddpipe.errors import (
    CheckpointError,
    DatasetError,
    Diverged,
    Interrupted,
    ParameterError,
    StoreError,
    Unreachable,
)
from ddpipe.model.checkpoint import Saved, claim, finished, newest
from ddpipe.model.classifier import load_model
from ddpipe.model.tensors import Share, parted, rows_of, write_pieces
from ddpipe.model.training_record import RECORD_SCHEMA
from ddpipe.processes.reports import metrics_of
from ddpipe.runs import Run
from ddpipe.storage import open_store
from ddpipe.storage.files import FileStore
from ddpipe.train import fully_sharded, journal, loop
from ddpipe.train import train as step
from ddpipe.train.auto import Device
from ddpipe.train.batches import global_batch, permutation
from ddpipe.train.loop import Trainer
from ddpipe.train.optimizer import learning_rate
from ddpipe.train.recipe import FORMER, Determinism, Recipe
from ddpipe.train.saver import Uploads, uploading
from ddpipe.train.start import Start, choice_of, decided_start, fresh_choice, keep
from ddpipe.train.step import TrainingStep
from ddpipe.train.timetable import TrainingRequest
from ddpipe.train.train import train

SHAPE = (8, 8, 1)
RECIPE = plain(epochs=3, batch_size=4, checkpoint_minutes=1e-9)
STEPS_PER_EPOCH = 3


@pytest.fixture(autouse=True)
def _usual_arithmetic() -> Iterator[None]:
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    splits = {name: [some_images(12, SHAPE, seed=seed)] for seed, name in enumerate(("train", "validation"))}
    return published(open_store(str(tmp_path / "data")), {**splits, "test": [some_images(2, SHAPE)]})


@pytest.fixture
def output(tmp_path: Path) -> str:
    return str(tmp_path / "training")


class Power(Exception):
    """It failed."""


def interrupted(step: int, dataset: str, output: str, recipe: Recipe) -> None:
    """Run a training whose machine stops before a step."""

    def stop(trainer: Trainer) -> None:
        if trainer.step == step:
            raise Power

    with pytest.raises(Power):
        train(dataset, output, recipe, before_step=stop)


def record(output: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(output) / "training.json").read_text())
    return content


def result(output: str) -> Saved:
    saved = finished(open_store(output))
    assert saved
    return saved


def test_the_record_names_the_checkpoint_of_the_last_step(dataset: str, output: str) -> None:
    train(dataset, output, RECIPE)
    assert result(output).step == 3 * STEPS_PER_EPOCH
    found = record(output)
    assert (found["schema"], found["model"]) == (RECORD_SCHEMA, RECIPE.model)
    assert newest(open_store(output))[0] == result(output)  # type: ignore[index]


def test_the_best_model_is_the_result_if_wanted(dataset: str, output: str) -> None:
    train(dataset, output, replace(RECIPE, model_selection="best", epochs=6))
    accuracies = [epoch["validation_accuracy"] for epoch in record(output)["history"]]
    assert result(output).best
    assert result(output).step == STEPS_PER_EPOCH * (1 + accuracies.index(max(accuracies)))
    assert load_model(output)[1].step == result(output).step


def test_the_last_two_checkpoints_are_kept(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Uploads.put

    def put_at_once(uploads: Uploads, kind: str, write: Callable[[], object]) -> None:
        put(uploads, kind, write)
        uploads.finish()  # so that none makes way for the next

    monkeypatch.setattr(Uploads, "put", put_at_once)
    train(dataset, output, replace(RECIPE, epochs=6, checkpoint_minutes=1440))
    kept = sorted(path.name for path in Path(output).glob("checkpoints/*/*.pt"))
    assert kept[-2:] == ["step-00000015.pt", "step-00000018.pt"]
    assert len(kept) <= 3, "and the best one"


def test_metrics_of_an_interrupted_epoch_cover_all_its_steps(
    dataset: str, output: str, tmp_path: Path
) -> None:
    train(dataset, str(tmp_path / "whole"), RECIPE)
    interrupted(5, dataset, output, RECIPE)
    train(dataset, output, RECIPE)
    for name in ("train_loss", "train_accuracy", "validation_loss"):
        histories = [record(folder)["history"] for folder in (output, str(tmp_path / "whole"))]
        assert [epoch[name] for epoch in histories[0]] == [epoch[name] for epoch in histories[1]]


def test_an_epoch_s_record_covers_all_its_steps(dataset: str, output: str) -> None:
    """Twelve samples in batches of at most five are three batches of four."""
    recipe = replace(RECIPE, batch_size=5, warmup_fraction=0)
    train(dataset, output, recipe)
    events = EventAccumulator(f"{output}/tensorboard").Reload()
    losses, rates = (
        [event.value for event in events.Scalars(f"step/{name}")] for name in ("loss", "learning_rate")
    )
    assert rates == pytest.approx([learning_rate(recipe, step, 9) for step in range(9)])
    for number, epoch in enumerate(record(output)["history"]):
        assert (epoch["epoch"], epoch["step"]) == (number + 1, 3 * number + 3)
        assert epoch["learning_rate"] == pytest.approx(rates[3 * number + 2])
        three = losses[3 * number : 3 * number + 3]
        assert epoch["train_loss"] == pytest.approx(np.mean(three))
        assert 0 <= epoch["train_accuracy"] <= 1


def test_the_record_describes_the_epoch_that_is_the_result(dataset: str, output: str) -> None:
    train(dataset, output, replace(RECIPE, model_selection="best"))
    done = record(output)
    (chosen,) = (epoch for epoch in done["history"] if epoch["step"] == result(output).step)
    assert done["final"] == {name: chosen[name] for name in chosen if name.startswith(("train", "valid"))}
    assert done["images_per_second"] == pytest.approx(
        3 * 12 / sum(epoch["seconds"] for epoch in done["history"]), rel=0.01, abs=0.05
    )
    assert (done["epochs"], done["steps"], done["resumed_from"]) == (3, 9, None)


def test_the_record_has_all_that_others_read(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report, the model package and `ddpipe runs` read it, and so do people."""
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    train(dataset, output, RECIPE)
    store, manifest, found = open_store(output), load_manifest(dataset), record(output)
    assert Path(output, "training.json").read_text() == json.dumps(found, indent=2)
    history, attempts, saved = found["history"], found["attempts"], result(output)
    choice = choice_of(store, RECIPE, manifest, Device())
    assert [list(line) for line in history] == 3 * [
        [
            *("epoch", "step", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy"),
            *("learning_rate", "seconds", "data_wait", "cpu", "memory"),
        ]
    ]
    assert all(line["seconds"] == round(line["seconds"], 3) > 0 for line in history)
    assert sum(line["seconds"] for line in history) <= found["seconds"] + 0.01
    for changing in ("before", "seconds"):
        assert 0 <= attempts[0].pop(changing) < 1000
    assert found == {
        "schema": RECORD_SCHEMA,
        "model": "digits-cnn",
        "recipe": choice.recipe.to_dict(),
        "choice": choice.facts(),
        "dataset": dataset,
        "dataset_id": manifest.dataset_id,
        "checkpoint": {"file": saved.file, "sha256": saved.sha256, "step": 9, "best": saved.best},
        "world_size": 1,
        "device": "cpu",
        "torch": torch.__version__,
        "lineage": {},
        "epochs": 3,
        "images_seen": 36,
        "training_images": 12,
        "ended": "all epochs are done",
        "steps": 9,
        "schedule": [[0, 9]],
        "seconds": round(found["seconds"], 3),
        "attempts": [{"step": 0, "world_size": 1, "nodes": 3}],
        "images_per_second": round(36 / sum(line["seconds"] for line in history), 1),
        "resumed_from": None,
        "summary": found["summary"],
        "history": history,
        "final": {name: value for name, value in history[2].items() if name.startswith(("train", "valid"))},
    }
    assert Path(output, TRAINED_ON).read_bytes() == to_bytes(trained_on(manifest, store_of(dataset)))
    assert list(found["summary"]) == ["node_hours", "data_wait", "cpu", "memory"]
    assert found["summary"]["node_hours"] == pytest.approx(3 * found["seconds"] / 3600, abs=3e-6)


def test_the_log_says_what_is_trained_from_where_and_how_far_it_is(
    dataset: str, output: str, caplog: pytest.LogCaptureFixture
) -> None:
    begins = "training digits-cnn on toys (12 images, 2 classes), processes: 1, device: cpu, from step "
    with caplog.at_level(logging.INFO):
        interrupted(4, dataset, output, RECIPE)
        train(dataset, output, RECIPE)
        interrupted(
            1, dataset, f"{output}-2", Recipe.from_dict({**RECIPE.to_dict(), "minutes": 1, "epochs": "auto"})
        )
    assert [line.removeprefix(begins) for line in caplog.messages if line.startswith("training ")] == [
        "0 of 9",
        "4 of 9",
        f"0 of at most {loop.constants.MOST_STEPS}",
    ]
    choices = [line for line in caplog.messages if line.startswith("choices and reasons")]
    assert [line.partition(":")[0][-10:-1] for line in choices] == ["(1 in all", "(2 in all"], "not resumed"
    assert not [line for line in caplog.messages if not line or "not used" in line]
    epochs = [line.partition(" ")[0] for line in caplog.messages if line.startswith("epoch=")]
    assert epochs == ["epoch=1/3", "epoch=2/3", "epoch=3/3"]


def test_validation_is_of_the_model_that_is_kept_and_without_what_only_training_needs(
    dataset: str, output: str
) -> None:
    """The averaged weights, no class weights and no smoothing."""
    recipe = replace(RECIPE, averaging_decay=0.9, class_weights="balanced", label_smoothing=0.2)
    train(dataset, output, replace(recipe, precision="fp32"))
    split, model = open_split(dataset, "validation"), load_model(output)[0].eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(split.images(range(len(split)))))
    labels = torch.from_numpy(np.array(split.labels))
    last = record(output)["history"][-1]
    loss = torch.nn.functional.cross_entropy(logits, labels)
    assert last["validation_loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert last["validation_accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())


@pytest.mark.parametrize(("most", "size"), [(5, 5), (100, 12)])
def test_validation_takes_large_batches_but_no_larger_ones_than_fit(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch, most: int, size: int
) -> None:
    computed, sizes = loop.logits_of, set[tuple[int, bool]]()

    def noting(model: torch.nn.Module, *given: Any, batch_size: int, **more: Any) -> Any:
        sizes.add((batch_size, model.training))
        return computed(model, *given, batch_size=batch_size, **more)

    monkeypatch.setattr(loop, "logits_of", noting)
    monkeypatch.setattr(loop.constants, "VALIDATION_BATCH", most)
    train(dataset, output, replace(RECIPE, epochs=1))
    assert sizes == {(size, False)}


class Recorded:
    """What a trainer asks of others, in order."""

    def __init__(self) -> None:
        self.calls = list[object]()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given, **_more: self.calls.append((name, *given) if given else name)


@pytest.mark.parametrize("is_far", [False, True])
def test_ranks_wait_as_long_as_steps_let_expect_but_longer_around_a_checkpoint(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch, is_far: bool
) -> None:
    asked, shortened = Recorded(), list[bool]()

    def patience(_world: World, *, may_shorten: bool) -> Recorded:
        shortened.append(may_shorten)
        return asked

    monkeypatch.setattr(loop, "Patience", patience)
    monkeypatch.setattr(SplitReader, "is_far", is_far)
    train(dataset, output, replace(RECIPE, epochs=2, checkpoint_minutes=1440))
    assert shortened == [not is_far]
    assert asked.calls == 2 * [*3 * ["stepped"], "extend", "extend"]


def test_the_next_checkpoint_is_due_so_long_after_the_end_of_an_epoch(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, steps = list[int](), list[bool]()
    monkeypatch.setattr(loop.Watch, "saved", lambda _watch: at.append(len(steps)))
    monkeypatch.setattr(loop.Watch, "_next", float("inf"), raising=False)
    train(dataset, output, RECIPE, before_step=lambda trainer: steps.append(trainer.classifier.training))
    assert at == [0, 3, 6, 9]
    assert all(steps), "validation is over"


@pytest.mark.parametrize(
    ("request_", "continues", "calls"),
    [
        (TrainingRequest.CONTINUE, True, ["check"]),
        (TrainingRequest.SAVE, True, ["check", "saved 4", "saved"]),
        (TrainingRequest.RESTART, False, ["check", "saved 4", "saved", "finish", "barrier"]),
        (TrainingRequest.STOP, None, ["check", "saved 4", "saved", "finish", "barrier"]),
    ],
)
def test_a_request_is_followed_once_the_state_is_written_and_all_ranks_know(
    dataset: str, output: str, request_: TrainingRequest, continues: bool | None, calls: list[str]
) -> None:
    found, asked = list[Trainer](), Recorded()

    def stop(trainer: Trainer) -> None:
        found.append(trainer)
        _fail_at(trainer)

    with pytest.raises(Power):
        train(dataset, output, RECIPE, before_step=stop)

    class Alone(World):
        def barrier(self) -> None:
            asked.barrier()

    trainer = found[-1]
    trainer._saver = SimpleNamespace(  # type: ignore[assignment]
        uploads=asked, save=lambda one, **_: asked.calls.append(f"saved {one.step}")
    )
    trainer._world = Alone(0, 1, torch.device("cpu"))
    watch = SimpleNamespace(agreed=lambda _world: request_, saved=asked.saved)
    if continues is None:
        with pytest.raises(Interrupted, match="stop requested at step 4 of 9"):
            trainer.poll(watch)  # type: ignore[arg-type]
    else:
        assert trainer.poll(watch) is continues  # type: ignore[arg-type]
    assert asked.calls == calls


def _fail_at(trainer: Trainer) -> None:
    if trainer.step == 4:
        raise Power


def test_a_network_for_one_size_only_is_refused_before_it_is_trained(dataset: str, output: str) -> None:
    with pytest.raises(ParameterError, match="images of 4x4 pixels, which it does not accept"):
        train(dataset, output, replace(RECIPE, initial_resolution=0.5), before_step=_fail)


def test_a_batch_of_one_image_trains_a_network_that_normalizes(tmp_path: Path) -> None:
    """Its last features are of one pixel: torch would reject them."""
    images = {name: [some_images(2, (16, 16, 3))] for name in SPLITS}
    dataset, output = published(open_store(str(tmp_path / "one")), images), str(tmp_path / "output")
    train(dataset, output, replace(RECIPE, model="fast-cnn-small", batch_size=1, sync_batch_norm=True))
    assert record(output)["steps"] == 6


def test_ranks_compare_what_they_train_and_wait_for_the_last(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, compared = Recorded(), dict[str, str]()

    class Noting(World):
        def wait_at_most(self, seconds: float) -> None:
            asked.wait_at_most(seconds)

        def barrier(self) -> None:
            asked.barrier(finished(open_store(output)) is not None)

    def group(facts: dict[str, str]) -> nullcontext[World]:
        compared.update(facts)
        return nullcontext(Noting(0, 1, torch.device("cpu")))

    monkeypatch.setattr(step, "process_group", group)
    train(dataset, output, RECIPE)
    assert asked.calls == [("wait_at_most", STALL), ("barrier", True)]
    expected = {f"{name} of the recipe": repr(value) for name, value in RECIPE.shaping().items()}
    assert compared == {"dataset version": load_manifest(dataset).dataset_id, **expected}


@pytest.mark.parametrize(
    ("wanted", "devices", "compiled"),
    [(True, ("cpu",), True), (True, ("cuda",), False), (False, ("cpu",), False)],
)
def test_the_compiler_is_deterministic_where_it_is_used(
    dataset: str,
    output: str,
    monkeypatch: pytest.MonkeyPatch,
    wanted: bool,
    devices: tuple[str, ...],
    compiled: bool,
) -> None:
    used, networks, determinism = list[tuple[object, ...]](), list[torch.nn.Module](), step.determinism

    def noting(how: Determinism, network: str, *, compiled: bool) -> AbstractContextManager[None]:
        used.append((how, network, compiled))
        return determinism(how, network, compiled=False)

    monkeypatch.setattr(step, "determinism", noting)
    monkeypatch.setattr(step, "COMPILED_DEVICES", devices)
    monkeypatch.setattr(loop.constants, "COMPILED_DEVICES", devices)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: networks.append(module))  # noqa: PLW0108 - binds
    train(dataset, output, replace(RECIPE, epochs=1, compile=wanted, deterministic="false"))
    assert used == [(Determinism.FALSE, "digits-cnn", compiled)]
    assert len(networks) == compiled


def test_the_tracker_gets_the_dataset_the_recipe_and_the_lineage(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Recorded()
    monkeypatch.setenv("DDPIPE_JOB", "ddpipe-4711")
    monkeypatch.setattr(journal, "tracked", lambda _run: nullcontext(seen))
    train(dataset, output, replace(RECIPE, epochs=1))
    used, manifest = seen.calls[0], load_manifest(dataset)
    shaping = json.loads(json.dumps(Recipe.from_dict(record(output)["recipe"]).shaping()))
    assert used == ("training", ("toys", manifest.dataset_id, dataset), shaping, {"job": "ddpipe-4711"})


@pytest.mark.parametrize(("bad", "noticed"), [(4, 16), (20, 20), (24, 36)])
def test_nan_loss_is_noticed_within_sixteen_steps_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int, noticed: int
) -> None:
    """With 20 steps in an epoch; at its end all of them are looked at."""
    splits = {name: [some_images(40, SHAPE)] for name in ("train", "validation")}
    dataset = published(open_store(str(tmp_path / "forty")), {**splits, "test": [some_images(2, SHAPE)]})
    taken, take = itertools.count(1), TrainingStep.take

    def broken(training_step: TrainingStep, *arguments: Any) -> torch.Tensor:
        return take(training_step, *arguments) * (float("nan") if next(taken) == bad else 1)

    monkeypatch.setattr(TrainingStep, "take", broken)
    recipe = replace(RECIPE, batch_size=2, checkpoint_minutes=1440)
    with pytest.raises(Diverged, match=f"the loss of step {bad} is not a number; its 2 samples"):
        train(dataset, str(tmp_path / "output"), recipe)
    assert next(taken) == noticed + 1
    epoch, number = divmod(bad - 1, 20)
    batch = global_batch(permutation(recipe.seed, epoch, 40), number, 2)
    ids = open_split(dataset, "train").sample_ids
    listed = (tmp_path / "output" / "diverged.json").read_text()
    assert json.loads(listed)["samples"] == [ids[index] for index in batch]
    assert len(listed.splitlines()) == 4 + len(batch), "one on each line"
    saved = latest(open_store(str(tmp_path / "output")))
    assert (saved.step if saved else 0) == 20 * epoch, "never a state with such a loss"


def test_a_checkpoint_has_the_seconds_of_its_unfinished_epoch(dataset: str, output: str) -> None:
    began = time.monotonic()
    interrupted(5, dataset, output, RECIPE)
    checkpoint = latest(open_store(output))
    assert checkpoint
    assert (checkpoint.epoch, 0 < checkpoint.seconds < time.monotonic() - began) == (1, True)


def test_an_unfinished_epoch_s_seconds_count_when_training_resumes(dataset: str, output: str) -> None:
    interrupted(4, dataset, output, RECIPE)
    store = open_store(output)
    found = newest(store)
    assert found
    claim(store, None).save(replace(found[1], seconds=1000.0))
    train(dataset, output, RECIPE)
    seconds = [epoch["seconds"] for epoch in record(output)["history"]]
    assert [1000 < second < 1100 for second in seconds] == [False, True, False]


def test_a_split_without_samples_is_refused(tmp_path: Path) -> None:
    some = [some_images(4, SHAPE)]
    for empty in ("train", "validation"):
        splits = {name: [] if name == empty else some for name in ("test", "train", "validation")}
        dataset = published(open_store(str(tmp_path / empty)), splits)
        with pytest.raises(DatasetError, match=f"its {empty} split is empty"):
            train(dataset, str(tmp_path / "output"), RECIPE)
    assert not (tmp_path / "output").exists()


def test_a_training_may_start_from_a_package_and_says_from_which(
    dataset: str, output: str, tmp_path: Path
) -> None:
    package = a_package(str(tmp_path / "package"), load_manifest(dataset))
    recipe = replace(RECIPE, warm_start=package, learning_rate=1e-9)
    claim = Path(output, TRAINED_ON)
    claim.parent.mkdir()
    claim.write_bytes(b"of an earlier attempt, from other weights")
    interrupted(4, dataset, output, recipe)
    for path in (tmp_path / "package").iterdir():
        path.unlink()
    train(dataset, output, recipe)
    trained, checkpoint = load_model(output)
    expected = a_classifier(load_manifest(dataset), seed=7).state_dict()
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert len(checkpoint.lineage["warm_start"]) == 64
    assert record(output)["lineage"] == checkpoint.lineage
    assert not claim.exists()  # the package does not say what its model was trained on


@pytest.mark.parametrize("present", [0, 4])
def test_a_label_that_does_not_vary_cannot_be_judged(present: int, output: str, tmp_path: Path) -> None:
    split = replace(a_split(4, 1), per_class=(present,))
    manifest = a_manifest(task="multilabel", classes=("edema",), splits=dict.fromkeys(SPLITS, split))
    dataset = written(open_store(str(tmp_path)), manifest)
    with pytest.raises(DatasetError, match="both present and absent in its validation split") as caught:
        train(dataset, output, plain(epochs=1))
    assert caught.value.which == dataset
    assert not Path(output).exists()


@pytest.mark.parametrize("damage", ["cut short", "lost"])
def test_damaged_result_is_trained_again_from_the_last_checkpoint(
    dataset: str, output: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    train(dataset, output, RECIPE)
    before, damaged = result(output), Path(output) / result(output).file
    damaged.unlink() if damage == "lost" else damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(CheckpointError):
        load_model(output)
    with caplog.at_level(logging.INFO):
        train(dataset, output, RECIPE)
    assert "the result of this training is lost" in caplog.text
    assert "nothing to do" not in caplog.text
    assert record(output)["resumed_from"] < 3 * STEPS_PER_EPOCH
    assert result(output).step == before.step
    load_model(output)


def test_damaged_result_is_hidden_while_it_is_trained_again(dataset: str, output: str) -> None:
    train(dataset, output, RECIPE)
    (Path(output) / result(output).file).unlink()
    interrupted(8, dataset, output, RECIPE)
    with pytest.raises(CheckpointError, match="has not finished"):
        load_model(output)


def test_a_finished_training_is_done_once(
    dataset: str, output: str, caplog: pytest.LogCaptureFixture
) -> None:
    train(dataset, output, RECIPE)
    before = result(output)
    with caplog.at_level(logging.INFO):
        train(dataset, output, RECIPE)
    assert "trained already: nothing to do" in caplog.text
    assert result(output) == before


def test_newer_hyperparameter_has_its_default_in_a_checkpoint(dataset: str, output: str) -> None:
    interrupted(4, dataset, output, RECIPE)
    forget(output, "label_smoothing")
    with pytest.raises(CheckpointError, match=r"label_smoothing was 0\.0, is now 0\.1"):
        train(dataset, output, replace(RECIPE, label_smoothing=0.1))
    train(dataset, output, RECIPE)
    assert record(output)["resumed_from"] == 4


def test_a_hyperparameter_that_is_gone_makes_it_another_training(dataset: str, output: str) -> None:
    interrupted(4, dataset, output, RECIPE)
    change(output, {"charm": 3})
    with pytest.raises(CheckpointError, match="charm was 3, no longer exists"):
        train(dataset, output, RECIPE)


def test_a_value_that_was_open_in_a_checkpoint_is_chosen_now(dataset: str, output: str) -> None:
    """Earlier versions chose between the last and the best epoch at the end, and named no random weights."""
    open_recipe = replace(RECIPE, model_selection="auto")
    interrupted(4, dataset, output, open_recipe)
    change(output, {"model_selection": "auto", "pretrained": ""})
    with pytest.raises(CheckpointError, match="model_selection was 'auto', is now 'best'"):
        train(dataset, output, replace(RECIPE, model_selection="best"))
    train(dataset, output, open_recipe)
    assert record(output)["resumed_from"] == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"states": {}},
        {"states": {"model": {}, "optimizer": {}, "metrics": []}},
        {"step": 10_000},
        {"step": 6},
        {"epoch": 0, "history": [{}] * 50},
        {"step": 2},
        {"step": 3, "history": [{}] * 2, "schedule": [[0, 3]]},
    ],
    ids=[
        *("no states", "other states", "other step", "an epoch without a record", "other epochs"),
        *("too early a step", "an epoch without a step"),
    ],
)
def test_checkpoint_of_any_content_is_rejected_when_resumed(
    dataset: str, output: str, changes: dict[str, Any]
) -> None:
    """It may come from a bucket that others can write to; its hash is in a file next to it."""
    interrupted(4, dataset, output, RECIPE)
    store = open_store(output)
    found = newest(store)
    assert found
    claim(store, None).save(replace(found[1], **changes))
    with pytest.raises(CheckpointError, match="training cannot be resumed"):
        train(dataset, output, RECIPE)


def test_a_training_that_a_budget_ended_within_an_epoch_is_not_continued(dataset: str, output: str) -> None:
    """Its process ended after the last checkpoint and before the record."""
    interrupted(6, dataset, output, RECIPE)
    store = open_store(output)
    found = newest(store)
    assert found
    first, second = found[1].history
    history = [first, {**second, "step": 5}]
    claim(store, None).save(replace(found[1], step=5, history=history, schedule=[[0, 9], [2, 5]]))
    train(dataset, output, RECIPE, before_step=_fail)
    done = record(output)
    assert (done["steps"], done["epochs"], done["images_seen"], done["checkpoint"]["step"]) == (5, 2, 20, 5)


def forget(output: str, name: str) -> None:
    """Make the newest checkpoint one that was written before a hyperparameter was declared."""
    checkpoint = latest(open_store(output))
    assert checkpoint
    assert name in {item.name for item in fields(Recipe)}
    del checkpoint.recipe[name]
    change(output, {}, without=name)


def change(output: str, more: dict[str, object], without: str = "") -> None:
    store = open_store(output)
    found = newest(store)
    assert found
    recipe = {name: value for name, value in found[1].recipe.items() if name != without} | more
    claim(store, None).save(replace(found[1], recipe=recipe))


def test_a_checkpoint_may_name_former_hyperparameters(dataset: str, output: str) -> None:
    interrupted(4, dataset, output, RECIPE)
    change(output, {**FORMER, "keep_checkpoints": 5})
    train(dataset, output, RECIPE)
    assert record(output)["resumed_from"] == 4


def test_one_that_shaped_the_model_by_another_value_prevents_resuming(dataset: str, output: str) -> None:
    interrupted(4, dataset, output, RECIPE)
    change(output, {**FORMER, "decay_biases": False})
    with pytest.raises(CheckpointError, match="decay_biases was False, no longer exists"):
        train(dataset, output, RECIPE)


def test_what_preparing_took_in_the_run_is_recorded_and_other_steps_are_not(
    dataset: str, tmp_path: Path
) -> None:
    run = Run(str(tmp_path / "run"))
    for name, seconds in {"prepare": 500.0, "evaluate": 7000.0}.items():
        with run.step(name):
            pass
        path = tmp_path / "run" / "steps" / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": seconds}))
    train(dataset, run.training, RECIPE)
    (attempt,) = record(run.training)["attempts"]
    assert 500 <= attempt["before"] < 7000


def test_the_seconds_of_all_attempts_are_recorded(dataset: str, output: str) -> None:
    interrupted(2, dataset, output, RECIPE)
    interrupted(5, dataset, output, RECIPE)
    train(dataset, output, RECIPE)
    attempts = record(output)["attempts"]
    assert [attempt["step"] for attempt in attempts] == [0, 2, 5]
    assert all(attempt["seconds"] > 0 for attempt in attempts)
    assert record(output)["seconds"] == pytest.approx(
        sum(attempt["seconds"] for attempt in attempts), abs=0.01
    )
    assert record(output)["resumed_from"] == 5


def test_a_run_its_job_and_its_image_are_recorded(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {"run": "run-1", "job": "ddpipe-4711", "image": "trainer:0.1"}
    for name, value in expected.items():
        monkeypatch.setenv(f"DDPIPE_{name.upper()}", value)
    train(dataset, output, RECIPE)
    assert record(output)["lineage"] == expected
    assert load_model(output)[1].lineage == expected


def test_the_loss_scale_of_fp16_is_resumed(dataset: str, output: str, tmp_path: Path) -> None:
    recipe = replace(RECIPE, precision="fp16")
    train(dataset, str(tmp_path / "whole"), recipe)
    interrupted(5, dataset, output, recipe)
    train(dataset, output, recipe)
    whole, resumed = (latest(open_store(folder)) for folder in (str(tmp_path / "whole"), output))
    assert whole
    assert resumed
    assert whole.states["scaler"] == resumed.states["scaler"]
    for name, weight in whole.states["model"].items():
        assert torch.equal(weight, resumed.states["model"][name])


AWAY = Unreachable(what="the store", which="s3://a", seen="503", do="Wait.")


class Flaky:
    """The store refuses all writes of a training, from one to another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
        self.writes, self.first, self.last = 0, first, last
        write = FileStore.write

        def flaky(store: FileStore, key: str, data: bytes) -> None:
            self.writes += 1
            if self.first <= self.writes <= self.last:
                raise AWAY
            write(store, key, data)

        monkeypatch.setattr(FileStore, "write", flaky)
        monkeypatch.setattr(step, "uploading", partial(uploading, pause=0.01))
        monkeypatch.setattr(step, "patience_for", lambda _store: 600.0)


@pytest.mark.parametrize("first", [4, 5, 13])
def test_training_continues_while_the_store_is_away(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    flaky = Flaky(monkeypatch, first, first + 10)
    train(dataset, output, RECIPE)
    assert flaky.writes > first + 10
    assert result(output).step == 3 * STEPS_PER_EPOCH
    assert len((Path(output) / "metrics.jsonl").read_text().splitlines()) == 3
    load_model(output)


def test_training_finishes_after_its_last_checkpoint_is_written(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Flaky(monkeypatch, 4, 10**6)
    monkeypatch.setattr(step, "uploading", partial(uploading, pause=0.01))
    monkeypatch.setattr(step, "patience_for", lambda _store: 0.05)
    with pytest.raises(StoreError, match="503"):
        train(dataset, output, RECIPE)
    assert finished(open_store(output)) is None


def test_a_training_that_was_taken_over_stops_and_leaves_no_record(dataset: str, output: str) -> None:
    def overtake(trainer: Trainer) -> None:
        if trainer.step == 4:
            claim(open_store(output), None)

    with pytest.raises(CheckpointError, match="another process has taken over this training"):
        train(dataset, output, RECIPE, before_step=overtake)
    assert finished(open_store(output)) is None


def test_the_choices_are_recorded_with_their_reasons(dataset: str, output: str) -> None:
    train(dataset, output, Recipe(epochs=2))
    choice = record(output)["choice"]
    assert choice["chosen"]["model"]["value"] == record(output)["recipe"]["model"] == "digits-cnn"
    assert all(item["reason"] for item in choice["chosen"].values())
    assert "epochs" not in choice["chosen"]
    assert record(output)["recipe"]["epochs"] == 2


def test_a_resumed_training_keeps_its_choices(dataset: str, output: str) -> None:
    given = Recipe(epochs=3, checkpoint_minutes=1e-9)
    interrupted(2, dataset, output, given)
    stored = json.loads((Path(output) / "choice.json").read_text())
    stored["values"]["learning_rate"] = 0.0125
    (Path(output) / "choice.json").write_text(json.dumps(stored))
    for file in Path(output).glob("checkpoints/*"):
        for path in file.iterdir():
            path.unlink()
    train(dataset, output, given)
    assert record(output)["recipe"]["learning_rate"] == 0.0125


def test_a_resumed_training_keeps_the_defaults_that_it_began_with(dataset: str, output: str) -> None:
    """As if another ddpipe had begun it: clipping was on by default, and there was no `patience` yet."""
    store, manifest, given = open_store(output), load_manifest(dataset), plain(model="auto")
    keep(store, fresh_choice(given, manifest, Device()), given, manifest)
    stored = json.loads(store.read("choice.json"))
    for values in (stored["given"], stored["defaults"]):
        values["clip_norm"] = 1.0
        del values["patience"]
    store.write("choice.json", json.dumps(stored).encode())
    assert choice_of(store, given, manifest, Device()).recipe.clip_norm == 1.0
    assert choice_of(store, replace(given, clip_norm=0.5), manifest, Device()).recipe.clip_norm == 0.5


def test_a_choice_of_the_first_release_counts_for_the_same_options_only(dataset: str, output: str) -> None:
    """Its file does not say what the defaults were."""
    store, manifest, given = open_store(output), load_manifest(dataset), Recipe(learning_rate=0.05)
    keep(store, fresh_choice(given, manifest, Device()), given, manifest)
    stored = json.loads(store.read("choice.json"))
    del stored["defaults"]
    stored["reasons"] |= {"model": "as it was"}
    store.write("choice.json", json.dumps(stored).encode())
    assert choice_of(store, given, manifest, Device()).reasons["model"] == "as it was"
    assert choice_of(store, Recipe(), manifest, Device()).reasons["model"] != "as it was"


def test_a_choice_is_stored_with_all_that_decides_whether_it_counts(dataset: str, output: str) -> None:
    store, manifest, given = open_store(output), load_manifest(dataset), Recipe(epochs=7)
    choice = fresh_choice(given, manifest, Device())
    keep(store, choice, given, manifest)
    text = store.read("choice.json").decode()
    assert text == json.dumps(json.loads(text), indent=1)
    assert json.loads(text) == {
        "schema": 1,
        "given": given.shaping(),
        "defaults": Recipe().shaping(),
        "dataset_id": manifest.dataset_id,
        "values": {name: getattr(choice.recipe, name) for name in choice.reasons},
        "reasons": choice.reasons,
        "views": list(choice.views),
        "advice": choice.advice,
    }
    assert choice_of(store, given, manifest, Device()) == choice
    stored = json.loads(text)
    stored["reasons"] = dict.fromkeys(stored["reasons"], "as it was")
    store.write("choice.json", json.dumps(stored).encode())
    for other, version, is_kept in (
        (given, manifest, True),
        (replace(given, epochs=8), manifest, False),
        (given, replace(manifest, seed=1), False),
    ):
        reasons = choice_of(store, other, version, Device()).reasons
        assert (set(reasons.values()) == {"as it was"}) is is_kept


@pytest.mark.parametrize(("stored_views", "kept"), [("flips", "flips"), ("of tomorrow", "plain")])
def test_the_views_that_were_chosen_are_kept(dataset: str, output: str, stored_views: str, kept: str) -> None:
    store, manifest, given = open_store(output), load_manifest(dataset), Recipe()
    keep(store, fresh_choice(given, manifest, Device()), given, manifest)
    stored = json.loads(store.read("choice.json"))
    store.write("choice.json", json.dumps({**stored, "views": [stored_views, "why"]}).encode())
    assert choice_of(store, given, manifest, Device()).views == (kept, "why")


def test_photographs_begin_with_the_weights_that_torch_has_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    url = torchvision.models.get_model_weights("resnet18").DEFAULT.url
    kept = tmp_path / "checkpoints" / url.rpartition("/")[2]
    kept.parent.mkdir()
    kept.touch()
    photographs = {name: [some_images(4, (80, 80, 3))] for name in SPLITS}
    manifest = load_manifest(published(open_store(str(tmp_path / "store")), photographs))
    choice = fresh_choice(Recipe(), manifest, Device())
    assert (choice.recipe.model, choice.recipe.pretrained) == ("resnet18", "torchvision")
    assert str(kept) in choice.reasons["pretrained"]


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"given": 1}', "own function"],
)
def test_damaged_choices_are_made_again(dataset: str, output: str, content: str) -> None:
    """A store is not trusted: a file never names code to import."""
    with pytest.raises(Power):
        train(dataset, output, Recipe(epochs=1), before_step=_fail)
    place = Path(output) / "choice.json"
    if content == "own function":
        stored = json.loads(place.read_text())
        stored["values"]["model"] = "somebody:network"
        content = json.dumps(stored)
    place.write_text(content)
    train(dataset, output, Recipe(epochs=1))
    assert record(output)["recipe"]["model"] == "digits-cnn"


def _fail(_trainer: Trainer) -> None:
    raise Power


def test_given_epochs_beside_a_budget_are_called_unused(
    dataset: str, output: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        interrupted(0, dataset, output, replace(RECIPE, epochs=7, minutes=1))
    assert "epochs 7 is not used: 1 minutes decide" in caplog.messages


@pytest.mark.slow
def test_the_cost_of_compiling_is_logged_once(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(loop.constants, "COMPILED_DEVICES", ("cpu",))
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compiled.append(module))  # noqa: PLW0108 - binds
    with caplog.at_level(logging.INFO):
        train(dataset, output, replace(RECIPE, compile=True))
    assert len(compiled) == 1
    assert len([line for line in caplog.messages if "compile the network" in line]) == 1


@pytest.mark.parametrize(
    ("changes", "ended"),
    [
        ({}, "all epochs are done"),
        ({"epochs": 50, "patience": 1, "learning_rate": 1e-9}, "no better epoch for 1"),
        ({"minutes": 0.001}, "the 0.001 minutes were up"),
    ],
)
def test_the_record_says_how_far_a_training_got(
    dataset: str, output: str, changes: dict[str, Any], ended: str
) -> None:
    train(dataset, output, replace(RECIPE, **changes))
    found = record(output)
    assert found["ended"] == ended
    assert found["images_seen"] / found["training_images"] == found["steps"] / (found["training_images"] / 4)


def test_a_training_that_another_took_over_at_its_end_leaves_no_record(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = step._record

    def taken_over(*given: Any, **named: Any) -> dict[str, Any]:
        claim(open_store(output), None)
        return recorded(*given, **named)

    monkeypatch.setattr(step, "_record", taken_over)
    with pytest.raises(CheckpointError, match="another process has taken over this training"):
        train(dataset, output, RECIPE)
    assert not Path(output, step.RECORD).exists()


def test_a_budget_counts_all_attempts_and_what_came_before_them(dataset: str, output: str) -> None:
    """Attempts of early versions do not say what came before: that counts as nothing."""
    interrupted(2, dataset, output, replace(RECIPE, minutes=1))
    manifest, checkpoint = load_manifest(dataset), latest(open_store(output))
    assert checkpoint
    attempts = [{"seconds": 10.0, "before": 4.0}, {"seconds": 20.0}]
    start = Start(fresh_choice(RECIPE, manifest, Device()), None, replace(checkpoint, attempts=attempts))
    alone = World(0, 1, torch.device("cpu"))
    budget = step._budget(replace(RECIPE, minutes=2), manifest, start, 7.0, 3.0, alone)
    assert budget
    assert (budget.seconds, budget.used, budget.launch) == (120, 10 + 4 + 20 + 7, 3)
    assert step._budget(RECIPE, manifest, start, 7.0, 3.0, alone) is None


@pytest.mark.parametrize(("device", "nodes", "less"), [("cpu", "1", 1), ("cpu", "2", 2), ("cuda", "2", 4)])
def test_a_budget_knows_that_evaluation_has_one_process(
    device: str, nodes: str, less: int, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUP_WORLD_SIZE", nodes)
    manifest, recipe = load_manifest(dataset), replace(RECIPE, minutes=2)
    start = Start(fresh_choice(recipe, manifest, Device()), None, None)
    budget = step._budget(recipe, manifest, start, 7.0, 3.0, World(0, 4, torch.device(device)))
    assert budget
    assert budget.scored == less * (2 + 12 + 2), "of four processes"


def test_a_training_reports_the_seconds_that_are_left(
    dataset: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPIPE_REPORT_SECONDS", "0")
    monkeypatch.setattr(loop.Timetable, "seconds_left", lambda _, step: 100.0 - step)
    interrupted(8, dataset, output, RECIPE)
    reported = metrics_of(Path(output, "progress.txt").read_text())
    assert (reported["step"], reported["seconds_left"]) == (8, 92)


def test_a_checkpoint_s_model_is_the_averaged_one(dataset: str, output: str) -> None:
    seen = list[dict[str, torch.Tensor]]()

    def note(trainer: Trainer) -> None:
        average = trainer._training_step.average
        assert average
        seen.append({name: value.clone() for name, value in average.weights.items()})
        if trainer.step == STEPS_PER_EPOCH + 1:
            raise Power

    with pytest.raises(Power):
        train(dataset, output, replace(RECIPE, averaging_decay=0.9), before_step=note)
    saved, checkpoint = newest(open_store(output)) or (None, None)
    assert saved
    assert checkpoint
    average, states = seen[saved.step], checkpoint.states
    assert all(torch.equal(states["model"][name], value) for name, value in average.items())
    assert not all(torch.equal(states["training_model"][name], value) for name, value in average.items())


@dataclass(frozen=True)
class TwoRanks(World):
    """A rank of two, and what rank 0 has sent to the other."""

    sent: list[Any]

    def decided(self, decide: Callable[[], Any]) -> Any:
        if self.is_main:
            self.sent.append(decide())
        return self.sent[0]


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_a_rank_that_shares_the_model_gets_an_outline_of_it(
    dataset: str, output: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fully_sharded, "LARGE_TENSOR", 1)
    recipe = replace(RECIPE, strategy=strategy)
    interrupted(STEPS_PER_EPOCH + 1, dataset, output, recipe)
    store, data, manifest, sent = open_store(output), store_of(dataset), load_manifest(dataset), list[Any]()
    starts = [
        decided_start(store, recipe, manifest, data, TwoRanks(rank, 2, torch.device("cpu"), sent))
        for rank in range(2)
    ]
    first, second = (start.checkpoint.states["model"] for start in starts if start and start.checkpoint)
    assert not any(value.is_meta for value in first.values())
    assert {value.is_meta for value in second.values()} == {strategy == "fsdp"}
    assert {name: value.shape for name, value in first.items()} == {
        name: value.shape for name, value in second.items()
    }


@pytest.mark.parametrize(("strategy", "ranks"), [("single", 1), ("fsdp", 2)])
def test_a_checkpoint_in_pieces_is_read_whole_or_by_rows(
    dataset: str, output: str, strategy: str, ranks: int
) -> None:
    """Three ranks wrote it; each of two reads its own rows, one process reads all."""
    recipe = replace(RECIPE, strategy=strategy)
    interrupted(STEPS_PER_EPOCH + 1, dataset, output, recipe)
    store, data, manifest, sent = open_store(output), store_of(dataset), load_manifest(dataset), list[Any]()
    found, attempt = newest(store), claim(store, None)
    assert found
    states, model = found[1].states, found[1].states["model"]
    large = {name: value for name, value in model.items() if value.ndim > 1 and len(value) > 1}
    shapes, pieces = {}, []
    for rank in range(3):
        own = {name: rows_of(rank, 3, len(value)) for name, value in large.items()}
        shared = {n: Share(tuple(value.shape), own[n].start, value[own[n]]) for n, value in large.items()}
        rest, shares = parted({**states, "model": {**model, **shared}})
        shapes = {name: list(share.shape) for name, share in shares.items()}
        pieces += write_pieces(store, f"{attempt.folder}step-00000004.rank-0000{rank}", shares)
    attempt.save(replace(found[1], states=rest, shapes=shapes, pieces=pieces))
    for rank in range(ranks):
        world = TwoRanks(rank, ranks, torch.device("cpu"), sent)
        start = decided_start(store, recipe, manifest, data, world)
        assert start
        assert start.checkpoint
        read = start.checkpoint.states["model"]
        assert read.keys() == model.keys()
        for name, value in large.items():
            rows = rows_of(rank, ranks, len(value))
            assert torch.equal(read[name] if ranks == 1 else read[name].values, value[rows])
            assert ranks == 1 or (read[name].first, read[name].shape) == (rows.start, tuple(value.shape))
