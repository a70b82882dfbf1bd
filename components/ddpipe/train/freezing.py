"""Fine-tuning in two phases: first the last layer alone learns, then all weights."""

from __future__ import annotations

from torch import nn


def head_of(network: nn.Module) -> nn.Module:
    """The last layer that has weights of its own: what gives the logits."""
    return [layer for layer in network.modules() if list(layer.parameters(recurse=False))][-1]


class Backbone:
    """All of a network but its head, which may be frozen."""

    def __init__(self, network: nn.Module) -> None:
        self._network, self._head = network, head_of(network)
        own = set(self._head.parameters())
        # A weight that its network never trains stays as it is.
        self._weights = [one for one in network.parameters() if one.requires_grad and one not in own]
        self.frozen = False

    def freeze(self, *, frozen: bool) -> None:
        """Let the weights rest, or learn."""
        self.frozen = frozen
        for weight in self._weights:
            weight.requires_grad_(not frozen)

    def train(self) -> None:
        """Set the network to training mode; what is frozen keeps its running statistics, too."""
        self._network.train(not self.frozen)
        self._head.train()
