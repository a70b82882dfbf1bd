"""How good the model is on the validation split: every sample once, whatever the number of processes."""

from __future__ import annotations

import torch
from torch import nn

from ddpipe.data.reader import SplitReader
from ddpipe.distributed import World
from ddpipe.train.loader import every_sample
from ddpipe.train.step_metrics import loss_and_correct


def validate(model: nn.Module, split: SplitReader, world: World) -> tuple[float, float]:
    """Loss and accuracy of the model on a split."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=world.device)
    with torch.no_grad():
        for batch in every_sample(split, world):
            sums += loss_and_correct(model(batch.images), batch.labels)
    model.train()
    loss, accuracy = (world.sum(sums) / len(split)).tolist()
    return loss, accuracy
