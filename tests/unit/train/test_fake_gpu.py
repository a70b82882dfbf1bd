"""One training step on torch's fake tensors with a "cuda" device: mixed devices are errors, without a GPU.

The backward pass does not work on them and is left out; everything else runs as in a training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes import plain
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddpipe.distributed import World
from ddpipe.model import ARCHITECTURES
from ddpipe.model.classifier import Classifier, build
from ddpipe.model.scoring import with_views
from ddpipe.train.batches import Batch, seed_of_step
from ddpipe.train.objective import BinaryCrossEntropy, CrossEntropy, Objective
from ddpipe.train.recipe import Recipe
from ddpipe.train.replicated import Strategy
from ddpipe.train.step import TrainingStep
from ddpipe.train.strategies import synchronise

GPU = torch.device("cuda", 0)
SHAPE = (32, 32, 3)
GOLDEN = Path(__file__).parents[2] / "golden" / "step_plan.txt"


@pytest.fixture(autouse=True)
def _fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything in a test is fake, autocast works as if there was a GPU, and there is no backward pass."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_options: True)
    monkeypatch.setattr(torch.autograd, "backward", lambda loss: loss.device)
    monkeypatch.setattr(
        Classifier, "to", lambda classifier, *_to, **_layout: classifier
    )  # fake ones cannot move
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def step_of(recipe: Recipe, ranks: int = 1, objective: Objective | None = None) -> TrainingStep:
    """A step of a model that was built on the CPU and moved, as a training does."""
    world = World(0, ranks, GPU)
    with unset_fake_temporarily():
        classifier = Classifier(build(recipe.model, SHAPE, 4), [0.5] * 3, [0.2] * 3)
        if recipe.sync_batch_norm:
            synchronise(classifier)
    classifier.to_empty(device=GPU)
    strategy = Strategy(classifier, SHAPE, world)
    return TrainingStep(recipe, classifier, objective or CrossEntropy(), strategy, world, steps=10)


def a_batch(labels: torch.dtype = torch.int64) -> Batch:
    images = torch.zeros(8, *SHAPE, dtype=torch.uint8, device=GPU)
    shape = (8, 4) if labels.is_floating_point else (8,)
    return Batch(images, torch.zeros(shape, dtype=labels, device=GPU), 8)


@pytest.mark.parametrize("model", [*ARCHITECTURES, "resnet18", "mobilenet_v2"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_network_and_its_evaluation_stay_on_the_gpu(model: str, precision: str) -> None:
    step = step_of(plain(model=model, precision=precision))
    totals = step.take(0, a_batch())
    assert (totals.device, totals.dtype) == (GPU, torch.float64)
    averaged = with_views(step.strategy.model.eval(), "flips-and-shifts")
    assert averaged(a_batch().images).device == GPU


@pytest.mark.parametrize(
    "options",
    [
        {"initial_resolution": 0.75},
        {"averaging_decay": 0.9, "clip_norm": 1.0},
        {"optimizer": "muon"},
        {"optimizer": "adamw", "label_smoothing": 0.1},
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_every_option_of_a_step_stays_on_the_gpu(options: dict[str, Any]) -> None:
    step = step_of(plain(model="fast-cnn-small", precision="bf16", **options))
    assert step.take(0, a_batch()).device == GPU


def test_random_numbers_of_a_step_are_its_own_on_the_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = list[int]()
    step = step_of(plain(model="lenet", seed=5))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    step.take(7, a_batch())
    assert seeds == [seed_of_step(5, 7, 0)]


def test_weights_of_classes_and_of_labels_stay_on_the_gpu() -> None:
    weights = torch.ones(4, device=GPU)
    for objective, labels in (
        (CrossEntropy(weights), torch.int64),
        (BinaryCrossEntropy(weights), torch.float32),
    ):
        step = step_of(plain(model="resnet18"), objective=objective)
        assert step.take(0, a_batch(labels)).device == GPU


def test_a_mixture_of_devices_is_noticed() -> None:
    """Otherwise the tests above would prove nothing."""
    step = step_of(plain(model="lenet"))
    batch = a_batch()
    with pytest.raises(RuntimeError, match=r"(?i)device"):
        step.take(0, Batch(batch.images, batch.labels.cpu(), 8))


def _kinds(values: Any) -> str:
    tensors = [one for one in tree_leaves(values) if isinstance(one, Tensor)]
    return " ".join(f"{str(one.dtype)[6:]}@{one.device.type}" for one in tensors)


class Plan(TorchDispatchMode):
    """Writes down each operation with the data types and devices of its tensors, runs of equal ones once."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        if self.lines[-1:] != [line]:
            self.lines.append(line)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if function.namespace == "aten":
            self.note(f"{function}({_kinds((args, kwargs))}) -> {_kinds(out)}")
        return out


def test_the_plan_of_a_step_is_the_one_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data types, devices and collectives; UPDATE_GOLDEN=1 writes it again."""
    plan = Plan()

    def all_reduce(values: Tensor, **_options: Any) -> None:
        plan.note(f"all_reduce {str(values.dtype)[6:]}@{values.device.type} {list(values.shape)}")

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    recipe = plain(model="fast-cnn-small", precision="bf16", sync_batch_norm=True)
    step = step_of(recipe, ranks=2)
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in step.strategy.model.modules())
    with plan:
        step.take(0, a_batch())
    text = "\n".join(plan.lines) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
