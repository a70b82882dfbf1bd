"""The strategies by name.

single   one process, one device
dp       one process that splits each batch over the GPUs of its machine (nn.DataParallel)
ddp      every process has the whole model; gradients are averaged over them (DistributedDataParallel)
fsdp     every process has a share of each weight, its gradient and its optimizer state (fully_sharded.py)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ddpipe.distributed import World
from ddpipe.errors import ParameterError
from ddpipe.model.architectures import Classifier
from ddpipe.model.networks import Shape
from ddpipe.train.strategy import Strategy


class DataParallelStrategy(Strategy):
    """One process, every GPU of its machine."""

    def _shared(self, shape: Shape) -> nn.Module:
        return DataParallel(super()._shared(shape))


class DistributedDataParallelStrategy(Strategy):
    """Every rank has the whole model."""

    model: DistributedDataParallel

    def _shared(self, shape: Shape) -> nn.Module:
        device = self._world.device
        wrapped = DistributedDataParallel(
            super()._shared(shape),
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            forward_sync_buffers=False,  # the batch statistics of all ranks count: batch_norm.py
        )
        # DDP lays out its buckets anew after the first backward pass, and with them the order in which ranks
        # are added up. One pass before the first step that counts lets a resumed run add in the same order as
        # one that was never interrupted. Nothing is left of it: in evaluation mode no buffer changes.
        self._classifier.eval()
        wrapped(torch.zeros(1, *shape, dtype=torch.uint8, device=device)).sum().backward()
        wrapped.zero_grad()
        self._classifier.train()
        return wrapped

    def exchanging(self, *, gradients: bool) -> AbstractContextManager[None]:
        """As the base says; the last of several backward passes averages the gradients of all."""
        return nullcontext() if gradients else self.model.no_sync()


def strategy_named(name: str, world: World) -> Callable[[Classifier, Shape, World], Strategy]:
    """The strategy of this name, or for "auto" the one that suits the number of processes.

    One process alone has nobody to share with: ddp and fsdp are then the same as single.

    Raises:
        ParameterError: It is for one process, and there are several.
    """
    if name in {"single", "dp"} and world.size > 1:
        raise ParameterError(
            what="training cannot start",
            which=f"strategy {name!r}",
            seen=f"it is for one process, and there are {world.size}",
            do="Choose ddp or fsdp, or start one process.",
        )
    if name == "dp":
        return DataParallelStrategy
    if world.size == 1:
        return Strategy
    if name == "fsdp":
        from ddpipe.train.fully_sharded import FullyShardedStrategy  # noqa: PLC0415 - a second to import

        return FullyShardedStrategy
    return DistributedDataParallelStrategy
