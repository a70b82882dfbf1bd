"""Muon: orthogonal updates of matrices, Adam's of the rest."""

from __future__ import annotations

import copy

import pytest
import torch
import torchvision
from recipes import plain
from torch import nn
from torch.nn.functional import cross_entropy

from ddpipe.train.optimizer import Muon, build_optimizer, hidden_matrices, orthogonal


def a_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3)
    )


def train(network: nn.Module, optimizer: Muon, steps: int) -> list[float]:
    images = torch.randn(30, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    labels, losses = torch.arange(30) % 3, []
    for _ in range(steps):
        loss = cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
def test_an_orthogonal_update_moves_every_direction_about_alike(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    update = orthogonal(torch.randn(shape), dtype)
    assert update.dtype is torch.float32
    values = torch.linalg.svdvals(update)
    assert 0.3 < values.min() < values.max() < 1.6


def test_an_update_is_computed_in_the_type_that_is_asked_for() -> None:
    updated = {}
    for dtype in (torch.float32, torch.bfloat16):
        network = a_network()
        train(network, Muon(network, lr=0.1, momentum=0.6, dtype=dtype), 1)
        updated[dtype] = network[0].weight.detach()
    exact, rounded = updated.values()
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(exact, rounded, rtol=0, atol=0.02)


def test_it_learns_by_heart_in_a_few_steps() -> None:
    network = a_network()
    losses = train(network, Muon(network, lr=0.1, momentum=0.6), 30)
    assert losses[-1] < 0.1 * losses[0]


def test_rows_keep_their_length_and_the_first_step_is_the_rate() -> None:
    network = a_network()
    bias = network[4].bias.detach().clone()
    train(network, Muon(network, lr=0.01, momentum=0.6), 1)
    assert abs(network[0].weight.norm() / 8**0.5 - 1) < 0.02
    torch.testing.assert_close((network[4].bias - bias).abs(), torch.full((3,), 0.01 / 8))


def test_weights_that_are_not_learned_stay() -> None:
    network = a_network()
    network[1].weight.requires_grad = False
    train(network, Muon(network, lr=0.1, momentum=0.6), 2)
    assert torch.equal(network[1].weight, torch.ones(8))


def test_it_resumes_from_its_state_bit_for_bit() -> None:
    straight, resumed = a_network(), a_network()
    train(straight, Muon(straight, lr=0.1, momentum=0.6), 4)
    first = Muon(resumed, lr=0.1, momentum=0.6)
    train(resumed, first, 2)
    second = Muon(resumed, lr=0.1, momentum=0.6)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(resumed, second, 2)
    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_updates_of_matrices_are_those_of_torch_s_muon() -> None:
    """Nesterov's momentum, then Newton-Schulz; of square matrices, whose step torch does not scale."""
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False))
    ours, reference = network[0].weight, nn.Parameter(network[0].weight.detach().clone())
    own = Muon(network, lr=0.1, momentum=0.6)
    theirs = torch.optim.Muon([reference], lr=0.1, momentum=0.6, weight_decay=0, ns_steps=3, eps=1e-8)
    for _ in range(4):
        gradient = torch.randn(6, 6)
        ours.grad, reference.grad = gradient.clone(), gradient.clone()
        scaled = ours.detach() * 6**0.5 / ours.detach().norm()
        before = reference.detach().clone()
        own.step()
        theirs.step()
        torch.testing.assert_close(scaled - ours.detach(), before - reference.detach(), rtol=0.05, atol=2e-3)


def test_updates_of_the_rest_are_those_of_torch_s_adam() -> None:
    """At an eighth of the rate."""
    network = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    ours = [weights for name, weights in network.named_parameters() if name != "0.weight"]
    reference = [nn.Parameter(weights.detach().clone()) for weights in ours]
    own = Muon(network, lr=0.08, momentum=0.6)
    theirs = torch.optim.Adam(reference, lr=0.01, betas=(0.8, 0.95), eps=1e-8)
    for step in range(5):
        for one, other in zip(ours, reference, strict=True):
            gradient = torch.randn(other.shape) * 10 ** (step - 8)
            one.grad, other.grad = gradient, gradient.clone()
        own.step()
        theirs.step()
        for one, other in zip(ours, reference, strict=True):
            torch.testing.assert_close(one, other)


def test_a_recipe_s_rate_and_momentum_are_those_of_all_weights() -> None:
    recipe = plain(optimizer="muon", learning_rate=0.2, momentum=0.7)
    groups = build_optimizer(recipe, a_network(), fused=False).param_groups
    assert [(group["lr"], group["momentum"]) for group in groups] == [(0.2, 0.7), (0.2, 0.7)]


def test_the_maps_of_attention_count_as_hidden_matrices() -> None:
    """Whether its queries, keys and values have one width or several; no bias counts."""
    for attention, shapes in (
        (nn.MultiheadAttention(6, 2), [(18, 6), (6, 6)]),
        (nn.MultiheadAttention(6, 2, kdim=4, vdim=5), [(6, 6), (6, 4), (6, 5), (6, 6)]),
    ):
        assert [tuple(weights.shape) for weights in hidden_matrices(attention)] == shapes


def test_only_maps_between_features_count_as_hidden_matrices() -> None:
    """Not the layer scales of ConvNeXt nor the embeddings of a ViT: their length has a meaning."""
    for name, excluded in (
        ("convnext_tiny", {"layer_scale"}),
        ("vit_b_16", {"encoder.pos_embedding", "class_token"}),
    ):
        with torch.device("meta"):
            network = getattr(torchvision.models, name)()
        hidden = set(map(id, hidden_matrices(network)))
        others = {
            key for key, value in network.named_parameters() if value.ndim > 1 and id(value) not in hidden
        }
        assert others
        assert all(any(key.endswith(one) for one in excluded) for key in others)
