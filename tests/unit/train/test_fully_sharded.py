"""What of a model is whole at one time under fsdp, and what of a checkpoint travels to all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torchvision
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ddpipe.distributed import World
from ddpipe.errors import ParameterError
from ddpipe.model.checkpoint import Checkpoint
from ddpipe.model.classifier import Classifier
from ddpipe.model.tensors import Share
from ddpipe.train.constants import LARGE_TENSOR
from ddpipe.train.fully_sharded import (
    FullyShardedStrategy,
    LargeInFiles,
    LargeOnMeta,
    _check_untied,
    outlined,
    units,
)
from ddpipe.train.replicated import DistributedDataParallelStrategy


def size(module: nn.Module) -> int:
    return sum(weights.numel() for weights in module.parameters())


def own_sizes(network: nn.Module) -> list[int]:
    """Weights of each unit without those of the units inside of it, and of what is left."""
    counted: set[nn.Parameter] = set()
    sizes = []
    for unit in [*units(network), network]:
        own = set(unit.parameters()) - counted
        counted |= own
        sizes.append(sum(one.numel() for one in own))
    return sizes


@pytest.mark.parametrize("name", ["vit_b_16", "swin_t", "convnext_tiny", "resnet50"])
def test_no_unit_holds_much_of_a_network(name: str) -> None:
    """A transformer lies in one child of its network: by children, all of it would be whole at one time."""
    with torch.device("meta"):
        network = torchvision.models.get_model(name, weights=None)
    sizes = own_sizes(network)
    assert sum(sizes) == size(network)
    assert len(sizes) > 4
    assert max(sizes) < size(network) / 4


def test_layers_and_containers_inside_of_a_part_are_no_units() -> None:
    """Attention uses the weights of its layers without a call, and owners what is in their containers."""
    attention = nn.MultiheadAttention(64, 4)
    block = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    network = nn.Sequential(nn.ModuleDict({"attention": attention, "block": block}), nn.Linear(64, 10))
    found = units(network, smallest=1)
    assert [id(unit) for unit in found] == [id(attention), id(network[1])]
    last = 64 * 10 + 10
    assert [len(units(nn.Sequential(network[1]), smallest)) for smallest in (last, last + 1)] == [1, 0]


def test_a_unit_has_at_least_2_to_the_18_weights() -> None:
    with torch.device("meta"):
        network = nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(511, 513, bias=False))
    assert [id(unit) for unit in units(network)] == [id(network[0])]


def test_a_weight_of_two_layers_is_not_sharded() -> None:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    network = nn.Sequential(first, second)
    with pytest.raises(ParameterError, match=r"1\.weight: two layers share this weight"):
        _check_untied(network)


def test_large_tensors_of_a_checkpoint_stay_on_rank_0() -> None:
    large, small = torch.ones(2**16), torch.ones(2**16 - 1)
    states = {"model": {"w": large, "b": small}, "optimizer": {"state": {0: {"m": large, "step": 3}}}}
    checkpoint = Checkpoint(
        *(),
        step=1,
        epoch=1,
        recipe={},
        dataset_id="",
        network={},
        world_size=1,
        states=states | {"metrics": large},
        history=[],
    )
    sent = outlined(checkpoint).states
    assert sent["model"]["w"].is_meta
    assert sent["model"]["w"].shape == large.shape
    assert sent["optimizer"]["state"][0]["m"].is_meta
    assert sent["optimizer"]["state"][0]["step"] == 3
    assert torch.equal(sent["model"]["b"], small)
    assert sent["metrics"] is large
    assert (
        outlined(replace(checkpoint, states={"training_model": {"w": large}}))
        .states["training_model"]["w"]
        .is_meta
    )
    assert checkpoint.states["model"]["w"] is large


class Network(nn.Module):
    """Large and small weights, with initial values of three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(512, 512), nn.Linear(512, 2)
        self.place = nn.Parameter(torch.empty(1, 300, 512).normal_(std=0.02))
        self.ones = nn.Parameter(torch.ones(LARGE_TENSOR))
        nn.init.trunc_normal_(self.small.weight, std=0.02)


@pytest.mark.parametrize("name", ["own", "vit_b_32", "swin_t", "regnet_y_400mf"])
def test_weights_in_files_have_the_values_of_weights_in_memory(name: str) -> None:
    def make() -> nn.Module:
        torch.manual_seed(1)
        return Network() if name == "own" else torchvision.models.get_model(name, weights=None)

    usual = make().state_dict()
    with LargeInFiles():
        in_files = make().state_dict()
    assert usual.keys() == in_files.keys()
    assert all(torch.equal(value, in_files[key]) for key, value in usual.items())
    with LargeOnMeta():
        on_meta = make().state_dict()
    assert {key: value.shape for key, value in on_meta.items()} == {k: v.shape for k, v in usual.items()}
    assert all(value.is_meta == (value.numel() >= LARGE_TENSOR) for value in on_meta.values())


@pytest.mark.parametrize("context", [LargeInFiles, LargeOnMeta])
def test_tensors_outside_of_memory_are_otherwise_as_asked_for(context: type[LargeOnMeta]) -> None:
    with context():
        large = torch.zeros(2, LARGE_TENSOR, dtype=torch.float64, requires_grad=True)
        placed = torch.zeros(LARGE_TENSOR, device="cpu")
    assert (large.shape, large.dtype, large.requires_grad) == ((2, LARGE_TENSOR), torch.float64, True)
    assert large.is_meta is (context is LargeOnMeta)
    assert not placed.is_meta, "who names a device gets it"


@pytest.fixture
def alone() -> Iterator[World]:
    """A process group of one rank: what it shares with others is all there is."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield World(0, 1, torch.device("cpu"))
    dist.destroy_process_group()


SHAPE = (8, 8, 1)


def a_classifier() -> Classifier:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))
    return Classifier(nn.Sequential(*layers), [0.5], [0.3])


def test_shared_weights_have_the_values_that_they_had_and_travel_as_shares(alone: World) -> None:
    classifier = a_classifier()
    classifier.get_buffer("network.1.num_batches_tracked").add_(7)
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    strategy = FullyShardedStrategy(classifier, SHAPE, alone)
    assert strategy.model is classifier
    weights = dict(classifier.named_parameters())
    assert all(isinstance(value, DTensor) for value in weights.values())
    portable = strategy.portable(classifier.state_dict())
    for name, value in before.items():
        found = portable[name]
        assert isinstance(found, Share) is (name in weights)
        if isinstance(found, Share):
            assert (found.shape, found.first) == (tuple(value.shape), 0)
            found = found.values
        torch.testing.assert_close(found, value, rtol=0, atol=0)


def test_tensors_numbers_and_shares_get_back_to_where_they_were(alone: World) -> None:
    strategy = FullyShardedStrategy(classifier := a_classifier(), SHAPE, alone)
    like = classifier.state_dict()
    name, count = "network.3.weight", torch.tensor(9, dtype=torch.int64)
    values = torch.randn(like[name].shape)
    for given in (values, Share(tuple(values.shape), 0, values)):
        read = strategy.shares({name: given}, like)[name]
        assert isinstance(read, DTensor)
        assert read.placements == like[name].placements
        torch.testing.assert_close(read.to_local(), values, rtol=0, atol=0)
    steps = torch.tensor(5.0)
    same = strategy.shares(
        {"step": steps, "number": 3, "count": count},
        {"step": like[name], "number": like[name], "count": like["network.1.num_batches_tracked"]},
    )
    assert same["step"] is steps
    assert same["number"] == 3
    assert (same["count"], same["count"].dtype) == (9, torch.int64)
    absent = strategy.shares({"count": torch.empty_like(count, device="meta")}, {"count": count})["count"]
    assert (absent.dtype, absent.shape, absent.device) == (torch.int64, (), alone.device)
    with pytest.raises(ValueError, match=r"a tensor of shape \(2, 2\) in pieces, where \(3, 144\) is needed"):
        strategy.shares({name: Share((2, 2), 0, torch.ones(2, 2))}, like)
    with pytest.raises(ValueError, match="in pieces"):
        strategy.shares({"a": Share((2,), 0, torch.ones(2))}, {"a": torch.ones(2)})


def test_a_weight_of_two_layers_is_refused_before_it_is_shared(alone: World) -> None:
    classifier = a_classifier()
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    classifier.network = nn.Sequential(classifier.network, first, second)
    with pytest.raises(ParameterError, match="two layers share this weight"):
        FullyShardedStrategy(classifier, SHAPE, alone)


def test_gradients_are_exchanged_after_the_last_part_only(alone: World) -> None:
    strategy, images = FullyShardedStrategy(a_classifier(), SHAPE, alone), torch.ones(2, *SHAPE).byte()
    for is_last in (False, True):
        strategy.exchange(is_last=is_last)
        strategy.model(images).sum().backward()
        assert all((weights.grad is not None) is is_last for weights in strategy.model.parameters())


def test_ddp_begins_as_if_its_first_pass_had_not_been(alone: World) -> None:
    """It would be seen in the running statistics, in gradients, or in the mode."""
    classifier, before = a_classifier(), a_classifier().state_dict()
    strategy = DistributedDataParallelStrategy(classifier, SHAPE, alone)
    assert all(torch.equal(before[name], value) for name, value in classifier.state_dict().items())
    assert all(module.training for module in classifier.modules())
    assert not any(weights.grad.any() for weights in classifier.parameters() if weights.grad is not None)
    assert strategy.model.module is classifier
    assert not strategy.model.forward_sync_buffers
    assert strategy.model.gradient_as_bucket_view, "else gradients are in memory twice"
    for is_last in (False, True):
        strategy.exchange(is_last=is_last)
        assert strategy.model.require_backward_grad_sync is is_last
