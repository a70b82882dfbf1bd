"""The strategies in which every process has the whole model: single, dp and ddp."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from ddpipe.data.manifest import Shape
from ddpipe.distributed import World
from ddpipe.model.classifier import Classifier, versioned

State = dict[str, Any]


class Strategy:
    """One process and one device; the others differ in what they override. A step calls `model`."""

    fused_optimizer: ClassVar[bool] = True

    def __init__(self, classifier: Classifier, shape: Shape, world: World) -> None:
        """Share the training of `classifier`, of images of this shape; its weights are equal on all ranks."""
        self._classifier, self._world = classifier, world
        self.model = self._shared(shape)

    def _shared(self, shape: Shape) -> nn.Module:
        """Move the model to the device, and return what a step calls."""
        del shape
        return self._classifier.to(self._world.device).to(memory_format=torch.channels_last)

    def exchange(self, *, is_last: bool) -> None:
        """Have ranks average their gradients only after the last part of a batch."""

    def portable(self, state: State) -> State:
        """A state dict for a checkpoint: each tensor is whole, or this rank's `Share` of it."""
        return state

    def shares(self, state: State, like: State) -> State:
        """This rank's part of portable tensors, laid out as those of the same names in `like`."""
        return {name: _laid_out(value, like[name]) for name, value in state.items()}

    def load_model(self, state: State) -> None:
        """Load portable weights."""
        shares = self.shares(state, self._classifier.state_dict())
        self._classifier.load_state_dict(versioned(shares, self._classifier))

    def load_optimizer(self, optimizer: Optimizer, state: State) -> None:
        """Load a portable state of the optimizer."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        own = {
            number: self.shares(values, dict.fromkeys(values, parameters[number]))
            for number, values in state["state"].items()
        }
        # Which kernel updates the weights is a matter of this strategy, not of the one that saved.
        groups = [
            {**saved, **{name: present[name] for name in ("fused", "foreach") if name in present}}
            for saved, present in zip(state["param_groups"], optimizer.param_groups, strict=True)
        ]
        optimizer.load_state_dict({"state": own, "param_groups": groups})


def _laid_out(value: Any, like: Tensor) -> Any:  # noqa: ANN401 - a state holds numbers as well
    """The value with the strides of `like`: fused kernels go through weights and momentum in memory order."""
    if not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return torch.empty_like(like, dtype=value.dtype, requires_grad=False).copy_(value)


class _InPrecision(nn.Module):
    """A model that computes in each of DataParallel's threads as autocast says in the one that captures."""

    def __init__(self, model: nn.Module, device: str) -> None:
        super().__init__()
        self.model, self._device = model, device
        self.capture()

    def capture(self) -> None:
        """Use this thread's autocast from now on."""
        self._autocast = torch.is_autocast_enabled(self._device), torch.get_autocast_dtype(self._device)

    def forward(self, images: Tensor) -> Tensor:
        enabled, dtype = self._autocast
        with torch.autocast(self._device, dtype, enabled=enabled):
            logits: Tensor = self.model(images)
        return logits


class _DataParallel(DataParallel[_InPrecision]):
    """As torch's, for a model in `_InPrecision`."""

    def forward(self, *inputs: Tensor) -> Tensor:
        self.module.capture()  # replicas are copies of the module as it is now
        logits: Tensor = super().forward(*inputs)
        return logits


class DataParallelStrategy(Strategy):
    """One process, every GPU of its machine."""

    def _shared(self, shape: Shape) -> nn.Module:
        return _DataParallel(_InPrecision(super()._shared(shape), self._world.device.type))


class DistributedDataParallelStrategy(Strategy):
    """Every rank has the whole model."""

    model: DistributedDataParallel

    def exchange(self, *, is_last: bool) -> None:
        """As the base says, by what torch's `no_sync` sets."""
        self.model.require_backward_grad_sync = is_last

    def _shared(self, shape: Shape) -> nn.Module:
        device = self._world.device
        wrapped = DistributedDataParallel(
            super()._shared(shape),
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            forward_sync_buffers=False,  # the batch statistics of all ranks count: `RunningStatistics`
        )
        # DDP rebuilds its buckets after the first backward pass, and with them the order in which ranks are
        # added up. One pass before the first step that counts lets a resumed run add in the same order as
        # one that was never interrupted. Nothing is left of it: in evaluation mode no buffer changes.
        self._classifier.eval()
        wrapped(torch.zeros(1, *shape, dtype=torch.uint8, device=device)).sum().backward()
        wrapped.zero_grad()
        self._classifier.train()
        return wrapped
