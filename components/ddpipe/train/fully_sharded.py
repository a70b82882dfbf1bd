"""Fully sharded data parallelism (FSDP2): a model may be larger than the memory of one device.

No rank ever holds the whole model. Rank 0 initializes large tensors in files that are mapped into its memory,
which the system may write to disk and read again; on the other ranks they have shapes and no values (torch's
meta device). The model is then sharded, and each rank receives its share, tensor by tensor. The values are
those that they would have in memory: the same random numbers are drawn. A checkpoint's pieces are written and
read by the ranks that need them (model/tensors.py).

Source: Zhao et al., PyTorch FSDP, VLDB 2023; torch.distributed.fsdp.fully_shard.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ddpipe.data.manifest import Shape
from ddpipe.errors import ParameterError
from ddpipe.model.checkpoint import Checkpoint
from ddpipe.model.tensors import Share, rows_of
from ddpipe.processes.machine import return_memory
from ddpipe.train.constants import LARGE_TENSOR, SMALLEST_UNIT
from ddpipe.train.replicated import State, Strategy

TRAVELLING = ("model", "training_model", "optimizer")  # states of a checkpoint that the ranks share


class FullyShardedStrategy(Strategy):
    """Every rank has a share of each weight; the weights of a block are whole only while it computes."""

    fused_optimizer = False  # torch has no such kernel for SGD on sharded weights

    def _shared(self, shape: Shape) -> nn.Module:
        # FSDP2 shards contiguous weights only: they are not channels-last.
        del shape
        return_memory()
        _check_untied(self._classifier)
        mesh = init_device_mesh(self._world.device.type, (self._world.size,))
        values = dict(_tensors(self._classifier)) if self._world.is_main else {}
        # From here on no rank has the whole model: shards are made empty, then filled tensor by tensor.
        self._classifier.to("meta")
        for unit in units(self._classifier.network):
            fully_shard(unit, mesh=mesh)
        fully_shard(self._classifier, mesh=mesh)
        self._classifier.to_empty(device=self._world.device)
        with torch.no_grad():
            for name, empty in _tensors(self._classifier):
                own = self._distributed(values.pop(name, None), empty)
                (empty.to_local() if isinstance(empty, DTensor) else empty).copy_(own)
        return self._classifier

    def exchange(self, *, is_last: bool) -> None:
        """As the base says."""
        self._classifier.set_requires_gradient_sync(is_last)  # type: ignore[operator]  # fully_shard adds it

    def _distributed(self, value: Tensor | None, like: Tensor) -> Tensor:
        """This rank's share of a tensor whose values rank 0 has; all of it if `like` is not sharded."""
        device = like.device
        whole = (
            torch.empty(like.shape, dtype=like.dtype, device=device)
            if value is None
            else value.detach().to(device, like.dtype).contiguous()
        )
        if isinstance(like, DTensor):
            return distribute_tensor(whole, like.device_mesh, like.placements).to_local()
        dist.broadcast(whole, 0)
        return whole

    def portable(self, state: State) -> State:
        """As the base says."""
        # torch's get_optimizer_state_dict is not for this: without a state, it takes a step to get one, and
        # leaves SGD a momentum that it should not have.
        shared: State = tree_map(self._portable, state)
        return shared

    def _portable(self, value: Any) -> Any:  # noqa: ANN401 - a state holds numbers as well
        if not isinstance(value, DTensor):
            return value
        first = rows_of(self._world.rank, self._world.size, len(value)).start
        return Share(tuple(value.shape), first, value.to_local())

    def shares(self, state: State, like: State) -> State:
        """As the base says; large tensors are on rank 0 only (`outlined`), and travel from there."""
        return {name: self._share(value, like[name]) for name, value in state.items()}

    def _share(self, value: Any, like: Tensor) -> Any:  # noqa: ANN401 - a state holds numbers as well
        if isinstance(value, Share):
            return _sharded(value, like)
        if not isinstance(value, Tensor):
            return value
        if isinstance(like, DTensor) and value.shape != like.shape:
            return value  # such as the number of steps of a weight
        own = self._distributed(None if value.is_meta else value, like)
        return _sharded(Share(tuple(like.shape), 0, own), like) if isinstance(like, DTensor) else own


def _sharded(share: Share, like: Tensor) -> Tensor:
    """A rank's own rows as a part of the whole."""
    if not isinstance(like, DTensor) or like.shape != share.shape:
        raise ValueError(f"a tensor of shape {share.shape} in pieces, where {tuple(like.shape)} is needed")
    own = share.values.to(like.device)
    return DTensor.from_local(
        own, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(module.named_parameters(), module.named_buffers())


def _check_untied(module: nn.Module) -> None:
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    once = {name for name, _ in module.named_parameters()}
    if tied := [name for name in names if name not in once]:
        raise ParameterError(
            what="the model cannot be sharded",
            which=tied[0],
            seen="two layers share this weight",
            do="Train with strategy ddp, or give each layer its own weight.",
        )


def outlined(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as all ranks but the first need it to resume: large tensors without their values."""
    outlines = {name: checkpoint.states[name] for name in TRAVELLING if name in checkpoint.states}
    return replace(checkpoint, states=checkpoint.states | tree_map(_outline, outlines))


def _outline(value: Any) -> Any:  # noqa: ANN401 - a state holds numbers as well
    is_large = isinstance(value, Tensor) and value.numel() >= LARGE_TENSOR
    return torch.empty_like(value, device="meta") if is_large else value


def units(network: nn.Module, smallest: int = SMALLEST_UNIT) -> list[nn.Module]:
    """The parts of a network whose weights are whole at one time, inner ones first.

    They are its children and the blocks inside of them. A layer alone is none, as attention uses the weights
    of its layers without calling them; nor is a container, as its owner may call what it contains.
    """
    found: list[nn.Module] = []
    tops = set(network.children())

    def left(module: nn.Module) -> int:
        """Weights of a module that belong to no part inside of it."""
        parts = [] if isinstance(module, nn.MultiheadAttention) else list(module.children())
        own = sum(one.numel() for one in module.parameters(recurse=not parts))
        count = own + sum(left(child) for child in parts)
        is_container = type(module) in {nn.ModuleList, nn.ModuleDict, nn.Sequential} and bool(parts)
        is_part = module in tops or (bool(list(module.children())) and not is_container)
        if module is not network and is_part and not isinstance(module, _LISTS) and count >= smallest:
            found.append(module)
            return 0
        return count

    left(network)
    return found


_LISTS = (nn.ModuleList, nn.ModuleDict)

_CREATORS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
"""What networks create their weights and buffers with."""


class LargeOnMeta(TorchFunctionMode):
    """Large tensors that are created in this block have a shape and no values."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401 - torch's protocol
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Create a tensor, or call any other function of torch."""
        del types
        given = kwargs or {}
        if func in _CREATORS and given.get("device") is None:
            outline = func(*args, **{**given, "device": "meta"})
            if outline.numel() >= LARGE_TENSOR:
                return self._placed(outline, lambda: func(*args, **given), has_values=func is not torch.empty)
        return func(*args, **given)

    def _placed(self, outline: Tensor, create: Callable[[], Tensor], *, has_values: bool) -> Tensor:
        del create, has_values
        return outline


class LargeInFiles(LargeOnMeta):
    """Large tensors that are created in this block lie in files, which are gone when the tensors are."""

    def _placed(self, outline: Tensor, create: Callable[[], Tensor], *, has_values: bool) -> Tensor:
        with tempfile.TemporaryDirectory(prefix="ddpipe-weights-") as folder:
            file = str(Path(folder) / "tensor")
            mapped = torch.from_file(file, shared=True, size=outline.numel(), dtype=outline.dtype)
        tensor = mapped.view(outline.shape)
        if has_values:
            tensor.copy_(create())
        return tensor.requires_grad_(outline.requires_grad)
