"""Muon: orthogonal updates of matrices, Adam's of the rest."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ddpipe.train.muon import REST, Muon, orthogonal


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


def test_an_orthogonal_update_moves_every_direction_about_alike() -> None:
    for shape in ((16, 40), (40, 16)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert 0.3 < values.min() < values.max() < 1.6


def test_it_learns_by_heart_in_a_few_steps() -> None:
    network = a_network()
    losses = train(network, Muon(network, lr=0.1, momentum=0.6), 30)
    assert losses[-1] < 0.1 * losses[0]


def test_rows_of_hidden_matrices_keep_their_length_and_adams_first_step_is_the_rate() -> None:
    network = a_network()
    bias = network[4].bias.detach().clone()
    train(network, Muon(network, lr=0.01, momentum=0.6), 1)
    assert abs(network[0].weight.norm() / 8**0.5 - 1) < 0.02
    torch.testing.assert_close((network[4].bias - bias).abs(), torch.full((3,), 0.01 * REST))


def test_weights_that_are_not_learned_stay() -> None:
    network = a_network()
    network[1].weight.requires_grad = False
    train(network, Muon(network, lr=0.1, momentum=0.6), 2)
    assert torch.equal(network[1].weight, torch.ones(8))


def test_it_goes_on_from_its_state_bit_for_bit() -> None:
    straight, resumed = a_network(), a_network()
    train(straight, Muon(straight, lr=0.1, momentum=0.6), 4)
    first = Muon(resumed, lr=0.1, momentum=0.6)
    train(resumed, first, 2)
    second = Muon(resumed, lr=0.1, momentum=0.6)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(resumed, second, 2)
    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
