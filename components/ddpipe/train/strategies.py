"""How processes and devices share the training of one model: the strategies by name.

single   one process, one device
dp       one process that splits each batch over the GPUs of its machine (nn.DataParallel)
ddp      every process has the whole model; gradients are averaged over them (DistributedDataParallel)
fsdp     every process has a share of each weight, its gradient and its optimizer state (fully_sharded.py)

A checkpoint made by one may be resumed, or evaluated, under another: its tensors are whole, or in pieces that
are joined when it is read (model/tensors.py).

Batch normalization: in a training step each rank normalizes by the statistics of its own share of the batch.
`RunningStatistics` keeps the running averages equal on all ranks, as the mean over them, after every step:
validation and every checkpoint then use the same values, and a resumed training is bit for bit the same.
`SyncBatchNorm` normalizes by the statistics of the global batch instead, so that the model is that of one
process; each such layer has to wait for all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from ddpipe.data.manifest import Shape
from ddpipe.distributed import World
from ddpipe.errors import ParameterError
from ddpipe.model.classifier import Classifier
from ddpipe.train.recipe import Strategies
from ddpipe.train.replicated import DataParallelStrategy, DistributedDataParallelStrategy, Strategy


def is_sharded(name: str, world: World) -> bool:
    """Whether each of these ranks has a share of the model only."""
    return Strategies(name) is Strategies.FSDP and world.size > 1


def strategy_named(name: str, world: World) -> Callable[[Classifier, Shape, World], Strategy]:
    """The strategy of this name; for one process, ddp and fsdp are the same as single."""
    chosen = Strategies(name)
    match chosen:
        case Strategies.SINGLE | Strategies.DP if world.size > 1:
            raise ParameterError(
                what="training cannot start",
                which=f"strategy {name!r}",
                seen=f"it is for one process, and there are {world.size}",
                do="Choose ddp or fsdp, or start one process.",
            )
        case Strategies.DP:
            return DataParallelStrategy
        case Strategies.SINGLE | Strategies.AUTO | Strategies.DDP | Strategies.FSDP if world.size == 1:
            return Strategy
        case Strategies.FSDP:
            from ddpipe.train.fully_sharded import FullyShardedStrategy  # noqa: PLC0415 - a second to import

            return FullyShardedStrategy
        case Strategies.AUTO | Strategies.DDP | Strategies.SINGLE:
            return DistributedDataParallelStrategy
        case other:
            assert_never(other)


class RunningStatistics:
    """The running mean and variance of every batch normalization of a model."""

    def __init__(self, model: nn.Module, world: World) -> None:
        self._world = world
        self._buffers = [
            buffer
            for module in model.modules()
            if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm)
            for buffer in (module.running_mean, module.running_var)
            if buffer is not None
        ]

    def average(self) -> Callable[[], None]:
        """Begin to add up what a forward pass left; what it returns gives every rank the mean over all."""
        if self._world.size == 1 or not self._buffers:
            return lambda: None
        total = torch.cat(self._buffers)
        adding = dist.all_reduce(total, async_op=True)

        def take() -> None:
            adding.wait()
            means = torch.split(total / self._world.size, list(map(len, self._buffers)))
            for buffer, mean in zip(self._buffers, means, strict=True):
                buffer.copy_(mean)

        return take


class SyncBatchNorm(nn.BatchNorm2d):
    """Normalizes over the global batch on any device, of any shares; torch's own works on GPUs only."""

    @classmethod
    def of(cls, layer: nn.BatchNorm2d) -> SyncBatchNorm:
        """The same layer, with the same parameters and buffers, but synchronised."""
        own = cls(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        # Buffers are assigned, not copied: copies would be on the CPU, wherever the layer is.
        own.load_state_dict(layer.state_dict(), assign=True)
        own.weight, own.bias = layer.weight, layer.bias
        return own

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the base's name for it
        """As `BatchNorm2d`; shape (n, channels, height, width), n being the rank's own."""
        if not self.training:
            return super().forward(input)
        values = input.float()
        count = values.new_full((1,), values.numel() // values.shape[1])
        sums = _GlobalSum.apply(torch.cat([values.sum((0, 2, 3)), count]))
        total = sums[-1].detach()  # or each running variance would keep the graph of all steps before it
        mean = sums[:-1] / total
        centerd = values - mean.view(1, -1, 1, 1)
        variance = _GlobalSum.apply(centerd.square().sum((0, 2, 3))) / total
        # One value in the global batch has no variance: its sum of squares is 0, and so is what is tracked.
        self._track(mean.detach(), variance.detach() * total / (total - 1).clamp(min=1))
        scaled: Tensor = centerd * (variance + self.eps).rsqrt().view(1, -1, 1, 1)
        if self.affine:
            scaled = scaled * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return scaled.to(input.dtype)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of this batch."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
        for running, value in ((self.running_mean, mean), (self.running_var, variance)):
            if running is not None and self.momentum is not None:
                running.lerp_(value, self.momentum)


class _GlobalSum(torch.autograd.Function):
    """The sum over all ranks; of their losses, added up, it has the same gradient on each of them."""

    @staticmethod
    def forward(_context: object, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_context: object, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def synchronise(model: nn.Module) -> None:
    """Replace every `BatchNorm2d` inside the model by its synchronised form."""
    for name, layer in model.named_children():
        if isinstance(layer, nn.BatchNorm2d):
            setattr(model, name, SyncBatchNorm.of(layer))
        else:
            synchronise(layer)


def accept_single_values(model: nn.Module) -> None:
    """Let batch normalization use its running statistics for one value per channel, which torch rejects."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and not isinstance(layer, SyncBatchNorm):
            layer.register_forward_pre_hook(_use_running_statistics)
            layer.register_forward_hook(_use_batch_statistics)


_SINGLE = "_ddpipe_single_value"


def _use_running_statistics(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    (features,) = inputs
    if layer.training and layer.running_mean is not None and features.numel() == features.shape[1]:
        layer.training = False
        setattr(layer, _SINGLE, True)


def _use_batch_statistics(layer: nn.Module, _inputs: tuple[Tensor, ...], _output: Tensor) -> None:
    if getattr(layer, _SINGLE, False):
        layer.training = True
        delattr(layer, _SINGLE)
