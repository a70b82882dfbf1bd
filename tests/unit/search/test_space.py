"""The space of a search, from text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipes import plain

from ddpipe.errors import ParameterError
from ddpipe.parameters import declared
from ddpipe.search.space import Choice, Range, checked, parsed, recipe_with
from ddpipe.train.recipe import Recipe


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("learning_rate=log(0.01,1)", Range("learning_rate", 0.01, 1, log=True)),
        ("learning-rate = log( 1e-3 , 1 )", Range("learning_rate", 0.001, 1, log=True)),
        ("label_smoothing=0..0.2", Range("label_smoothing", 0, 0.2)),
        ("batch_size=32..256", Range("batch_size", 32, 256, whole=True)),
        ("batch_size=log(32,256)", Range("batch_size", 32, 256, log=True, whole=True)),
        ("model=fast-cnn,resnet18", Choice("model", ("fast-cnn", "resnet18"))),
        ("batch_size=32, 64,128", Choice("batch_size", (32, 64, 128))),
        ("compile=true,false", Choice("compile", (True, False))),
        ("learning_rate", Range("learning_rate", 0.001, 1, log=True)),
        ("schedule", Choice("schedule", ("cosine", "linear", "constant"))),
        ("sync_batch_norm", Choice("sync_batch_norm", (True, False))),
    ],
)
def test_a_dimension_is_read(text: str, dimension: Range | Choice) -> None:
    assert parsed([text]).dimensions == (dimension,)
    assert parsed(parsed([text]).written()).dimensions == (dimension,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr=0..1", r"'lr' is not a parameter here; did you mean learning_rate\?"),
        ("lerning_rate=0..1", r"'lerning_rate' is not a parameter here; did you mean learning_rate\?"),
        ("lerning_rate=1..3", "'lerning_rate' is not a parameter"),
        ("learning_rate=log(0,1)", "`learning_rate` is 0.0, not a number greater than 0"),
        ("weight_decay=log(0,1)", "starts above 0"),
        ("learning_rate=0.5..0.1", r"0\.5 is not below the upper limit 0\.1"),
        ("learning_rate=0.1..20", "`learning_rate` is 20.0, not a number greater than 0 and at most 10"),
        ("learning_rate=nan..1", "`learning_rate` is 'nan', not a number"),
        ("learning_rate=log(0.1)", "`learning_rate` is 'log"),
        ("batch_size=1.5..3", "`batch_size` is '1.5', not a whole number"),
        ("batch_size=64", "leaves nothing to search"),
        ("batch_size=64,64", "named twice"),
        ("model=log(1,2)", "it has no numbers; name values"),
        ("model=fast-cnn,nonsense", "`model` is 'nonsense', not digits-cnn"),
        ("model", "no typical values; name some: model=VALUE,VALUE"),
        ("compile=yes,no", "`compile` is 'yes', not true or false"),
        ("learning_rate=", "`learning_rate` is '', not a number"),
        (f"batch_size={','.join(map(str, range(1, 40)))}", "39 values, more than 32"),
    ],
)
def test_a_wrong_dimension_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parsed([text])


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ParameterError) as raised:
        parsed(["nonsense=1..2", "learning_rate=1..0.1", "momentum=0..0.5", "momentum=0.1..0.2"])
    assert "3 problems" in str(raised.value)
    assert "momentum is searched twice" in str(raised.value)


def test_an_empty_space_is_rejected() -> None:
    with pytest.raises(ParameterError, match="nothing is searched"):
        parsed([])


def test_a_search_may_name_these_numbers_without_a_range() -> None:
    named = [
        *("batch_size", "learning_rate", "momentum", "weight_decay"),
        *("warmup_fraction", "label_smoothing", "initial_resolution", "averaging_decay"),
    ]
    assert [item.name for item in declared(Recipe) if item.typical] == named
    assert parsed(named).names == named


def test_typical_values_are_allowed_ones() -> None:
    for item in declared(Recipe):
        if item.typical:
            low, high = (item.kind(limit) for limit in (item.typical.low, item.typical.high))
            assert low < high
            assert not item.problem(low)
            assert not item.problem(high)
            assert low > 0 or not item.typical.log


def test_limits_that_do_not_suit_the_recipe_are_rejected() -> None:
    recipe = Recipe(strategy="fsdp")
    with pytest.raises(ParameterError, match="with optimizer=muon: `optimizer` muon cannot be used"):
        checked(parsed(["optimizer=sgd,muon"]), recipe)
    assert checked(parsed(["optimizer=sgd,adamw"]), recipe)


def test_trials_have_no_limit_of_time() -> None:
    with pytest.raises(ParameterError, match="`minutes` limits a trial by its time"):
        checked(parsed(["momentum"]), Recipe(minutes=5))
    with pytest.raises(ParameterError, match="`minutes` limits a trial by its time"):
        checked(parsed(["minutes=1..5"]), Recipe())


def test_a_searched_parameter_cannot_have_a_value_too() -> None:
    with pytest.raises(ParameterError, match="learning_rate is searched and set to one value"):
        checked(parsed(["learning_rate"]), Recipe(), given=["learning_rate"])


def test_a_space_contains_the_values_between_its_limits() -> None:
    space = parsed(["learning_rate=0.01..0.1", "optimizer=sgd,adamw"])
    assert space.of(plain()) in space
    assert {"learning_rate": 0.2, "optimizer": "sgd"} not in space
    assert {"learning_rate": 0.05, "optimizer": "muon"} not in space


def test_values_that_do_not_go_together_are_named() -> None:
    with pytest.raises(ParameterError, match=r"(?s)optimizer=muon: .*fsdp"):
        recipe_with(Recipe(strategy="fsdp"), {"optimizer": "muon"})


@given(st.sampled_from(["learning_rate", "batch_size", "model", "compile"]), st.text(max_size=40))
def test_any_text_is_a_dimension_or_an_error(name: str, text: str) -> None:
    try:
        space = parsed([f"{name}={text}"])
    except ParameterError:
        return
    assert space.names == [name]
    assert len(set(space.dimensions[0].limits)) > 1
