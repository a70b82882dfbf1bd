"""One training step: what happens to a batch, the weights and their average.

The step is keyed by seed, step and rank, so that it draws the same random numbers in a resumed training. It
does not wait for the device: its metrics stay there until `StepMetrics.reduce` adds them up.

A resumed training equals an uninterrupted one bit for bit only if every operation is deterministic. On a GPU
some have no such kernel: adaptive pooling to more than one pixel (AlexNet, VGG) is the most common one.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, assert_never

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils import deterministic

from ddpipe.distributed import World
from ddpipe.errors import ParameterError
from ddpipe.model.classifier import Classifier
from ddpipe.model.own import own_augmentation, own_loss
from ddpipe.train.batches import Batch, resized, resolution, seed_of_step
from ddpipe.train.objective import Objective
from ddpipe.train.optimizer import WeightAverage, build_optimizer, learning_rate, set_learning_rate
from ddpipe.train.recipe import Determinism, Optimizers, Precision, Recipe, own_functions
from ddpipe.train.replicated import Strategy
from ddpipe.train.strategies import RunningStatistics


class TrainingStep:
    """Everything that a step changes: weights, running statistics, optimizer state and weight average."""

    def __init__(
        self,
        recipe: Recipe,
        classifier: Classifier,
        objective: Objective,
        strategy: Strategy,
        world: World,
        *,
        steps: int,
        parts: int = 1,
    ) -> None:
        """Prepare the steps of a training; each rank takes its share of a batch in so many parts."""
        self._recipe, self._objective, self._world = recipe, objective, world
        own = own_functions(recipe.to_dict())
        self._losses = own_loss(own["loss"]) if "loss" in own else objective.losses
        self._augment = own_augmentation(own["augmentation"]) if "augmentation" in own else None
        self.steps, self._parts = steps, parts
        self._parameters = list(classifier.parameters())
        self._running_statistics = RunningStatistics(classifier, world)
        self._dtype = network_dtype(Precision(recipe.precision), world)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self._dtype is torch.float16)
        self.strategy = strategy
        is_muon = recipe.optimizer == Optimizers.MUON
        lacks = is_muon and world.max(int(not _has_bf16(world.device)))
        dtype = torch.float32 if lacks else torch.bfloat16
        self.optimizer = build_optimizer(recipe, classifier, fused=strategy.fused_optimizer, muon_dtype=dtype)
        decay = recipe.averaging_decay
        self.average = WeightAverage(classifier, decay) if decay else None

    def take(self, step: int, batch: Batch) -> Tensor:
        """Update the weights once; the objective's `totals` over the share, shape (len(objective.sums),)."""
        recipe, world, optimizer = self._recipe, self._world, self.optimizer
        # Dropout differs between ranks, as their samples do, and is the same in a resumed training.
        seed = seed_of_step(recipe.seed, step, world.rank)
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` costs a millisecond without a GPU
        if world.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)
        set_learning_rate(optimizer, learning_rate(recipe, step, self.steps))
        images, labels = batch.images, batch.labels
        if self._augment:
            images, labels = self._augment(images, labels)
        images = resized(images, resolution(recipe, step, self.steps))
        optimizer.zero_grad()
        totals = []
        # Every rank takes all parts, though some may be empty: ranks that share a model compute together.
        count = self._parts
        parts = list(zip(images.tensor_split(count), labels.tensor_split(count), strict=True))
        for number, (shown, wanted) in enumerate(parts, 1):
            is_last = number == count
            self.strategy.exchange(is_last=is_last)
            with self.autocast():
                logits = self.strategy.model(shown)
            if is_last:  # while the gradients are computed: none of them depends on these
                take_means = self._running_statistics.average()
            logits = logits.float()  # losses are summed in full precision; the network may compute in half
            losses = self._losses(logits, wanted)
            # Ranks average their gradients: so this is the mean over the global batch, even if the ranks'
            # shares differ in size.
            torch.autograd.backward(self.scaler.scale(losses.sum() * world.size / batch.size))
            totals.append(self._objective.totals(losses.detach(), logits.detach(), wanted))
        if recipe.clip_norm:
            self.scaler.unscale_(optimizer)  # the norm is that of the true gradients
            clip_grad_norm_(self._parameters, recipe.clip_norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        take_means()  # the average below includes them
        if self.average:
            self.average.update(step)
        return reduce(torch.add, totals)

    def autocast(self) -> torch.autocast:
        """The precision of the network."""
        mixed_precision = self._dtype is not torch.float32
        return torch.autocast(
            self._world.device.type, self._dtype if mixed_precision else None, enabled=mixed_precision
        )


class StepMetrics:
    """The `totals`, shape (steps, columns), of an epoch's steps: sums over all ranks before row `reduced`."""

    def __init__(self, steps: int, columns: int, world: World) -> None:
        self.rows = torch.zeros(steps, columns, dtype=torch.float64, device=world.device)
        self.reduced = 0
        self._world = world

    def reduce(self, end: int) -> int | None:
        """Sum the rows before `end` over all ranks; returns the first that is not finite."""
        pending = self._world.sum(self.rows[self.reduced : end])
        broken = (~pending.isfinite()).any(1).nonzero().flatten().tolist()
        first, self.reduced = self.reduced, end
        return first + int(broken[0]) if broken else None

    def restore(self, rows: Tensor) -> None:
        """Continue from the reduced rows of a checkpoint, float64, shape (steps so far, columns)."""
        self.reduced = len(rows)
        self.rows[: self.reduced] = rows


def network_dtype(precision: Precision, world: World) -> torch.dtype:
    """The data type in which the network computes; the same on all ranks."""
    match precision:
        case Precision.FP32:
            return torch.float32
        case Precision.FP16:
            return torch.float16
        case Precision.BF16:
            if world.device.type == "cuda" and not _is_fast_at_bf16(world.device):
                raise ParameterError(
                    what="training cannot start",
                    which=torch.cuda.get_device_name(world.device),
                    seen="this GPU has no bfloat16",
                    do="Set precision to fp16, to fp32, or to auto.",
                )
            return torch.bfloat16
        case Precision.AUTO:
            slow = not _is_fast_at_bf16(world.device)
            return torch.float32 if world.max(int(slow)) else torch.bfloat16
        case other:
            assert_never(other)


def _has_bf16(device: torch.device) -> bool:
    """Whether there are instructions for it; where torch replaces them, a product takes 7 times as long."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(_instructions() & {"amx_bf16", "avx512_bf16"})


def _instructions() -> set[str]:
    return {name for name, there in torch.cpu.get_capabilities().items() if there is True}


def _is_fast_at_bf16(device: torch.device) -> bool:
    """Whether whole networks are."""
    has = _instructions()
    # Intel's processors since Sapphire Rapids, known by avx512_fp16, do bf16 fast by their tiles (AMX) only:
    # where those are not to be had, as in many virtual machines, convolutions take 1.5 times as long as
    # in fp32.
    return _has_bf16(device) and (device.type == "cuda" or "amx_bf16" in has or "avx512_fp16" not in has)


_NONDETERMINISTIC = re.compile(
    r"(.+?) (?:does not have a deterministic implementation|defaults to a non-deterministic algorithm)"
)
"""How torch's errors and warnings begin, with the name of the operation."""

_log = logging.getLogger(__name__)


@contextmanager
def determinism(how: Determinism, network: str, *, compiled: bool) -> Iterator[None]:
    """Prefer deterministic kernels within this block."""
    mode, filling = torch.get_deterministic_debug_mode(), deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    # cuBLAS reads this when it starts; without it, torch rejects deterministic operations on a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Every value of a new tensor is written before it is read: filling it first costs 4 % of a step.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_deterministic_debug_mode(_DEBUG_MODES[how])
    if compiled:
        # What `torch.use_deterministic_algorithms` sets: only who compiles waits seconds for this import.
        from torch._inductor import config  # noqa: PLC0415

        config.deterministic = how is not Determinism.FALSE
    try:
        with _reporting_once():
            yield
    except (RuntimeError, ParameterError) as error:
        # The trial of a user's own network reports what torch raised as the cause of its own error.
        if not (found := _NONDETERMINISTIC.match(str(error.__cause__ or error))):
            raise
        raise ParameterError(
            what="training cannot be deterministic",
            which=f"model {network!r}",
            seen=f"{found[1]} has no deterministic kernel on this device",
            do="Set deterministic to auto, or choose another model.",
        ) from error
    finally:
        torch.set_deterministic_debug_mode(mode)
        deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]


_DEBUG_MODES = {Determinism.AUTO: "warn", Determinism.TRUE: "error", Determinism.FALSE: "default"}


@contextmanager
def _reporting_once() -> Iterator[None]:
    """Log torch's warning about an operation once, with its consequence."""
    reported: set[str] = set()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_NONDETERMINISTIC.pattern)
        show = warnings.showwarning

        def report(message: Warning | str, *rest: Any) -> None:  # noqa: ANN401 - as Python calls it
            found = _NONDETERMINISTIC.match(str(message))
            if not found:
                show(message, *rest)
            elif found[1] not in reported:
                reported.add(found[1])
                _log.warning(
                    "%s has no deterministic kernel on this device: a resumed training will not be "
                    "bit for bit the same as an uninterrupted one",
                    found[1],
                )

        warnings.showwarning = report  # type: ignore[assignment]
        yield
