"""Recipes: what they accept and what they refuse."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from ddpipe.errors import ParameterError
from ddpipe.parameters import declared
from ddpipe.train.recipe import AT_FIRST, AUGMENTATIONS, FORMER, Recipe, StartingRecipe, as_today

APPROVED = Path(__file__).parents[2] / "golden" / "recipe.txt"


def test_the_defaults_are_valid_and_explained() -> None:
    assert Recipe().validated() == Recipe.from_dict({})
    assert all(item.metadata["help"].endswith(".") for item in fields(Recipe))


def test_what_a_recipe_accepts_changes_only_if_a_person_approves() -> None:
    """People have stored recipes and spaces of searches. With APPROVE=1, what is accepted now is approved."""
    lines = [
        f"{item.name}: default {item.default!r}; accepts {' '.join(str(item.allowed).split())}; "
        f"typical {item.typical}; field {item.form}; shapes the model: {item.shapes}\n"
        for item in declared(Recipe)
    ]
    lines += [f"{name}: {how}\n" for name, how in AUGMENTATIONS.items()]
    lines += [
        f"{name}: now {FORMER.get(name)!r}, at first {AT_FIRST.get(name)!r}\n"
        for name in {**FORMER, **AT_FIRST}
    ]
    if os.environ.get("APPROVE"):
        APPROVED.write_text("".join(lines))
    assert "".join(lines) == APPROVED.read_text()


def test_a_recipe_survives_json() -> None:
    recipe = Recipe(epochs=3, learning_rate=0.25, precision="bf16")
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_a_stored_recipe_may_name_former_hyperparameters(caplog: pytest.LogCaptureFixture) -> None:
    stored = {**Recipe(epochs=3).to_dict(), **FORMER, "keep_checkpoints": 2, "node_hour_price": 0.0}
    assert as_today(stored) == Recipe(epochs=3).to_dict()
    assert Recipe.from_dict(stored) == Recipe(epochs=3)
    assert not caplog.text
    other = {**stored, "mixing_alpha": 0.4, "node_hour_price": 2.5}
    assert as_today(other) == {**Recipe(epochs=3).to_dict(), "mixing_alpha": 0.4}
    assert Recipe.from_dict(other) == Recipe(epochs=3)
    assert "mixing_alpha 0.4 of a stored recipe is not used: it is always 1.0" in caplog.text


def test_a_stored_number_may_be_open_in_the_former_way() -> None:
    assert as_today({"epochs": -1, "learning_rate": -1.0, "seed": 5}) == {
        "epochs": "auto",
        "learning_rate": "auto",
        "seed": 5,
        "loss": "cross-entropy",  # the only one before it had a name
    }
    assert Recipe.from_dict({"epochs": -1}) == Recipe()
    with pytest.raises(ParameterError, match="`epochs` is -1, not a whole number from 1 to 100000, or auto"):
        Recipe(epochs=-1).validated()


def test_what_a_recipe_of_the_first_release_leaves_out_never_changes() -> None:
    assert AT_FIRST == {
        "model": "digits-cnn",
        "pretrained": "none",
        "resolution": 0,
        "initial_resolution": 1.0,
        "epochs": 15,
        "batch_size": 64,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "schedule": "cosine",
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "warmup_fraction": 0.1,
        "label_smoothing": 0.0,
        "class_weights": "none",
        "augmentation": "none",
        "averaging_decay": 0.0,
    }


def test_a_whole_number_is_a_number() -> None:
    assert Recipe.from_json('{"learning_rate": 1}').learning_rate == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "resnet-9000"),
        ("epochs", 0),
        ("epochs", 2.5),
        ("epochs", "3"),
        ("epochs", "automatic"),
        ("batch_size", -64),
        ("batch_size", True),
        ("learning_rate", 0),
        ("learning_rate", -0.1),
        ("resolution", -2),
        ("learning_rate", float("nan")),
        ("learning_rate", float("inf")),
        ("momentum", 1.0),
        ("weight_decay", -1e-4),
        ("warmup_fraction", 1),
        ("label_smoothing", 1),
        ("optimizer", "lion"),
        ("schedule", "step"),
        ("clip_norm", -1),
        ("class_weights", "inverse"),
        ("initial_resolution", 0),
        ("averaging_decay", 1),
        ("patience", -1),
        ("strategy", "horovod"),
        ("sync_batch_norm", "yes"),
        ("precision", "fp64"),
        ("precision", None),
        ("seed", -1),
        ("seed", 2**32),
        ("checkpoint_minutes", 0),
    ],
)
def test_an_invalid_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ParameterError) as refused:
        Recipe.from_dict({name: value})
    assert f"`{name}` is {value!r}, not " in refused.value.seen
    with pytest.raises(ParameterError):
        replace(Recipe(), **{name: value}).validated()


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ParameterError) as refused:
        Recipe.from_dict({"epochs": -2, "model": "vgg", "lerning_rate": 0.1})
    assert refused.value.seen.startswith("3 problems:")
    for part in (
        "'lerning_rate' is not a parameter",
        "`epochs` is -2",
        "`model` is 'vgg', not digits-cnn, lenet",
    ):
        assert part in refused.value.seen


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"optimizer": "muon", "strategy": "fsdp"}, "`optimizer` muon cannot be used with `strategy` fsdp"),
        ({"optimizer": "muon"}, ""),
        ({"strategy": "fsdp"}, ""),
        ({"precision": "fp16", "strategy": "fsdp"}, "`precision` fp16 cannot be used with `strategy` fsdp"),
        ({"precision": "fp16"}, ""),
        ({"pretrained": "torchvision", "warm_start": "runs/1"}, "`pretrained` and `warm_start` both name"),
        ({"pretrained": "torchvision", "warm_start": "latest"}, ""),
        ({"pretrained": "torchvision"}, ""),
        ({"pretrained": "none", "warm_start": "runs/1"}, ""),
        ({"warm_start": "runs/1"}, ""),
        ({"loss": "mine:loss", "label_smoothing": 0.1}, "`loss` is your own"),
        ({"loss": "mine:loss", "class_weights": "balanced"}, "`loss` is your own"),
        ({"loss": "mine:loss", "label_smoothing": 0, "class_weights": "none"}, ""),
        ({"loss": "mine:loss"}, ""),
        ({"label_smoothing": 0.1, "class_weights": "balanced"}, ""),
    ],
)
def test_values_that_exclude_each_other_are_refused(values: dict[str, Any], problem: str) -> None:
    recipe = Recipe(**values)
    if problem:
        with pytest.raises(ParameterError) as refused:
            recipe.validated()
        assert problem in refused.value.seen
    else:
        assert recipe.validated() == recipe


def test_a_recipe_to_start_from_is_a_hyperparameter_of_its_own_in_forms() -> None:
    (item,) = declared(StartingRecipe)
    assert (item.name, item.default, item.form) == ("recipe", "", "train_recipe")
    assert (Recipe.heading, Recipe.others) == ("Hyperparameters", "train_options")


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="is not a JSON object"):
        Recipe.from_json(text)


def test_recipes_that_only_save_at_other_times_give_the_same_model() -> None:
    assert Recipe(checkpoint_minutes=1) == Recipe(checkpoint_minutes=2)
    assert "checkpoint_minutes" not in Recipe().shaping()
    assert Recipe(seed=1) != Recipe(seed=2)
