"""One training under every strategy: the same model as in one process, and the same bits after a kill."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recipes import plain
from samples import published, some_images
from training_ranks import (
    FewBlocks,
    LargeNetwork,
    LimitedMemory,
    NormalizedNetwork,
    RecordsStatistics,
    SignalAtStep,
    TiedNetwork,
    TravellingTensors,
)
from training_runs import (
    RECIPE,
    STEPS_PER_EPOCH,
    Ended,
    digits,
    final,
    findings,
    losses,
    record,
    run,
    same_bits,
    trained,
)

from ddpipe.data.reader import open_split
from ddpipe.errors import DatasetError, Interrupted, ParameterError
from ddpipe.model.classifier import classifier_of
from ddpipe.storage import open_store
from ddpipe.train.recipe import Recipe
from ddpipe.train.train import train

SMALL = replace(RECIPE, epochs=1, precision="fp32")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def single(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A training in one process; its output."""
    output = str(tmp_path_factory.mktemp("single") / "training")
    trained(dataset, output, replace(SMALL, strategy="single"), ranks=1)
    return output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("dp", 1), ("ddp", 1), ("ddp", 4), ("fsdp", 1), ("fsdp", 4)],
)
def test_every_strategy_has_the_loss_curve_of_one_process(
    dataset: str, tmp_path: Path, single: str, strategy: str, ranks: int
) -> None:
    output = str(tmp_path / "training")
    end = trained(dataset, output, replace(SMALL, strategy=strategy), ranks=ranks)
    assert losses(output) == pytest.approx(losses(single), rel=1e-3)
    expected = final(single)
    assert end.history[0]["validation_accuracy"] == expected.history[0]["validation_accuracy"]
    for name, weight in expected.states["model"].items():
        torch.testing.assert_close(end.states["model"][name], weight, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_data_parallel_resumes_bit_for_bit_after_a_kill(dataset: str, tmp_path: Path) -> None:
    """DDP does so in test_training.py, FSDP below."""
    recipe = replace(SMALL, strategy="dp", checkpoint_minutes=1e-9)
    output, meddling = str(tmp_path / "killed"), [SignalAtStep(0, 7, signal.SIGKILL, stored=0)]
    assert -signal.SIGKILL in run(dataset, output, recipe, ranks=1, meddling=meddling).codes
    resumed = trained(dataset, output, recipe, ranks=1)
    assert 0 < record(output)["resumed_from"] <= 7
    whole = trained(dataset, str(tmp_path / "whole"), replace(recipe, checkpoint_minutes=5), ranks=1)
    assert same_bits(resumed, whole)


@pytest.mark.parametrize(
    ("first", "second", "travels"),
    [
        (1, 2, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 2, False), (2, 1, True))),
    ],
)
def test_fsdp_with_sgd_resumes_at_another_number_of_processes(
    dataset: str, tmp_path: Path, single: str, first: int, second: int, travels: bool
) -> None:
    """One process updates by the fused kernel, which does not exist for shares of weights."""
    output, recipe = str(tmp_path / "training"), replace(SMALL, strategy="fsdp")
    meddling = [TravellingTensors()] if travels else []
    run(dataset, output, recipe, ranks=first, meddling=[SignalAtStep(0, 7, signal.SIGTERM), *meddling])
    assert 8 <= final(output).step < 19
    assert run(dataset, output, recipe, ranks=second, meddling=meddling).codes == [0] * second
    end = final(output)
    for name, weight in final(single).states["model"].items():
        torch.testing.assert_close(end.states["model"][name], weight, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_fsdp_trains_a_model_too_large_for_one_rank(dataset: str, tmp_path: Path) -> None:
    """No rank has memory for all weights and gradients: not to build, train, save or resume them."""
    weights, limit = 96 * 2**20, 352 * 2**20
    assert limit < 4 * weights
    recipe = plain(model="digits-cnn", batch_size=16, optimizer="adamw", learning_rate=1e-4, precision="fp32")
    output, small = str(tmp_path / "training"), [LargeNetwork(weights), LimitedMemory(limit)]

    def until(step: int, strategy: str, ranks: int) -> Ended:
        meddling = [*small, SignalAtStep(0, step - 1, signal.SIGTERM)]
        return run(dataset, output, replace(recipe, strategy=strategy), ranks=ranks, meddling=meddling)

    refused = until(2, "ddp", 2)
    assert any("allocate" in str(error) for error in refused.errors)
    for step, ranks in ((2, 4), (4, 3)):
        assert until(step, "fsdp", ranks).codes == [Interrupted.exit_code] * ranks
        assert final(output).step == step
    assert sum(one.nbytes for one in final(output).states["model"].values()) > weights


@pytest.mark.slow
@pytest.mark.parametrize("model", ["swin_t", "vit_b_16"])
def test_fsdp_trains_a_transformer_sharded_by_blocks(tmp_path: Path, model: str) -> None:
    """Attention uses weights of its layers without calling them."""
    images = {name: [some_images(8, (32, 32, 3))] for name in ("train", "validation", "test")}
    dataset = published(open_store(str(tmp_path / "data")), images)
    recipe = plain(model=model, epochs=1, batch_size=4, learning_rate=1e-4, precision="fp32")
    for strategy in ("fsdp", "ddp"):
        output, meddling = str(tmp_path / strategy), [FewBlocks()]
        ended = run(dataset, output, replace(recipe, strategy=strategy), ranks=2, meddling=meddling)
        assert ended.codes == [0, 0]
    assert losses(str(tmp_path / "fsdp")) == pytest.approx(losses(str(tmp_path / "ddp")), rel=1e-3)


EVERYTHING = replace(
    RECIPE,
    optimizer="adamw",
    learning_rate=0.01,
    schedule="linear",
    clip_norm=1.0,
    averaging_decay=0.99,
    augmentation="shift-alternating-flip",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "ranks"),
    [
        pytest.param(replace(EVERYTHING, optimizer="muon"), 1, id="muon, 1 rank"),
        pytest.param(replace(EVERYTHING, precision="bf16"), 2, id="bf16, 2 ranks"),
        pytest.param(replace(EVERYTHING, strategy="fsdp"), 2, id="fsdp, 2 ranks"),
    ],
)
def test_every_recipe_resumes_bit_for_bit_after_kills(
    dataset: str, tmp_path: Path, recipe: Recipe, ranks: int
) -> None:
    output = str(tmp_path / "killed")
    for step, stored in ((7, 0), (25, STEPS_PER_EPOCH)):
        meddling = [SignalAtStep(0, step, signal.SIGKILL, stored)]
        run(dataset, output, replace(recipe, checkpoint_minutes=1e-9), ranks=ranks, meddling=meddling)
    resumed = trained(dataset, output, recipe, ranks=ranks)
    assert STEPS_PER_EPOCH < record(output)["resumed_from"] <= 25
    whole = trained(dataset, str(tmp_path / "whole"), recipe, ranks=ranks)
    assert same_bits(resumed, whole)
    assert resumed.history[-1]["validation_accuracy"] == whole.history[-1]["validation_accuracy"] > 0.3


def test_training_stops_early_and_its_best_epoch_is_the_result(dataset: str, tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=50, patience=2, learning_rate=1e-9)
    end = trained(dataset, str(tmp_path / "training"), recipe, ranks=2)
    done = record(str(tmp_path / "training"))
    accuracies = [line["validation_accuracy"] for line in done["history"]]
    best = accuracies.index(max(accuracies))
    assert len(accuracies) == done["epochs"] == end.epoch == best + 3 < 10
    assert done["checkpoint"]["step"] == done["history"][best]["step"]
    assert done["final"]["validation_accuracy"] == accuracies[best]


@pytest.mark.parametrize("strategy", ["single", "dp"])
def test_a_strategy_of_one_process_refuses_several(dataset: str, tmp_path: Path, strategy: str) -> None:
    ended = run(dataset, str(tmp_path / "training"), replace(SMALL, strategy=strategy), ranks=2)
    assert ended.codes == [ParameterError.exit_code] * 2
    assert ended.errors[0]["seen"] == "it is for one process, and there are 2"


def test_fsdp_refuses_layers_that_share_weights(dataset: str, tmp_path: Path) -> None:
    recipe = replace(SMALL, strategy="fsdp")
    ended = run(dataset, str(tmp_path / "training"), recipe, ranks=2, meddling=[TiedNetwork()])
    assert ended.codes == [ParameterError.exit_code] * 2
    assert ended.errors[0]["seen"] == "two layers share this weight"


@pytest.mark.parametrize("ranks", [2, 3])
def test_batch_statistics_are_the_same_on_all_ranks(dataset: str, tmp_path: Path, ranks: int) -> None:
    output, folder = str(tmp_path / "training"), tmp_path / "seen"
    folder.mkdir()
    run(dataset, output, SMALL, ranks=ranks, meddling=[NormalizedNetwork(), RecordsStatistics(folder)])
    seen = [json.loads((folder / f"rank-{rank}.jsonl").read_text()) for rank in range(ranks)]
    assert all(other == seen[0] for other in seen)
    saved = final(output).states["model"]
    assert saved["network.0.1.running_mean"].tolist() == seen[0]["network.0.1.running_mean"]
    assert len(set(seen[0]["network.0.1.running_mean"])) == 8


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_synchronised_batch_statistics_give_the_model_of_one_process(
    dataset: str, tmp_path: Path, ranks: int
) -> None:
    recipe, ends = replace(SMALL, sync_batch_norm=True), {}
    for processes in (1, ranks):
        output = str(tmp_path / f"{processes}")
        assert run(dataset, output, recipe, ranks=processes, meddling=[NormalizedNetwork()]).codes[0] == 0
        ends[processes] = final(output).states["model"]
    assert losses(str(tmp_path / "1")) == pytest.approx(losses(str(tmp_path / f"{ranks}")), rel=1e-3)
    for name, weight in ends[1].items():
        torch.testing.assert_close(ends[ranks][name], weight, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_macro_auc_of_validation_equals_scikit_learn_s(tmp_path: Path, ranks: int) -> None:
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - forked ranks do without

    dataset, output = findings(tmp_path / "store"), str(tmp_path / "training")
    recipe = plain(epochs=3, batch_size=32, class_weights="balanced", precision="fp32")
    end = trained(dataset, output, recipe, ranks=ranks)
    split = open_split(dataset, "validation")
    with torch.no_grad():
        logits = classifier_of(end)(torch.from_numpy(split.images(range(len(split)))))
    expected = roc_auc_score(split.labels, logits.numpy(), average="macro")
    assert end.history[-1]["validation_macro_auc"] == pytest.approx(expected, abs=1e-12)
    assert expected > 0.7
    assert record(output)["final"]["validation_macro_auc"] == end.history[-1]["validation_macro_auc"]


def test_smoothing_is_for_one_class_per_image(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="an image may have several labels"):
        train(findings(tmp_path), str(tmp_path / "training"), replace(SMALL, label_smoothing=0.1))


def test_labels_without_an_auc_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"there is no AUC\nPrepare it again with more images"):
        train(findings(tmp_path, counts=(20, 1)), str(tmp_path / "training"), SMALL)
