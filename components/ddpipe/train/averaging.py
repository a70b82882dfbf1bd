"""An exponential moving average of the weights: evaluated and exported in place of the last ones.

Source: Polyak and Juditsky, SIAM J. Control Optim. 30(4), 1992; the warm-up is that of TensorFlow's
ExponentialMovingAverage, so that the first weights are soon forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


class WeightAverage:
    """The average of all floating-point weights and buffers of a model.

    Attributes:
        weights: By their names in the model's state dict.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start from the present weights; in the long run a step's share is `1 - decay`."""
        self._model, self._decay = model, decay
        self.weights = {name: value.clone() for name, value in self._current().items()}

    def _current(self) -> Weights:
        return {name: value for name, value in self._model.state_dict().items() if value.is_floating_point()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step, counted from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for name, value in self._current().items():
            self.weights[name].lerp_(value, 1 - decay)

    def load(self, weights: Weights) -> None:
        """Go on from these averages."""
        for name, value in self.weights.items():
            value.copy_(weights[name])

    @contextmanager
    @torch.no_grad()
    def in_place(self) -> Iterator[None]:
        """The model has the averaged weights inside of this block."""
        current = self._current()
        kept = {name: value.clone() for name, value in current.items()}
        for name, value in current.items():
            value.copy_(self.weights[name])
        try:
            yield
        finally:
            # Asked for anew: a sharded model may have put whole weights in their place meanwhile.
            for name, value in self._current().items():
                value.copy_(kept[name])
