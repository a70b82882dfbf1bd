"""Presets: values of recipes that go together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpipe.api import chosen_recipe
from ddpipe.commands.options import given_names
from ddpipe.commands.run_steps import train_command
from ddpipe.errors import ParameterError
from ddpipe.train.presets import PRESETS, recipe_of
from ddpipe.train.recipe import Recipe
from ddpipe.validation import RunSettings


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_recipe_with_one_sentence(name: str) -> None:
    recipe = recipe_of(name, {})
    assert all(getattr(recipe, field) == value for field, value in PRESETS[name].values.items())
    assert recipe.automatic() <= {"model_selection"}
    assert PRESETS[name].help.endswith(".")


def test_what_is_given_comes_before_what_the_preset_says() -> None:
    recipe = recipe_of("documents", {"epochs": 3})
    assert (recipe.model, recipe.epochs) == ("simple-cnn", 3)


def test_without_a_preset_the_data_chooses() -> None:
    assert recipe_of("", {}) == Recipe()
    assert Recipe().automatic() >= {"model", "epochs", "learning_rate", "label_smoothing", "model_selection"}
    assert not Recipe().automatic() & {"precision", "deterministic", "strategy"}


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParameterError, match=r"'fastest'.*documents.*fast-32"):
        recipe_of("fastest", {})


def test_an_unknown_field_is_refused_beside_a_preset() -> None:
    with pytest.raises(ParameterError, match="'lerning_rate' is not a parameter"):
        recipe_of("fast-32", {"lerning_rate": 1})


def test_conflict_with_a_value_of_the_preset_names_the_preset() -> None:
    with pytest.raises(ParameterError, match="preset finetune sets pretrained=torchvision"):
        recipe_of("finetune", {"warm_start": "runs/first/model"})
    with pytest.raises(ParameterError) as caught:
        recipe_of("finetune", {"warm_start": "runs/first/model", "pretrained": "weights.pth"})
    assert "preset" not in str(caught.value)


def test_presets_are_known_where_there_is_no_torch() -> None:
    check = "import sys, ddpipe.train.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "recipe"),
    [
        (["--preset", "documents", "--epochs", "3"], recipe_of("documents", {"epochs": 3})),
        (["--preset", "documents", "--epochs", "15"], recipe_of("documents", {"epochs": 15})),
        (["--epochs", "3"], recipe_of("", {"epochs": 3})),
        (
            ["--preset", "documents", "--epochs", "auto", "--momentum", "0.5", "--write", "training", "out"],
            recipe_of("documents", {"momentum": 0.5}),
        ),
        (
            ["--preset", "documents", "--options", '{"momentum": 0.9}', "--write", "training", "out"],
            recipe_of("documents", {"momentum": 0.9}),
        ),
    ],
    ids=["a value", "the default", "no preset", "an engine gives its defaults too", "among the options"],
)
def test_what_is_given_overrides_the_preset(
    arguments: list[str], recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with train_command.make_context("train", ["--dataset", "m", *arguments]) as context:
        values = {**context.params, **context.params["options"]}
        assert chosen_recipe(RunSettings(values, given_names(values))) == recipe
