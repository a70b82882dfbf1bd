"""What happens to a batch and to the weights in one step."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from recipes import plain
from samples import some_images
from torch import nn

from ddpipe.distributed import World
from ddpipe.errors import ParameterError
from ddpipe.model.classifier import Classifier, build
from ddpipe.train import optimizer
from ddpipe.train.batches import Batch, resized, resolution
from ddpipe.train.fully_sharded import FullyShardedStrategy
from ddpipe.train.initial import check_resolution
from ddpipe.train.objective import CrossEntropy
from ddpipe.train.optimizer import WeightAverage, build_optimizer, set_learning_rate
from ddpipe.train.recipe import Precision, Recipe
from ddpipe.train.replicated import DataParallelStrategy, DistributedDataParallelStrategy, Strategy
from ddpipe.train.step import TrainingStep, network_dtype
from ddpipe.train.strategies import (
    RunningStatistics,
    SyncBatchNorm,
    accept_single_values,
    is_sharded,
    strategy_named,
    synchronise,
)
from ddpipe.train.timetable import best_epoch, out_of_patience

CPU = torch.device("cpu")
ALONE = World(0, 1, CPU)
SHAPE = (8, 8, 1)
BATCH = Batch(torch.from_numpy(some_images(10, SHAPE)), torch.arange(10) % 3, 10)


def a_classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier(build("digits-cnn", SHAPE, 3), [0.5], [0.3])


def stepped(recipe: Recipe, batch: Batch = BATCH, steps: int = 3) -> Classifier:
    classifier = a_classifier()
    strategy = Strategy(classifier, SHAPE, ALONE)
    # At a constant rate every step of a training is the same.
    recipe = replace(recipe, warmup_fraction=0.0, schedule="constant", precision="fp32")
    step = TrainingStep(recipe, classifier, CrossEntropy(), strategy, ALONE, steps=steps)
    for number in range(steps):
        step.take(number, batch)
    return classifier


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    return max((a - b).abs().max().item() for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_clipped_gradient_has_the_largest_norm_that_is_allowed() -> None:
    recipe = plain(clip_norm=1e-3, learning_rate=1, momentum=0, weight_decay=0)
    moved = torch.cat(
        [
            (a - b).flatten()
            for a, b in zip(stepped(recipe, steps=1).parameters(), a_classifier().parameters(), strict=True)
        ]
    )
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_norm_is_clipped_to_the_same_value_at_any_number_of_ranks(ranks: int) -> None:
    classifier, world = a_classifier(), World(0, ranks, CPU)
    before = copy.deepcopy(classifier)
    recipe = plain(
        clip_norm=1e-3, learning_rate=1, momentum=0, weight_decay=0, warmup_fraction=0, precision="fp32"
    )
    strategy = Strategy(classifier, SHAPE, world)
    TrainingStep(recipe, classifier, CrossEntropy(), strategy, world, steps=9).take(0, BATCH)
    pairs = zip(classifier.parameters(), before.parameters(), strict=True)
    moved = torch.cat([(new - old).flatten() for new, old in pairs])
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("momentum", [0, 0.8])
def test_sgd_has_nesterov_s_momentum_or_none(momentum: float) -> None:
    recipe = plain(learning_rate=0.2, momentum=momentum, weight_decay=0.1)
    for group in build_optimizer(recipe, a_classifier(), fused=True).param_groups:
        assert (group["lr"], group["momentum"], group["nesterov"]) == (0.2, momentum, momentum > 0)
        assert (group["weight_decay"], group["fused"]) == (0.1, True)


def test_adamw_takes_the_momentum_as_its_first_beta() -> None:
    recipe = plain(optimizer="adamw", learning_rate=0.01, momentum=0.7, weight_decay=0.1)
    optimizer = build_optimizer(recipe, a_classifier(), fused=True)
    assert isinstance(optimizer, torch.optim.AdamW)
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["weight_decay"]) == (0.01, (0.7, 0.999), 0.1)
        assert group["fused"]


def test_a_weight_that_rests_is_none_of_the_optimizer_s() -> None:
    model = a_classifier()
    resting = next(model.parameters()).requires_grad_(requires_grad=False)
    groups = build_optimizer(plain(), model, fused=False).param_groups
    assert all(weight is not resting for group in groups for weight in group["params"])


def test_a_learning_rate_is_that_of_all_weights() -> None:
    optimizer = build_optimizer(plain(), a_classifier(), fused=False)
    set_learning_rate(optimizer, 0.03)
    assert [group["lr"] for group in optimizer.param_groups] == [0.03, 0.03]


def test_an_empty_share_can_be_learnt() -> None:
    empty = Batch(BATCH.images[:0], BATCH.labels[:0], 1)
    assert largest_difference(stepped(plain(weight_decay=0), empty), a_classifier()) == 0


def test_weight_average_follows_and_replaces_the_weights() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    average = WeightAverage(model, decay=0.5)
    for step in range(20, 24):
        nn.init.constant_(model.weight, 1.0)
        average.update(step)
    assert average.weights["weight"].item() == pytest.approx(1 - 0.5**4)
    with average.in_place():
        assert model.weight.item() == pytest.approx(1 - 0.5**4)
    assert model.weight.item() == 1


def test_the_first_weights_are_soon_forgotten() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    average = WeightAverage(model, decay=0.999)
    nn.init.constant_(model.weight, 0.0)
    for step in range(10):
        average.update(step)
    assert average.weights["weight"].item() < 1e-3


def test_an_average_s_memory_grows_with_the_steps() -> None:
    """A step's share is 9/10 at first, then 9/11, until it is the recipe's."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    average = WeightAverage(model, decay=0.999)
    nn.init.constant_(model.weight, 1.0)
    shares = []
    for step in range(2):
        nn.init.constant_(average.weights["weight"], 0.0)
        average.update(step)
        shares.append(average.weights["weight"].item())
    assert shares == pytest.approx([9 / 10, 9 / 11])


def test_average_covers_means_only_and_is_resumed() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average, other = WeightAverage(model, decay=0.5), WeightAverage(nn.Sequential(*model), decay=0.5)
    assert {"0.weight", "1.running_mean"} <= average.weights.keys()
    assert "1.num_batches_tracked" not in average.weights
    model(torch.randn(8, 2))
    average.update(100)
    other.load(average.weights)
    assert all(torch.equal(average.weights[name], value) for name, value in other.weights.items())
    assert all(value is not average.weights[name] for name, value in other.weights.items())


def test_average_restores_the_weights_after_an_error() -> None:
    model = nn.Linear(1, 1)
    average, before = WeightAverage(model, decay=0.5), copy.deepcopy(model.state_dict())
    nn.init.constant_(average.weights["weight"], 7.0)

    def fail() -> None:
        with average.in_place():
            assert model.weight.item() == 7
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_images_are_small_at_first() -> None:
    recipe = plain(initial_resolution=0.6)
    assert [resolution(recipe, step, 10) for step in range(10)] == [0.6] * 5 + [1] * 5
    images = torch.from_numpy(some_images(2, (32, 24, 3)))
    assert resized(images, 0.6).shape == (2, 20, 16, 3)
    assert resized(images, 1) is images


def test_a_network_for_one_size_only_refuses_smaller_images() -> None:
    recipe = plain(initial_resolution=0.5)
    with pytest.raises(ParameterError, match="images of 4x4 pixels, which it does not accept"):
        check_resolution(a_classifier(), SHAPE, recipe)


def test_a_trial_of_smaller_images_leaves_the_network_as_it_was() -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(2))
    classifier = Classifier(network, [0.5] * 3, [0.3] * 3)
    check_resolution(classifier, (24, 16, 3), plain(initial_resolution=0.5))
    before = copy.deepcopy(classifier.state_dict())
    check_resolution(classifier, (24, 16, 3), plain(initial_resolution=0.5))
    assert all(torch.equal(before[name], value) for name, value in classifier.state_dict().items())
    assert all(module.training for module in classifier.modules())
    with pytest.raises(
        ParameterError, match=r"with initial_resolution 0\.25 it would get images of 4x8 pixels"
    ):
        check_resolution(classifier, (32, 16, 3), plain(initial_resolution=0.25))
    check_resolution(classifier, (32, 16, 3), plain(initial_resolution=1))


def test_training_stops_when_patience_runs_out() -> None:
    history = [{"auc": value} for value in (0.5, 0.7, 0.7, 0.6)]
    assert best_epoch(history, "auc") == 1
    assert [out_of_patience(history[:length], "auc", 2) for length in range(5)] == [False] * 4 + [True]
    assert not out_of_patience(history, "auc", 0)


def test_auto_precision_is_bf16_where_the_processor_is_fast_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for names, expected in (
        (["avx512_bf16"], True),
        (["avx512_bf16", "avx512_fp16"], False),
        (["avx512_bf16", "avx512_fp16", "amx_bf16"], True),
        ([], False),
    ):
        instructions = dict.fromkeys(names, True)
        monkeypatch.setattr(torch.cpu, "get_capabilities", instructions.copy)
        assert (network_dtype(Precision.AUTO, ALONE) is torch.bfloat16) is expected
        assert network_dtype(Precision.BF16, ALONE) is torch.bfloat16
        assert network_dtype(Precision.FP32, ALONE) is torch.float32


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        ([], torch.float32),
        (["avx512_fp16"], torch.float32),
        (["amx_bf16"], torch.bfloat16),
        (["avx512_bf16", "avx512_fp16"], torch.bfloat16),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "auto"])
def test_muon_rounds_only_where_there_are_instructions_for_it(
    names: list[str], dtype: torch.dtype, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict.fromkeys(names, True).copy)
    monkeypatch.setattr(
        optimizer, "orthogonal", lambda update, dtype: seen.append(dtype) or torch.zeros_like(update)
    )
    recipe, classifier = plain(optimizer="muon", precision=precision), a_classifier()
    strategy = Strategy(classifier, SHAPE, ALONE)
    TrainingStep(recipe, classifier, CrossEntropy(), strategy, ALONE, steps=1).take(0, BATCH)
    assert set(seen) == {dtype}


@pytest.mark.parametrize("name", ["single", "dp"])
def test_a_strategy_for_one_process_is_refused_with_two(name: str) -> None:
    with pytest.raises(ParameterError, match="it is for one process, and there are 2"):
        strategy_named(name, World(0, 2, CPU))


def test_every_strategy_is_the_plain_one_for_one_process_but_dp() -> None:
    chosen = [strategy_named(name, ALONE) for name in ("auto", "single", "ddp", "fsdp", "dp")]
    assert chosen == [*4 * [Strategy], DataParallelStrategy]


def test_several_processes_average_gradients_or_share_the_weights() -> None:
    two = World(1, 2, CPU)
    chosen = [strategy_named(name, two) for name in ("auto", "ddp", "fsdp")]
    assert chosen == [*2 * [DistributedDataParallelStrategy], FullyShardedStrategy]
    assert [is_sharded(name, two) for name in ("auto", "ddp", "fsdp")] == [False, False, True]
    assert not is_sharded("fsdp", ALONE)


def test_a_network_without_statistics_exchanges_none() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False), SyncBatchNorm(2))
    RunningStatistics(model, World(0, 2, CPU)).average()()
    RunningStatistics(nn.BatchNorm2d(2), ALONE).average()()


@pytest.mark.parametrize("shape", [(4, 3, 2, 2), (2, 3, 1, 1)])
@pytest.mark.parametrize(
    "options",
    [{}, {"eps": 0.1, "momentum": 0.3}, {"affine": False}, {"track_running_stats": False}],
    ids=["usual", "numbers", "no weights", "no statistics"],
)
def test_synchronised_statistics_of_one_rank_are_those_of_torch(
    options: dict[str, Any], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs, gradients and running statistics, in training and in evaluation."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda _values: None)
    torch.manual_seed(0)
    usual = nn.Sequential(nn.Sequential(nn.BatchNorm2d(3, **options)))
    for weights in usual.parameters():
        nn.init.uniform_(weights)
    other = copy.deepcopy(usual)
    synchronise(other)
    assert isinstance(other.get_submodule("0.0"), SyncBatchNorm)
    given = [(3 * torch.randn(shape) + 1).requires_grad_() for _ in range(2)]
    for images in given:
        found = [model(images).pow(3).mean() for model in (usual, other)]
        torch.testing.assert_close(found[1], found[0])
        gradients = [torch.autograd.grad(loss, [images], retain_graph=True)[0] for loss in found]
        torch.testing.assert_close(*gradients)
        found[0].backward()
        found[1].backward()
    for one, another in zip(usual.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(another.grad, one.grad)
    assert not any(value.requires_grad for value in other.buffers()), "each would keep the graph of its step"
    assert other.state_dict().keys() == usual.state_dict().keys()
    for name, value in usual.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.eval()(given[0]), usual.eval()(given[0]), rtol=1e-4, atol=1e-5)


def test_synchronised_normalization_keeps_half_precision_and_accepts_one_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda _values: None)
    layer = SyncBatchNorm(3)
    assert layer(torch.full((1, 3, 1, 1), 7.0, dtype=torch.bfloat16)).dtype == torch.bfloat16
    torch.testing.assert_close(layer.running_mean, torch.full((3,), 0.7))
    torch.testing.assert_close(layer.running_var, torch.full((3,), 0.9))
    assert layer.num_batches_tracked == 1


def test_an_optimizer_s_kernel_is_that_of_the_strategy_not_of_the_checkpoint() -> None:
    saved = build_optimizer(plain(learning_rate=0.2), a_classifier(), fused=False)
    sum(weights.sum() for weights in saved.param_groups[0]["params"]).backward()
    saved.step()
    classifier = a_classifier()
    strategy = Strategy(classifier, SHAPE, ALONE)
    own = build_optimizer(plain(learning_rate=0.7), classifier, fused=True)
    strategy.load_optimizer(own, copy.deepcopy(saved.state_dict()))
    for group in own.param_groups:
        assert (group["fused"], group["foreach"], group["lr"]) == (True, None, 0.2)
    states = zip(own.state_dict()["state"].values(), saved.state_dict()["state"].values(), strict=True)
    for mine, theirs in states:
        assert torch.equal(mine["momentum_buffer"], theirs["momentum_buffer"])
        assert not mine["momentum_buffer"].requires_grad


def test_running_statistics_are_the_means_over_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), nn.BatchNorm2d(3))
    buffers = dict(model.named_buffers())
    buffers["0.running_mean"].copy_(torch.tensor([1.0, 2.0]))
    buffers["1.running_var"].copy_(torch.tensor([3.0, 5.0, 7.0]))

    class Adding:
        def __init__(self, values: torch.Tensor, *, async_op: bool) -> None:
            assert async_op
            self._values = values

        def wait(self) -> None:
            self._values += 1  # of a rank of ones

    monkeypatch.setattr(torch.distributed, "all_reduce", Adding)
    take_means = RunningStatistics(model, World(0, 2, CPU)).average()
    assert buffers["0.running_mean"].tolist() == [1.0, 2.0]
    take_means()
    assert buffers["0.running_mean"].tolist() == [1.0, 1.5]
    assert buffers["1.running_mean"].tolist() == [0.5, 0.5, 0.5]
    assert buffers["1.running_var"].tolist() == [2.0, 3.0, 4.0]


def test_synchronised_statistics_stay_on_the_device_of_the_layer() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    synchronise(model)
    assert isinstance(model[1], SyncBatchNorm)
    assert {value.device.type for value in model.state_dict().values()} == {"meta"}
    assert dict(model.named_parameters()).keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_one_value_per_channel_is_normalized_by_running_statistics() -> None:
    """As one image is at the end of quick-32 with images of 16x16 pixels; two are normalized as usual."""
    model = nn.Sequential(nn.BatchNorm2d(3))
    accept_single_values(model)
    before = copy.deepcopy(model.state_dict())
    one = torch.tensor([1.0, -2.0, 3.0]).view(1, 3, 1, 1)
    torch.testing.assert_close(model(one), one, rtol=1e-4, atol=1e-4)
    assert model[0].training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    two = torch.cat([one, 3 * one])
    torch.testing.assert_close(model(two).mean(0), torch.zeros(3, 1, 1), rtol=0, atol=1e-5)
    assert not torch.equal(before["0.running_mean"], model.state_dict()["0.running_mean"])


def test_a_network_with_features_of_one_pixel_trains_on_one_image() -> None:
    shape, batch = (16, 16, 3), Batch(torch.zeros(1, 16, 16, 3, dtype=torch.uint8), torch.tensor([1]), 1)
    classifier = Classifier(build("fast-cnn-small", shape, 3), [0.5] * 3, [0.3] * 3)
    accept_single_values(classifier)
    recipe = plain(optimizer="muon", precision="fp32")
    strategy = Strategy(classifier, shape, ALONE)
    step = TrainingStep(recipe, classifier, CrossEntropy(), strategy, ALONE, steps=4)
    assert step.take(0, batch).isfinite().all()
    assert all(value.isfinite().all() for value in classifier.state_dict().values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_replicas_in_threads_compute_in_the_recipe_s_precision(dtype: torch.dtype) -> None:
    """torch runs the replicas of `dp` in threads, where autocast has the data type of the device by default.

    It is float16 on a GPU and bfloat16 on a CPU: one of the two cases is never the default.
    """
    strategy = DataParallelStrategy(a_classifier(), SHAPE, ALONE)
    with torch.autocast("cpu", dtype):
        strategy.model(BATCH.images)
    with ThreadPoolExecutor(1) as threads:
        logits = threads.submit(strategy.model.module, BATCH.images).result()
    assert logits.dtype == dtype
    strategy.model(BATCH.images)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(strategy.model.module, BATCH.images).result().dtype == torch.float32


def test_fp16_scales_the_loss_and_skips_a_step_that_overflows() -> None:
    classifier = a_classifier()
    strategy = Strategy(classifier, SHAPE, ALONE)
    recipe = plain(precision="fp16", clip_norm=1.0, warmup_fraction=0)
    step = TrainingStep(recipe, classifier, CrossEntropy(), strategy, ALONE, steps=100)
    before = copy.deepcopy(classifier)
    step.take(0, BATCH)
    assert largest_difference(classifier, before) > 1e-4
    step.scaler.load_state_dict(step.scaler.state_dict() | {"scale": 1e38})
    before = copy.deepcopy(classifier)
    step.take(1, BATCH)
    assert largest_difference(classifier, before) == 0
    assert step.scaler.get_scale() == pytest.approx(5e37)


def test_bf16_is_rejected_on_a_gpu_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla T4")
    with pytest.raises(ParameterError, match=r"Tesla T4: this GPU has no bfloat16\. Set precision to fp16"):
        network_dtype(Precision.BF16, World(0, 1, torch.device("cuda", 0)))


def test_convolutions_see_channels_last_images() -> None:
    seen = []
    classifier = a_classifier()
    strategy = Strategy(classifier, SHAPE, ALONE)
    classifier.network[0].register_forward_pre_hook(lambda _layer, inputs: seen.append(inputs[0]))
    strategy.model(torch.zeros(2, 8, 8, 3, dtype=torch.uint8)[..., :1].contiguous())
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert classifier.network[3].weight.is_contiguous(memory_format=torch.channels_last)


def test_parts_of_a_batch_give_the_step_of_the_whole() -> None:
    def moved(parts: int) -> tuple[Classifier, torch.Tensor]:
        classifier = a_classifier()
        strategy = Strategy(classifier, SHAPE, ALONE)
        recipe = replace(plain(), warmup_fraction=0.0, precision="fp32")
        step = TrainingStep(recipe, classifier, CrossEntropy(), strategy, ALONE, steps=1, parts=parts)
        return classifier, step.take(0, BATCH)

    whole, totals = moved(1)
    for parts in (2, 3, 12):  # more parts than images: some are empty
        other, sums = moved(parts)
        assert largest_difference(whole, other) < 1e-6
        torch.testing.assert_close(sums, totals)


def test_ranks_exchange_gradients_once_in_a_step_of_several_parts() -> None:
    class Recording(Strategy):
        said: ClassVar[list[bool]] = []

        def exchange(self, *, is_last: bool) -> None:
            self.said.append(is_last)

    classifier = a_classifier()
    recipe = replace(plain(), precision="fp32")
    strategy = Recording(classifier, SHAPE, ALONE)
    TrainingStep(recipe, classifier, CrossEntropy(), strategy, ALONE, steps=1, parts=3).take(0, BATCH)
    assert Recording.said == [False, False, True]
