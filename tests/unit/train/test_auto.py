"""What `auto` chooses: a table of cases, and the rule that a given value always wins."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from recipes import plain
from samples import a_manifest

from ddpipe.data.shards import working_shape
from ddpipe.model.torchvision_models import Lookup
from ddpipe.train import auto
from ddpipe.train.auto import ChosenRecipe, Device, Measured, choose, wanted_weights
from ddpipe.train.constants import FEWEST_STEPS, MOST_PASSES
from ddpipe.train.recipe import Recipe

APPROVED = Path(__file__).parents[2] / "golden" / "choices.txt"


def data(shape: tuple[int, int, int] = (32, 32, 3), images: int = 2400, **values: Any) -> Measured:
    """A dataset of ten classes of one size, whose validation split has an eighth as many images."""
    given = {"per_class": (images // 10,) * 10, "validation": images // 8, "task": "multiclass", **values}
    return Measured(shape=shape, images=images, **given)


def chosen(data: Measured, device: str = "cpu", **given: Any) -> ChosenRecipe:
    return choose(data, Device(device), Recipe(**given))


FOUND, MISSING = Lookup(found=True, seen="a file is there"), Lookup(found=False, seen="no server answers")

CASES: dict[str, tuple[Measured, dict[str, Any]]] = {
    "digits": (data((8, 8, 1), 1405), {"model": "digits-cnn", "optimizer": "sgd", "augmentation": "shift"}),
    "MNIST": (data((28, 28, 1), 48_000), {"model": "lenet", "augmentation": "shift", "resolution": 0}),
    "CIFAR-10": (
        data((32, 32, 3), 45_000),
        {"model": "fast-cnn", "batch_size": 512, "model_selection": "best", "averaging_decay": 0.0},
    ),
    "small photographs": (data((32, 32, 3)), {"model": "fast-cnn", "batch_size": 64, "optimizer": "muon"}),
    "few photographs": (data((160, 160, 3), 96), {"batch_size": 16, "model_selection": "last"}),
    "large photographs": (data((256, 256, 3), 800), {"model": "fast-cnn-small", "resolution": 64}),
    "a thousand photographs, soon": (data((160, 200, 3), 800), {"resolution": 64, "epochs": 22}),
    "wide photographs, no fewer passes": (data((160, 400, 3), 1400), {"resolution": 64, "epochs": 20}),
    "many photographs": (data((256, 256, 3), 20_000), {"model": "fast-cnn", "resolution": 64}),
    "a million images": (data((32, 32, 3), 1_000_000), {"epochs": 3}),
    "several labels": (
        data((160, 160, 1), 640, task="multilabel"),
        {"label_smoothing": 0.0, "augmentation": "shift", "class_weights": "none"},
    ),
    "imbalance": (data(images=1224, per_class=(1200, 24)), {"class_weights": "balanced"}),
    "imbalance at its least": (data(images=1200, per_class=(1000, 200)), {"class_weights": "balanced"}),
    "balance": (data(images=1200, per_class=(700, 500)), {"class_weights": "none"}),
    "weights of a package": (data(network="lenet"), {"model": "lenet", "optimizer": "sgd"}),
}


@pytest.mark.parametrize(("measured", "expected"), CASES.values(), ids=CASES)
def test_each_kind_of_data_gets_what_suits_it(measured: Measured, expected: dict[str, Any]) -> None:
    recipe = chosen(measured).recipe
    assert {name: getattr(recipe, name) for name in expected} == expected


@pytest.mark.parametrize(("measured", "_expected"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_choice_is_complete_valid_and_explained(measured: Measured, _expected: object, device: str) -> None:
    choice = chosen(measured, device)
    assert choice.recipe.validated().automatic() == set()
    assert set(choice.reasons) == Recipe().automatic()
    assert all(choice.reasons.values())


def test_given_values_always_win() -> None:
    given = plain(model_selection="last")
    choice = choose(data(images=100), Device(), given)
    assert choice.recipe == given
    assert choice.reasons == {}


def test_few_minutes_get_the_narrow_network() -> None:
    models = [chosen(data(images=62_500), minutes=minutes).recipe.model for minutes in (0.01, 6.39, 6.4)]
    assert models == ["fast-cnn-small", "fast-cnn-small", "fast-cnn"], "three passes take 6.4 minutes"
    assert chosen(data(images=45_000), "cuda", minutes=1).recipe.model == "fast-cnn"


@pytest.mark.parametrize("name", sorted(Recipe().automatic()))
def test_a_single_given_value_stays(name: str) -> None:
    value = getattr(plain(model_selection="best"), name)
    choice = chosen(data(), **{name: value})
    assert getattr(choice.recipe, name) == value
    assert name not in choice.reasons


@pytest.mark.parametrize("images", [20, 100, 1000])
def test_small_sets_get_a_minimum_of_steps(images: int) -> None:
    recipe = chosen(data(images=images)).recipe
    assert recipe.epochs * -(-images // recipe.batch_size) >= FEWEST_STEPS


@pytest.mark.parametrize(
    ("task", "per_class", "imbalance"),
    [
        ("multiclass", (10, 0, 40), 4),
        ("multilabel", (30, 0, 20), 4),
        ("multiclass", (), 1),
        ("multilabel", (0,), 1),
    ],
)
def test_imbalance_is_that_of_the_classes_that_are_there(
    task: str, per_class: tuple[int, ...], imbalance: float
) -> None:
    assert data(images=100, task=task, per_class=per_class).imbalance == imbalance


def test_a_small_set_takes_more_passes_than_a_large_one() -> None:
    few, some, many = (chosen(data(images=count)).recipe.epochs for count in (120, 2400, 50_000))
    assert few > some > many >= 3


@pytest.mark.parametrize("images", [40, 80, 144, 640])
def test_a_tiny_set_is_not_repeated_without_gain(images: int) -> None:
    """40 images in 107 passes scored as in 40, in twice the time."""
    assert chosen(data(images=images)).recipe.epochs == MOST_PASSES


@pytest.mark.parametrize(("images", "epochs"), [(500_000, 4), (500_001, 4), (1_000_000, 3), (50_000_000, 3)])
def test_a_very_large_set_is_seen_two_million_times_but_in_three_passes(images: int, epochs: int) -> None:
    assert chosen(data(images=images)).recipe.epochs == epochs


@pytest.mark.parametrize(("images", "epochs"), [(1200, 38), (2400, 30), (4800, 25)])
def test_twice_the_images_get_a_fifth_fewer_passes(images: int, epochs: int) -> None:
    assert chosen(data(images=images)).recipe.epochs == epochs


@pytest.mark.parametrize(
    ("name", "momentum", "decay", "warmup"),
    [("sgd", 0.9, 5e-4, 0.1), ("adamw", 0.9, 0.02, 0.1), ("muon", 0.6, 0.0, 0.0)],
)
def test_an_optimizer_gets_what_suits_it(name: str, momentum: float, decay: float, warmup: float) -> None:
    recipe = chosen(data(), optimizer=name).recipe
    assert (recipe.momentum, recipe.weight_decay, recipe.warmup_fraction) == (momentum, decay, warmup)


@pytest.mark.parametrize(("epochs", "share"), [(1, 0.5), (3, 0.1754), (5, 0.1053), (6, 0.1)])
def test_a_warmup_has_twenty_steps_but_at_most_half_of_all(epochs: int, share: float) -> None:
    """There are 38 steps in an epoch."""
    assert chosen(data(), optimizer="sgd", epochs=epochs).recipe.warmup_fraction == share


@pytest.mark.parametrize(
    ("epochs", "decay"), [(1, 0.4737), (30, 0.9825), (52, 0.9899), (53, 0.99), (99, 0.99)]
)
def test_an_average_spans_twenty_parts_of_a_training_but_a_hundred_steps_at_most(
    epochs: int, decay: float
) -> None:
    choice = chosen(data(), epochs=epochs)
    assert choice.recipe.averaging_decay == decay
    best = chosen(data(), patience=3)
    assert best.recipe.averaging_decay == 0
    assert ["best epoch" in one.reasons["averaging_decay"] for one in (choice, best)] == [False, True]


def test_only_small_gray_images_are_called_so() -> None:
    reasons = [chosen(data((side, 40, 1))).reasons["augmentation"] for side in (8, 32, 33)]
    assert [why.startswith("small gray images") for why in reasons] == [True, True, False]


def test_the_rate_follows_the_batch() -> None:
    rates = [chosen(data(), model="resnet18", batch_size=size).recipe.learning_rate for size in (32, 64)]
    assert rates[1] == pytest.approx(2 * rates[0])


def test_the_rate_of_a_residual_network_is_lower_than_of_a_small_one() -> None:
    rate = {name: chosen(data(), model=name).recipe.learning_rate for name in ("resnet18", "digits-cnn")}
    assert rate["resnet18"] < rate["digits-cnn"]


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [
        *((name, "adamw") for name in ("vit_b_16", "swin_t", "maxvit_t", "convnext_tiny", "nets:mine")),
        *((name, "sgd") for name in ("resnet18", "vgg11", "squeezenet1_0", "simple-cnn", "digits-cnn")),
        ("fast-cnn-small", "muon"),
    ],
)
def test_each_family_of_networks_gets_its_optimizer(network: str, optimizer: str) -> None:
    assert chosen(data(), model=network).recipe.optimizer == optimizer


def test_pretrained_weights_get_a_network_and_larger_images() -> None:
    fresh = chosen(data((256, 256, 3), 800)).recipe
    tuned = chosen(data((256, 256, 3), 800), pretrained="torchvision").recipe
    assert tuned.model == "resnet18"
    assert tuned.resolution > fresh.resolution


def test_a_size_given_to_prepare_is_kept() -> None:
    assert chosen(data((256, 256, 3), 800, sized=True)).recipe.resolution == 0


def test_a_gpu_sees_more_pixels() -> None:
    cpu, gpu = (chosen(data((256, 256, 3), 800), device).recipe.resolution for device in ("cpu", "cuda"))
    assert gpu > cpu > 0


def test_epochs_beside_a_budget_are_called_unused() -> None:
    assert chosen(data(), minutes=0.5).reasons["epochs"] == "not used: 0.5 minutes decide"
    assert chosen(data()).reasons["epochs"] == "1,140 steps of 64 images"


def test_epochs_are_selected_only_by_enough_validation_images() -> None:
    selections = [chosen(data(validation=count)).recipe.model_selection for count in (399, 400)]
    assert selections == ["last", "best"]
    assert chosen(data(validation=3), patience=5).recipe.model_selection == "best"


@pytest.mark.parametrize(
    ("images", "size"),
    [(40, 16), (1023, 16), (1024, 32), (2047, 32), (2048, 64), (16_384, 512), (10**6, 512)],
)
def test_a_pass_has_about_32_steps(images: int, size: int) -> None:
    assert chosen(data(images=images)).recipe.batch_size == size


def test_plain_deep_networks_get_a_low_rate() -> None:
    deep = [chosen(data(), model=name).recipe for name in ("alexnet", "squeezenet1_0", "vgg11")]
    assert [recipe.learning_rate for recipe in deep] == [0.005] * 3


def test_batches_suffice_for_all_processes() -> None:
    assert Device() == Device("cpu", processes=1)
    recipe = choose(data(images=100), Device(processes=32), Recipe()).recipe
    assert recipe.batch_size >= 32


def test_mirrored_views_need_mirrored_training() -> None:
    assert chosen(data()).views[0] == "flips"
    assert chosen(data((28, 28, 1))).views[0] == "plain"
    assert chosen(data(), augmentation="shift").views[0] == "plain"


def test_one_line_of_the_log_names_what_matters_most() -> None:
    line = chosen(data((160, 160, 3), 96)).line()
    values = "model fast-cnn-small, resolution 64, epochs 40, batch_size 16, learning_rate 0.027"
    assert line.startswith(f"chosen: {values}; ")
    assert f"choices and reasons ({len(Recipe().automatic())} in all)" in line
    assert "epochs" not in chosen(data((160, 160, 3), 96), minutes=2.0).line(), "minutes decide"
    assert "resolution" not in chosen(data((8, 8, 1))).line(), "it is that of the images"
    assert "pretrained torchvision" in chosen(data((160, 160, 3), 96, weights=FOUND)).line()
    of_views = ChosenRecipe(Recipe(), {"test_time_views": "as in training"}, ("plain", ""))
    assert of_views.line().startswith("choices and reasons (1 in all)"), "nothing that matters was left open"


def test_all_choices_their_reasons_and_the_advice_are_recorded() -> None:
    reasons = {"model": "small images", "batch_size": "6 images"}
    choice = ChosenRecipe(plain(batch_size=2), reasons, ("flips", "mirrored"), "get weights")
    assert choice.facts() == {
        "chosen": {
            "model": {"value": "digits-cnn", "reason": "small images"},
            "batch_size": {"value": 2, "reason": "6 images"},
            "test_time_views": {"value": "flips", "reason": "mirrored"},
        },
        "advice": "get weights",
    }


@pytest.mark.parametrize(("source", "sized"), [({"kind": "folder"}, False), ({"image_size": 64}, True)])
def test_what_is_measured_is_what_the_manifest_says(source: dict[str, Any], sized: bool) -> None:
    manifest = a_manifest(source=source, task="multilabel")
    assert auto.measured(manifest) == Measured(
        task="multilabel",
        shape=(4, 6, 1),
        images=6,
        per_class=manifest.splits["train"].per_class,
        validation=2,
        sized=sized,
    )


def test_weights_that_can_be_had_are_used_for_photographs() -> None:
    choice = chosen(data((256, 256, 3), 800, weights=FOUND))
    assert (choice.recipe.pretrained, choice.recipe.model) == ("torchvision", "resnet18")
    assert choice.reasons["pretrained"] == FOUND.seen
    assert choice.advice == ""


@pytest.mark.parametrize(
    ("measured", "given", "pretrained"),
    [
        (data((65, 65, 3), weights=FOUND), {}, "torchvision"),
        (data((64, 90, 3), weights=FOUND), {}, "none"),
        (data((65, 65, 1), weights=FOUND), {}, "none"),
        (data((65, 65, 3), weights=FOUND), {"warm_start": "runs/first/model"}, "none"),
        (data((65, 65, 3)), {}, "none"),
    ],
)
def test_weights_are_used_where_nothing_is_against_it(
    measured: Measured, given: dict[str, Any], pretrained: str
) -> None:
    assert chosen(measured, **given).recipe.pretrained == pretrained


def test_advice_names_the_weights_that_photographs_lack() -> None:
    choice = chosen(data((256, 256, 3), 800, weights=MISSING))
    assert choice.recipe.pretrained == "none"
    assert choice.reasons["pretrained"] == MISSING.seen
    assert "800 photographs" in choice.advice
    assert "--pretrained" in choice.advice
    assert chosen(data((256, 256, 3), 800), pretrained="torchvision").advice == ""


@pytest.mark.parametrize(
    ("measured", "given", "network"),
    [
        (data((256, 256, 3)), {}, "resnet18"),
        (data((256, 256, 3)), {"model": "vit_b_16"}, "vit_b_16"),
        (data((256, 256, 3)), {"model": "fast-cnn"}, ""),
        (data((256, 256, 3)), {"model": "mine:network"}, ""),
        (data((256, 256, 3)), {"pretrained": "none"}, ""),
        (data((256, 256, 3)), {"warm_start": "runs/first/model"}, ""),
        (data((256, 256, 3), 100_000), {}, ""),
        (data((256, 256, 1)), {}, ""),
        (data((32, 32, 3)), {}, ""),
    ],
)
def test_weights_are_looked_for_where_they_would_help(
    measured: Measured, given: dict[str, Any], network: str
) -> None:
    assert wanted_weights(measured, Recipe(**given)) == network


@pytest.mark.parametrize(("side", "resolution"), [(256, 96), (97, 96), (96, 0), (64, 0)])
def test_a_warm_start_sees_no_larger_images_than_its_own(side: int, resolution: int) -> None:
    measured = data((side, side, 3), network="fast-cnn", network_side=96)
    assert chosen(measured, warm_start="runs/first/model").recipe.resolution == resolution


@pytest.mark.parametrize(
    ("shape", "side", "found"),
    [
        ((160, 200, 3), 80, (80, 100, 3)),
        ((160, 200, 3), 0, (160, 200, 3)),
        ((28, 28, 1), 64, (28, 28, 1)),
    ],
)
def test_working_shape_keeps_proportions(
    shape: tuple[int, int, int], side: int, found: tuple[int, int, int]
) -> None:
    assert working_shape(shape, side) == found


def test_every_choosable_name_is_a_field() -> None:
    assert Recipe().automatic() <= {item.name for item in fields(Recipe)}


NETWORKS = ("digits-cnn", "lenet", "simple-cnn", "fast-cnn", "vgg11", "vit_b_16", "resnet50", "my:net")
OPTIMIZERS: tuple[dict[str, str], ...] = (
    {},
    {"optimizer": "sgd"},
    {"optimizer": "adamw"},
    {"optimizer": "muon"},
)
COUNTS = (1, 20, 144, 1499, 1500, 12_000, 50_000, 666_666, 666_667, 5_000_000)
SHAPES = ((15, 15, 3), (16, 16, 3), (32, 32, 1), (33, 33, 1), (64, 64, 3), (65, 90, 3), (128, 129, 1))


def by_device(device: str) -> Iterator[tuple[str, ChosenRecipe]]:
    for name, (measured, _) in CASES.items():
        yield f"{name}, {device}", chosen(measured, device)
    for images in (800, 15_000, 20_000, 20_001):
        measured = data((256, 256, 3), images, weights=FOUND)
        yield f"{images:,} photographs, weights, {device}", chosen(measured, device)
    for shape in SHAPES:
        yield f"{shape}, {device}", chosen(data(shape), device)


def by_what_is_given() -> Iterator[tuple[str, ChosenRecipe]]:
    for network, given in product(NETWORKS, OPTIMIZERS):
        choice = chosen(data((64, 64, 3), 9000), model=network, **given)
        yield f"{network}, {given.get('optimizer', 'any')}", choice
    for images in COUNTS:
        yield f"{images:,} pictures", chosen(data((48, 48, 3), images))
    for minutes in (0.1, 0.92, 0.93, 30):
        yield f"{minutes} minutes", chosen(data(images=9000), minutes=minutes)
    for processes in (1, 32, 33, 600):
        yield f"{processes} processes", choose(data(), Device(processes=processes), Recipe())


def test_what_is_chosen_changes_only_if_a_person_approves() -> None:
    """An update that chooses otherwise trains other models. With APPROVE=1, what is chosen now is approved.

    The cases lie on both sides of each limit, and have each family of networks with each optimizer.
    """
    choices = [*by_device("cpu"), *by_device("cuda"), *by_what_is_given()]
    lines = []
    for name, choice in choices:
        values = {key: getattr(choice.recipe, key) for key in choice.reasons}
        lines.append(f"{name}: {json.dumps({**values, 'test_time_views': choice.views[0]})}\n")
    if os.environ.get("APPROVE"):
        APPROVED.write_text("".join(lines))
    assert "".join(lines) == APPROVED.read_text()
