"""The space of a search in Katib's terms."""

from __future__ import annotations

import pytest

from ddpipe.errors import OutputMissing, ParameterError
from ddpipe.model.tasks import TASKS
from ddpipe.search.space import (
    check_katib,
    katib_parameters,
    parsed,
    recipe_of_trial,
    trial_template,
)
from ddpipe.train.journal import progress
from ddpipe.train.recipe import Recipe

SPACE = parsed(
    ["learning_rate=log(0.01,1)", "batch_size=16..64", "model=lenet,fast-cnn", "compile=true,false"]
)


def test_every_dimension_is_a_parameter() -> None:
    assert katib_parameters(SPACE) == [
        {
            "name": "learning_rate",
            "parameterType": "double",
            "feasibleSpace": {"min": "0.01", "max": "1.0", "distribution": "logUniform"},
        },
        {"name": "batch_size", "parameterType": "int", "feasibleSpace": {"min": "16", "max": "64"}},
        {"name": "model", "parameterType": "categorical", "feasibleSpace": {"list": ["lenet", "fast-cnn"]}},
        {"name": "compile", "parameterType": "categorical", "feasibleSpace": {"list": ["true", "false"]}},
    ]


def test_a_filled_template_is_the_recipe_of_the_trial() -> None:
    values = {"learning_rate": "0.25", "batch_size": "32", "model": "lenet", "compile": "true"}
    text = trial_template(SPACE, Recipe(epochs=3))
    for name, value in values.items():
        text = text.replace(f"${{trialParameters.{name}}}", value)
    filled = Recipe.from_json(text)
    assert filled == Recipe(epochs=3, learning_rate=0.25, batch_size=32, model="lenet", compile=True)
    assert recipe_of_trial(Recipe(epochs=3), values, "trial") == filled


def test_values_that_a_shell_would_interpret_are_rejected() -> None:
    check_katib(SPACE)
    with pytest.raises(ParameterError, match="characters that Katib cannot pass on"):
        check_katib(parsed(["pretrained=a.pt,$(reboot)"]))


@pytest.mark.parametrize("values", [{"learning_rate": "fast"}, {"nonsense": "1"}])
def test_values_that_cannot_be_read_are_named(values: dict[str, str]) -> None:
    with pytest.raises(OutputMissing, match="its values cannot be read"):
        recipe_of_trial(Recipe(), values, "trial")


@pytest.mark.parametrize("task", TASKS)
def test_the_line_of_an_epoch_has_the_metric(task: str) -> None:
    name = TASKS[task].scores[0]
    record = {
        "epoch": 1,
        "seconds": 1.0,
        "train_loss": 0.5,
        f"validation_{name}": 0.9,
        "validation_loss": 0.4,
    }
    assert f"val_{name}=.900" in progress(record, epochs=3)
