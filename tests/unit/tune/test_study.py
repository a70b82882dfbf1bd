"""The best recipe of a study, where a training starts from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddpipe.__main__ import cli
from ddpipe.errors import ParameterError
from ddpipe.train.recipe import Recipe
from ddpipe.tune.study import BEST, best_recipe, winner_json

RECIPE = Recipe(model="fast-cnn", epochs=3, learning_rate=0.25)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / BEST).write_bytes(winner_json(RECIPE, study="one", trial=4, score=0.9))
    return tmp_path


def test_a_study_gives_its_recipe(study: Path) -> None:
    assert best_recipe(str(study)) == RECIPE.to_dict()
    assert best_recipe(f"{study}/") == best_recipe(f"{study}/{BEST}") == RECIPE.to_dict()


def test_a_json_object_is_a_recipe() -> None:
    assert best_recipe('{"epochs": 3}') == Recipe(epochs=3).to_dict()
    assert best_recipe(winner_json(RECIPE).decode()) == RECIPE.to_dict()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"epochs": -2}', "`epochs` is -2"),
        ('{"lerning_rate": 1}', "'lerning_rate' is not a parameter"),
        ('{"recipe": 3}', "not a JSON object"),
        ("{nonsense", "not a JSON object"),
        pytest.param('{"recipe":' + "[" * 200_000, "not a JSON object", id="too deep"),
        ('{"model": "../../etc/passwd"}', "`model` is"),
        ('{"epochs": 1e999}', "`epochs` is"),
    ],
)
def test_a_damaged_recipe_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        best_recipe(text)


def test_an_unfinished_study_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"there is no best recipe.*best\.json does not exist"):
        best_recipe(str(tmp_path))


def test_a_file_does_not_decide_what_is_imported(tmp_path: Path) -> None:
    (tmp_path / BEST).write_bytes(winner_json(Recipe(model="evil.module:network")))
    with pytest.raises(ParameterError, match="a file never decides what is imported"):
        best_recipe(str(tmp_path))
    assert best_recipe(str(tmp_path), given=["model"])["epochs"] == Recipe().epochs


def test_given_values_override_the_recipe(study: Path) -> None:
    rejected = CliRunner().invoke(
        cli, ["run", "--recipe", str(study), "--strategy", "fsdp", "--optimizer", "muon", "--json"]
    )
    assert "--optimizer muon cannot be used with --strategy fsdp" in json.loads(rejected.stdout)["seen"]
