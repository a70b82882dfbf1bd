"""What of a model is whole at one time under fsdp, and what of a checkpoint travels to all ranks."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

from ddpipe.errors import ParameterError
from ddpipe.model.checkpoint import Checkpoint
from ddpipe.train.constants import LARGE_TENSOR
from ddpipe.train.fully_sharded import LargeInFiles, LargeOnMeta, _check_untied, outlined, units


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


def test_a_weight_of_two_layers_is_not_sharded() -> None:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    network = nn.Sequential(first, second)
    with pytest.raises(ParameterError, match=r"1\.weight: two layers share this weight"):
        _check_untied(network)


def test_large_tensors_of_a_checkpoint_stay_on_rank_0() -> None:
    large, small = torch.ones(LARGE_TENSOR), torch.ones(3)
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
