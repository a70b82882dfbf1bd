"""A loss and an augmentation of the user's own: what they get, what they may return."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from evaluation_runs import a_dataset
from recipes import plain
from samples import some_images

from ddpipe.data.manifest import load_manifest
from ddpipe.distributed import World
from ddpipe.errors import ParameterError
from ddpipe.model.classifier import Classifier, build
from ddpipe.model.own import own_augmentation, own_loss
from ddpipe.train.auto import Device, choose, measured
from ddpipe.train.batches import Batch
from ddpipe.train.objective import CrossEntropy
from ddpipe.train.recipe import Recipe
from ddpipe.train.replicated import Strategy
from ddpipe.train.step import TrainingStep
from ddpipe.train.train import train
from ddpipe.tune.study import best_recipe

ALONE = World(0, 1, torch.device("cpu"))
SHAPE = (8, 8, 1)
BATCH = Batch(torch.from_numpy(some_images(10, SHAPE)), torch.arange(10) % 3, 10)
GUIDE = Path(__file__).parents[3] / "docs/guides/own.md"
MODULE = """
import torch
from torch.nn import functional
from torchvision.transforms import v2

seen = []

def usual(logits, labels):
    return functional.cross_entropy(logits, labels, reduction="none")

def mean(logits, labels):
    return functional.cross_entropy(logits, labels)

def without_gradient(logits, labels):
    return usual(logits.detach(), labels)

def number(logits, labels):
    return mean(logits, labels).item()

def fails(logits, labels):
    raise KeyError("of mine")

def same(images, labels):
    seen.append((images.dtype, tuple(images.shape), float(images.max())))
    return images, labels

def noisy(images, labels):
    return images + torch.rand_like(images), labels

def mixed(images, labels):
    return v2.MixUp(num_classes=3)(images, labels)

def images_only(images, labels):
    return images

def smaller(images, labels):
    return images[:, :, 1:], labels
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The user's module, in the working directory."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return name


def stepped(recipe: Recipe) -> torch.Tensor:
    """All weights after three steps."""
    torch.manual_seed(0)
    classifier = Classifier(build("digits-cnn", SHAPE, 3), [0.5], [0.3])
    objective = CrossEntropy(
        torch.ones(3) if recipe.class_weights == "balanced" else None, float(recipe.label_smoothing)
    )
    step = TrainingStep(recipe, classifier, objective, Strategy(classifier, SHAPE, ALONE), ALONE, steps=3)
    for number in range(3):
        step.take(number, BATCH)
    return torch.cat([weights.detach().flatten() for weights in classifier.parameters()])


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one - other).abs().max().item()


@pytest.mark.parametrize("loss", ["usual", "mean"])
def test_the_usual_loss_by_a_function_trains_the_same(module: str, loss: str) -> None:
    assert largest_difference(stepped(plain(loss=f"{module}:{loss}")), stepped(plain())) < 1e-6


def test_an_augmentation_sees_images_as_torchvision_does(module: str) -> None:
    assert largest_difference(stepped(plain(augmentation=f"{module}:same")), stepped(plain())) < 1e-5
    (kind, shape, most), *_ = sys.modules[module].seen
    assert (kind, shape) == (torch.float32, (10, 1, 8, 8))
    assert 0.5 < most <= 1


def test_random_numbers_of_a_step_are_its_own(module: str) -> None:
    recipe = plain(augmentation=f"{module}:noisy")
    assert largest_difference(stepped(recipe), stepped(recipe)) == 0
    assert largest_difference(stepped(recipe), stepped(plain())) > 1e-4


@pytest.mark.parametrize("others", [{}, {"class_weights": "balanced"}, {"label_smoothing": 0.1}])
def test_labels_may_be_mixed(module: str, others: dict[str, str]) -> None:
    recipe = plain(augmentation=f"{module}:mixed", **others)
    assert largest_difference(stepped(recipe), stepped(plain(**others))) > 1e-4


@pytest.mark.parametrize(
    ("loss", "seen"),
    [
        ("without_gradient", r"it returned a tensor of shape \(10,\)"),
        ("number", "it returned float"),
        ("fails", r"KeyError: 'of mine'.*mine_.*\.py, line 21: raise KeyError"),
        ("nothing", "has no attribute 'nothing'"),
    ],
)
def test_a_loss_that_cannot_train_is_named(module: str, loss: str, seen: str) -> None:
    with pytest.raises(ParameterError, match=seen) as caught:
        stepped(plain(loss=f"{module}:{loss}"))
    assert caught.value.which == f"loss '{module}:{loss}'"


@pytest.mark.parametrize(
    ("augmentation", "seen"),
    [
        ("images_only", r"it returned a tensor of shape \(10, 1, 8, 8\)"),
        ("smaller", r"a tensor of shape \(10, 1, 7, 8\) and a tensor of shape \(10,\)"),
    ],
)
def test_an_augmentation_that_returns_something_else_is_named(
    module: str, augmentation: str, seen: str
) -> None:
    with pytest.raises(ParameterError, match=seen):
        stepped(plain(augmentation=f"{module}:{augmentation}"))


def test_a_rank_without_a_share_does_not_ask(module: str) -> None:
    logits = torch.zeros(0, 3, requires_grad=True)
    own_loss(f"{module}:fails")(logits, BATCH.labels[:0]).sum().backward()
    assert logits.grad is not None
    assert own_augmentation(f"{module}:images_only")(BATCH.images[:0], BATCH.labels[:0])[0].shape[0] == 0


def test_what_belongs_to_cross_entropy_is_off_or_refused(module: str, tmp_path: Path) -> None:
    data = measured(load_manifest(a_dataset(str(tmp_path / "store"))))
    chosen = choose(data, Device("cpu", 1), Recipe(loss=f"{module}:mean")).recipe
    assert (chosen.label_smoothing, chosen.class_weights) == (0.0, "none")
    with pytest.raises(ParameterError, match="are those of cross-entropy, and `loss` is your own"):
        Recipe(loss=f"{module}:mean", class_weights="balanced").validated()


@pytest.mark.parametrize("name", ["loss", "augmentation"])
def test_a_file_does_not_decide_what_is_imported(name: str) -> None:
    text = json.dumps({name: "theirs:function"})
    with pytest.raises(ParameterError, match=f"its {name} is the function theirs:function"):
        best_recipe(text)
    assert best_recipe(text, given={name})[name] == "theirs:function"


def test_the_functions_of_the_guide_train(tmp_path: Path) -> None:
    """Its network, loss and augmentation together, on a data set of one channel."""
    blocks = re.findall(r"```py\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    own = [block for block in blocks if "\ndef " in block]
    (tmp_path / "of_the_guide.py").write_text("\n".join(own))
    recipe = plain(
        model="of_the_guide:network",
        loss="of_the_guide:focal",
        augmentation="of_the_guide:turned",
        epochs=1,
        batch_size=6,
    )
    train(a_dataset(str(tmp_path / "store")), str(tmp_path / "training"), recipe)
    record = json.loads((tmp_path / "training/training.json").read_text())
    assert record["recipe"]["loss"] == "of_the_guide:focal"
