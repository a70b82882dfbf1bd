"""Training by one process and by several: learning, interruption, resuming."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

import pytest
import s3_server
import torch
from recipes import plain
from samples import sample_ids
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_ranks import (
    BrokenNetwork,
    KilledBeforeWriting,
    Meddling,
    NoisyNetwork,
    RecordsSamples,
    SignalAtStep,
    SlowStore,
)
from training_runs import (
    RECIPE,
    STEPS_PER_EPOCH,
    TRAIN_SAMPLES,
    digits,
    final,
    record,
    run,
    same_bits,
    trained,
)

from ddpipe.data.manifest import load_manifest
from ddpipe.errors import CheckpointError, Diverged, Interrupted, NotWritable, TrainingError
from ddpipe.model.checkpoint import Checkpoint
from ddpipe.train.batches import global_batch, permutation
from ddpipe.train.recipe import Recipe
from ddpipe.train.train import train

EVERY_STEP = replace(RECIPE, checkpoint_minutes=1e-9)
"""The same training with a checkpoint before every step."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def uninterrupted(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Checkpoint]:
    """The end of a training that nothing disturbed, by its number of ranks; each is run once."""
    ends: dict[int, Checkpoint] = {}

    def end(ranks: int) -> Checkpoint:
        if ranks not in ends:
            ends[ranks] = trained(dataset, str(tmp_path_factory.mktemp("runs") / "whole"), ranks=ranks)
        return ends[ranks]

    return end


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "recipe", "death"),
    [
        pytest.param(1, EVERY_STEP, SignalAtStep(0, 0, signal.SIGKILL), id="1 rank, first step"),
        pytest.param(1, EVERY_STEP, SignalAtStep(0, 25, signal.SIGKILL), id="1 rank, within an epoch"),
        pytest.param(2, EVERY_STEP, SignalAtStep(0, 7, signal.SIGKILL), id="2 ranks, within an epoch"),
        pytest.param(2, EVERY_STEP, SignalAtStep(1, 17, signal.SIGKILL), id="2 ranks, not the main one"),
        pytest.param(2, RECIPE, SignalAtStep(0, 18, signal.SIGKILL), id="2 ranks, an epoch's last step"),
        pytest.param(2, RECIPE, SignalAtStep(1, 19, signal.SIGKILL), id="2 ranks, an epoch's first step"),
        pytest.param(2, EVERY_STEP, SignalAtStep(0, 37, signal.SIGKILL), id="2 ranks, the last step"),
        pytest.param(2, EVERY_STEP, KilledBeforeWriting(".pt", 9), id="2 ranks, before a checkpoint"),
        pytest.param(2, EVERY_STEP, KilledBeforeWriting("latest.json", 9), id="2 ranks, before the pointer"),
        pytest.param(2, RECIPE, KilledBeforeWriting("metrics.jsonl", 2), id="2 ranks, before the metrics"),
        pytest.param(2, RECIPE, KilledBeforeWriting("training.json", 1), id="2 ranks, before the end"),
        pytest.param(3, EVERY_STEP, SignalAtStep(2, 11, signal.SIGKILL), id="3 ranks, within an epoch"),
    ],
)
def test_killed_run_resumes_bit_for_bit(
    dataset: str,
    tmp_path: Path,
    uninterrupted: Callable[[int], Checkpoint],
    ranks: int,
    recipe: Recipe,
    death: Meddling,
) -> None:
    output = str(tmp_path / "training")
    killed = run(dataset, output, recipe, ranks=ranks, meddling=[death])
    assert killed.codes.count(-signal.SIGKILL) == 1
    assert killed.codes.count(TrainingError.exit_code) == ranks - 1, killed.errors
    assert not (tmp_path / "training" / "training.json").exists()
    assert same_bits(trained(dataset, output, recipe, ranks=ranks), uninterrupted(ranks))
    lines = (tmp_path / "training" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]


@pytest.mark.slow
def test_dropout_and_batch_statistics_survive_a_kill_bit_for_bit(dataset: str, tmp_path: Path) -> None:
    recipe = replace(EVERY_STEP, batch_size=80)
    meddling = (NoisyNetwork(),)
    assert run(dataset, str(tmp_path / "whole"), recipe, ranks=2, meddling=meddling).codes == [0, 0]
    output = str(tmp_path / "killed")
    run(dataset, output, recipe, ranks=2, meddling=[*meddling, SignalAtStep(1, 25, signal.SIGKILL)])
    assert run(dataset, output, recipe, ranks=2, meddling=meddling).codes == [0, 0]
    assert record(output)["resumed_from"] == 25
    assert same_bits(final(output), final(str(tmp_path / "whole")))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_ranks_save_and_stop_when_one_is_asked_to(
    dataset: str, tmp_path: Path, uninterrupted: Callable[[int], Checkpoint], number: signal.Signals
) -> None:
    output = str(tmp_path / "training")
    ended = run(dataset, output, ranks=2, meddling=[SignalAtStep(1, 23, number)])
    assert ended.codes == [Interrupted.exit_code] * 2
    step = final(output).step
    assert 24 <= step < 38, "ranks poll a few times a second"
    assert ended.errors[0]["seen"] == f"stop requested at step {step} of 38; the state is saved"
    assert same_bits(trained(dataset, output, ranks=2), uninterrupted(2))
    assert record(output)["resumed_from"] == step


@pytest.mark.slow
def test_no_rank_ends_before_the_state_is_saved(dataset: str, tmp_path: Path) -> None:
    """The first rank to end takes the others down with it."""
    meddling = [SignalAtStep(1, 3, signal.SIGTERM), SlowStore()]
    run(dataset, str(tmp_path / "training"), ranks=2, meddling=meddling)
    pointer, *_ = (tmp_path / "training").glob("checkpoints/*/latest.json")
    assert 4 <= final(str(tmp_path / "training")).step < 38
    for rank in range(2):
        assert (tmp_path / f"error-{rank}.json").stat().st_mtime_ns >= pointer.stat().st_mtime_ns


@pytest.mark.slow
def test_any_number_of_ranks_takes_the_same_global_batches(dataset: str, tmp_path: Path) -> None:
    wanted, batches = sample_ids(dataset, "train"), {}
    for ranks in (1, 2):
        folder = tmp_path / f"{ranks}"
        folder.mkdir()
        run(dataset, str(tmp_path / f"training-{ranks}"), ranks=ranks, meddling=[RecordsSamples(folder)])
        read = [_training_batches(path, set(wanted)) for path in sorted(folder.iterdir())]
        # shares are assigned round-robin, so taking turns among the ranks gives the batch in its order
        batches[ranks] = [
            [sample for turn in zip_longest(*shares) for sample in turn if sample is not None]
            for shares in zip(*read, strict=True)
        ]
    assert batches[1] == batches[2]
    # Not 18 batches of 78 images and one of 1 in each epoch.
    assert [len(batch) for batch in batches[1]] == 2 * [73, *[74] * 18]
    for epoch in (batches[1][:STEPS_PER_EPOCH], batches[1][STEPS_PER_EPOCH:]):
        assert sorted(chain.from_iterable(epoch)) == sorted(wanted)


def _training_batches(path: Path, wanted: set[str]) -> list[list[str]]:
    batches = [json.loads(line) for line in path.read_text().splitlines()]
    return [batch for batch in batches if wanted.issuperset(batch)]


@pytest.mark.slow
def test_uneven_shares_give_the_model_of_one_rank(uninterrupted: Callable[[int], Checkpoint]) -> None:
    """An epoch's last batch has one sample: a wrong weight for it would show."""
    for ranks in (2, 3):
        one, many = uninterrupted(1).states["model"], uninterrupted(ranks).states["model"]
        for name in one:
            torch.testing.assert_close(many[name], one[name], rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_another_number_of_ranks_may_resume(
    dataset: str, tmp_path: Path, uninterrupted: Callable[[int], Checkpoint]
) -> None:
    output = str(tmp_path / "training")
    run(dataset, output, ranks=1, meddling=[SignalAtStep(0, 23, signal.SIGTERM)])
    one, other = uninterrupted(1).states["model"], trained(dataset, output, ranks=2).states["model"]
    for name in one:
        torch.testing.assert_close(other[name], one[name], rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_the_default_recipe_learns_digits(dataset: str, tmp_path: Path) -> None:
    end = trained(dataset, str(tmp_path / "training"), plain(), ranks=2)
    assert end.history[-1]["validation_accuracy"] >= 0.97
    assert end.history[-1]["train_loss"] < end.history[0]["train_loss"] / 5
    done = record(str(tmp_path / "training"))
    assert done["final"]["validation_accuracy"] == end.history[-1]["validation_accuracy"]
    assert (done["world_size"], done["epochs"], done["steps"]) == (2, 15, end.step)
    assert done["dataset"] == dataset


@pytest.mark.slow
def test_bf16_learns_too(dataset: str, tmp_path: Path) -> None:
    end = trained(dataset, str(tmp_path / "training"), plain(precision="bf16", epochs=4), ranks=1)
    assert end.history[-1]["validation_accuracy"] >= 0.9


def test_a_loss_that_is_no_number_names_its_step_and_is_not_saved(dataset: str, tmp_path: Path) -> None:
    output = str(tmp_path / "training")
    ended = run(dataset, output, EVERY_STEP, ranks=2, meddling=[BrokenNetwork()])
    assert ended.codes == [Diverged.exit_code] * 2
    batch = global_batch(permutation(RECIPE.seed, 0, TRAIN_SAMPLES), 4, RECIPE.batch_size)
    assert ended.errors[0]["seen"].startswith(f"the loss of step 5 is not a number; its {len(batch)} samples")
    named = json.loads((tmp_path / "training" / "diverged.json").read_text())["samples"]
    ids = sample_ids(dataset, "train")
    assert named == [ids[index] for index in batch]
    assert f"begin with {', '.join(named[:5])} (" in ended.errors[0]["seen"]
    assert final(output).step == 4
    assert all(tensor.isfinite().all() for tensor in final(output).states["model"].values())


@pytest.mark.slow
def test_tensorboard_shows_a_resumed_training_as_one(dataset: str, tmp_path: Path) -> None:
    output = tmp_path / "training"
    run(dataset, str(output), ranks=1, meddling=[SignalAtStep(0, 30, signal.SIGKILL)])
    trained(dataset, str(output), ranks=1)
    events = EventAccumulator(str(output / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("step/loss")] == list(range(1, 2 * STEPS_PER_EPOCH + 1))
    assert [event.step for event in events.Scalars("epoch/validation_accuracy")] == [19, 38]


def test_a_finished_training_is_left_as_it_is(dataset: str, tmp_path: Path) -> None:
    output = tmp_path / "training"
    trained(dataset, str(output), plain(epochs=1), ranks=1)
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    trained(dataset, str(output), plain(epochs=1, checkpoint_minutes=1), ranks=1)
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before


def test_a_checkpoint_of_another_recipe_or_dataset_is_refused(dataset: str, tmp_path: Path) -> None:
    output = tmp_path / "training"
    run(dataset, str(output), ranks=1, meddling=[SignalAtStep(0, 3, signal.SIGTERM)])
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    other = digits(tmp_path / "other", seed=1)
    with pytest.raises(CheckpointError) as refused:
        train(other, str(output), replace(RECIPE, learning_rate=0.2, seed=7))
    assert refused.value.seen.startswith("its checkpoints belong to another training; 3 problems:")
    for part in ("learning_rate was 0.1, is now 0.2", "seed was 0, is now 7", "dataset version was"):
        assert part in refused.value.seen
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before


def test_a_place_that_can_not_be_written_is_refused_at_once(dataset: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotWritable):
        train(dataset, str(tmp_path / "file" / "training"), RECIPE)


@pytest.mark.slow
def test_a_training_may_live_in_a_bucket(dataset: str, s3: s3_server.Server) -> None:
    output = f"s3://{s3_server.BUCKET}/runs/a/training"
    run(dataset, output, ranks=1, meddling=[SignalAtStep(0, 25, signal.SIGTERM)])
    assert trained(dataset, output, ranks=1).step == 2 * STEPS_PER_EPOCH
    assert record(output)["resumed_from"] == 26


def test_the_builders_match_what_training_does(dataset: str) -> None:
    assert load_manifest(dataset).splits["train"].count == TRAIN_SAMPLES
    assert (STEPS_PER_EPOCH - 1) * RECIPE.batch_size + 1 == TRAIN_SAMPLES
