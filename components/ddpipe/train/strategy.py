"""How processes and devices share the training of one model: what every strategy does.

States that leave a strategy are whole and the same for all of them: a checkpoint made by one may go on, or be
evaluated, under another.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from ddpipe.distributed import World
from ddpipe.model.architectures import Classifier
from ddpipe.model.networks import Shape

State = dict[str, Any]


class Strategy:
    """One process and one device; the others differ in what they override.

    Attributes:
        model: What a training step calls.
        fused_optimizer: Whether one kernel may update all weights.
    """

    fused_optimizer: ClassVar[bool] = True

    def __init__(self, classifier: Classifier, shape: Shape, world: World) -> None:
        """Share the training of `classifier`, of images of this shape; its weights are equal on all ranks."""
        self._classifier, self._world = classifier, world
        self.model = self._shared(shape)

    def _shared(self, shape: Shape) -> nn.Module:
        del shape
        return self._classifier.to(memory_format=torch.channels_last)

    def exchanging(self, *, gradients: bool) -> AbstractContextManager[None]:
        """Whether ranks average their gradients in the backward pass of this block, or keep their own."""
        del gradients
        return nullcontext()

    def whole(self, state: State) -> State:
        """A state dict whose tensors are whole; all ranks have to call this."""
        return state

    def shares(self, state: State, like: State) -> State:
        """This rank's shares of whole tensors, laid out as those of the same names in `like`."""
        del like
        return state

    def load_model(self, state: State) -> None:
        """Take up whole weights."""
        self._classifier.load_state_dict(self.shares(state, self._classifier.state_dict()))

    def load_optimizer(self, optimizer: Optimizer, state: State) -> None:
        """Take up a whole state of the optimizer."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        own = {
            number: self.shares(values, dict.fromkeys(values, parameters[number]))
            for number, values in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": own})
