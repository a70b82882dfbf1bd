"""One training step: forward, loss, backward and update, of this rank's share of a global batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from ddpipe.distributed import World
from ddpipe.model.architectures import Classifier
from ddpipe.train.batch_norm import RunningStatistics
from ddpipe.train.loader import Batch
from ddpipe.train.objective import Objective
from ddpipe.train.optimizer import build_optimizer, set_learning_rate
from ddpipe.train.recipe import Recipe
from ddpipe.train.strategy import Strategy


class TrainingStep:
    """What every step does with the model; nothing in it waits for the device.

    Attributes:
        strategy: How the ranks share the model; another one may take its place between steps.
        optimizer: Its state is all that a step leaves behind, beside the weights.
    """

    def __init__(
        self,
        recipe: Recipe,
        classifier: Classifier,
        objective: Objective,
        strategy: Strategy,
        world: World,
        *,
        bf16: bool,
    ) -> None:
        self._recipe, self._objective, self._world, self._bf16 = recipe, objective, world, bf16
        self._parameters = list(classifier.parameters())
        self._running_statistics = RunningStatistics(classifier, world)
        self.strategy = strategy
        self.optimizer = build_optimizer(recipe, classifier, fused=strategy.fused_optimizer)

    def take(self, batch: Batch, learning_rate: float) -> Tensor:
        """Update the weights once.

        Args:
            batch: This rank's share, which may be empty.
            learning_rate: Of this step.

        Returns:
            The objective's `totals` over the share.
        """
        set_learning_rate(self.optimizer, learning_rate)
        self.optimizer.zero_grad()
        parts = list(split(batch, self._recipe.accumulation_steps))
        totals = [self._backward(part, last=part is parts[-1]) for part in parts]
        if self._recipe.clip_norm:
            clip_grad_norm_(self._parameters, self._recipe.clip_norm)
        self.optimizer.step()
        self._running_statistics.average()
        return torch.stack(totals).sum(0)

    def _backward(self, part: Batch, *, last: bool) -> Tensor:
        """Add the gradient of a part of the share; the last part exchanges the sum with the other ranks."""
        with self.strategy.exchanging(gradients=last):
            with torch.autocast(self._world.device.type, torch.bfloat16, enabled=self._bf16):
                logits = self.strategy.model(part.images)
            logits = logits.float()
            losses = self._objective.losses(logits, part.labels)
            # The mean over the global batch, as the ranks average their gradients, whatever their shares are.
            torch.autograd.backward(losses.sum() * self._world.size / part.size)
        return self._objective.totals(losses.detach(), logits.detach(), part.labels)


def split(batch: Batch, parts: int) -> Iterator[Batch]:
    """The batch in so many parts of nearly the same size; some may be empty."""
    if parts == 1:
        yield batch
        return
    for images, labels in zip(
        batch.images.tensor_split(parts), batch.labels.tensor_split(parts), strict=True
    ):
        yield Batch(images, labels, batch.size)
