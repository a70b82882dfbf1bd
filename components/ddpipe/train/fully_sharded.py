"""Fully sharded data parallelism (FSDP2): a model may be larger than the memory of one device.

Source: Zhao et al., PyTorch FSDP, VLDB 2023; torch.distributed.fsdp.fully_shard.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from ddpipe.data.manifest import Shape
from ddpipe.model.checkpoint import Checkpoint
from ddpipe.train.replicated import State, Strategy

LARGE = 2**16
"""Values from which on a tensor is not sent to ranks that need a share of it only."""

TRAVELLING = ("model", "training_model", "optimizer")
"""States of a checkpoint that are shared among the ranks."""


class FullyShardedStrategy(Strategy):
    """Every rank has a share of each weight; the weights of a layer are whole only while it computes."""

    fused_optimizer = False  # torch has no such kernel for SGD on sharded weights

    def _shared(self, shape: Shape) -> nn.Module:
        # FSDP2 shards contiguous weights only: they are not channels-last. It moves each layer to the device
        # and shards it before the next: a device never holds the whole model.
        del shape
        mesh = init_device_mesh(self._world.device.type, (self._world.size,))
        for layer in self._classifier.network.children():
            if not isinstance(layer, (nn.ModuleList, nn.ModuleDict)) and list(layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(self._classifier, mesh=mesh)
        return self._classifier

    def exchanging(self, *, gradients: bool) -> AbstractContextManager[None]:
        """As the base says; gradients that are kept need the memory of the whole model."""
        self._classifier.set_requires_gradient_sync(gradients)  # type: ignore[operator]
        return nullcontext()

    def whole(self, state: State) -> State:
        """As the base says."""
        # torch's get_optimizer_state_dict is not for this: without a state, it takes a step to get one, and
        # leaves SGD a momentum that it should not have.
        gathered: State = tree_map(self._whole, state)
        return gathered

    def _whole(self, value: Any) -> Any:  # noqa: ANN401 - a state holds numbers as well
        """On rank 0 in main memory: a device holds its share of the model and one whole tensor at a time."""
        if not isinstance(value, DTensor):
            return value
        tensor = value.full_tensor()
        return tensor.to("cpu", copy=True) if self._world.is_main else None

    def shares(self, state: State, like: State) -> State:
        """As the base says; large tensors are on rank 0 only (`outlined`), and travel from there."""
        return {name: self._share(value, like[name]) for name, value in state.items()}

    def _share(self, value: Any, like: Tensor) -> Any:  # noqa: ANN401 - a state holds numbers as well
        if not isinstance(value, Tensor):
            return value
        travels = value.numel() >= LARGE
        if travels:
            value = torch.empty_like(value, device=like.device) if value.is_meta else value.to(like.device)
        if isinstance(like, DTensor) and value.shape == like.shape:
            source = 0 if travels else None
            return distribute_tensor(
                value.to(like.device), like.device_mesh, like.placements, src_data_rank=source
            )
        if travels:
            dist.broadcast(value, 0)
        return value


def outlined(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as all ranks but the first need it to resume: large tensors without their values.

    Each rank then holds its share of them, and one whole tensor at a time.
    """
    outlines = {name: checkpoint.states[name] for name in TRAVELLING if name in checkpoint.states}
    return replace(checkpoint, states=checkpoint.states | tree_map(_outline, outlines))


def _outline(value: Any) -> Any:  # noqa: ANN401 - a state holds numbers as well
    is_large = isinstance(value, Tensor) and value.numel() >= LARGE
    return torch.empty_like(value, device="meta") if is_large else value
