"""How several processes train one model: what wraps it, so that each step uses the mean gradient of all."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpipe.distributed import World
from ddpipe.model.architectures import Classifier, Shape


def parallel(classifier: Classifier, shape: Shape, world: World) -> nn.Module:
    """The classifier, with its gradients averaged over the ranks.

    DDP lays out its buckets anew after the first backward pass, and with them the order in which ranks are
    added up. One pass over an empty image puts that before the first step that counts, so that a resumed run
    adds in the same order as one that was never interrupted.
    """
    if world.size == 1:
        return classifier
    devices = [world.device] if world.device.type == "cuda" else None
    wrapped = DistributedDataParallel(classifier, device_ids=devices, gradient_as_bucket_view=True)
    untouched = copy.deepcopy(classifier.state_dict())
    wrapped(torch.zeros(1, *shape, dtype=torch.uint8, device=world.device)).sum().backward()
    classifier.load_state_dict(untouched)
    return wrapped
