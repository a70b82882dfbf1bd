"""How good the model is on the validation split: every sample once, whatever the number of processes."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ddpipe.data.reader import SplitReader
from ddpipe.distributed import World
from ddpipe.train.loader import every_sample
from ddpipe.train.objective import Objective, macro_auc


def validate(model: nn.Module, split: SplitReader, world: World, objective: Objective) -> dict[str, float]:
    """Loss and metric of the model on a split, by their names; the same on all ranks.

    The metric is that of the whole split, never an average over batches or ranks.

    Args:
        model: In evaluation mode.
        split: What is scored.
        world: The processes that share the work.
        objective: Without class weights or smoothing, so that recipes can be compared.
    """
    totals = torch.zeros(len(objective.sums), dtype=torch.float64, device=world.device)
    logits = []
    with torch.no_grad():
        for batch in every_sample(split, world):
            predicted = model(batch.images).float()
            totals += objective.totals(objective.losses(predicted, batch.labels), predicted, batch.labels)
            if objective.on_whole_split:
                logits.append(predicted.cpu().numpy())
    means = dict(zip(objective.sums, (world.sum(totals) / len(split)).tolist(), strict=True))
    if objective.on_whole_split:
        gathered = world.gather(np.concatenate(logits))
        # Logits that are not numbers have no order; the loss says so.
        known = world.is_main and bool(np.isfinite(gathered).all())
        score = macro_auc(gathered, split.labels) if known else 0.0
        means[objective.metric] = world.sum(torch.tensor(score, dtype=torch.float64)).item()
    return means
