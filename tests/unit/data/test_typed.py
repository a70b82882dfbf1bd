"""Dataclasses from JSON: what fits its declaration is taken as it is, all else is named and refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ddpipe.data.typed import typed


@dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0


@dataclass(frozen=True)
class Plan:
    name: str
    count: int = 1
    share: float | None = None
    is_done: bool = False
    where: Point | None = None
    shape: tuple[int, int, int] = (1, 1, 1)
    points: tuple[Point, ...] = ()
    words: list[str] = field(default_factory=list)
    scores: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


WHOLE = {
    "name": "a",
    "count": 2,
    "share": 0.5,
    "is_done": True,
    "where": {"x": 1},
    "shape": [8, 9, 3],
    "points": [{"x": 1.0}, {"x": 2.0, "y": 3.0}],
    "words": ["one", "two"],
    "scores": {"accuracy": 1, "loss": 0.25},
    "facts": {"any": [1, {"thing": None}]},
}


def test_every_kind_of_field_is_taken() -> None:
    assert typed(Plan, WHOLE) == Plan(
        name="a",
        count=2,
        share=0.5,
        is_done=True,
        where=Point(1),
        shape=(8, 9, 3),
        points=(Point(1.0), Point(2.0, 3.0)),
        words=["one", "two"],
        scores={"accuracy": 1, "loss": 0.25},
        facts={"any": [1, {"thing": None}]},
    )


def test_what_has_a_default_may_be_left_out_and_what_may_be_none_is() -> None:
    assert typed(Plan, {"name": "a"}) == Plan("a")
    assert typed(Plan, {"name": "a", "share": None, "where": None}) == Plan("a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 1}, "name is 1, not str"),
        ({"name": None}, "name is None, not str"),
        ({"count": True}, "count is True, not int"),
        ({"count": 1.0}, "count is 1.0, not int"),
        ({"share": "0.5"}, "share is '0.5', not float"),
        ({"share": True}, "share is True, not float"),
        ({"share": float("nan")}, "share is nan, not float"),
        ({"share": float("inf")}, "share is inf, not float"),
        ({"is_done": 1}, "is_done is 1, not bool"),
        ({"where": [1, 2]}, "where is [1, 2], not an object"),
        ({"where": {}}, "where.x is missing"),
        ({"where": {"x": 1, "z": 2, "a": 3}}, "where.a is not known"),
        ({"where": {"x": "1"}}, "where.x is '1', not float"),
        ({"shape": [8, 9]}, "shape has 2 values, not 3"),
        ({"shape": [8, 9, 3, 1]}, "shape has 4 values, not 3"),
        ({"shape": [8, 9, "3"]}, "shape[2] is '3', not int"),
        ({"shape": "893"}, "shape is '893', not a list"),
        ({"points": {"x": 1}}, "points is {'x': 1}, not a list"),
        ({"points": [{"x": 1}, {"y": 1}]}, "points[1].x is missing"),
        ({"words": ["one", 2]}, "words[1] is 2, not str"),
        ({"scores": {"loss": None}}, "scores.loss is None, not float"),
        ({"scores": [1]}, "scores is [1], not an object"),
        ({"scores": {1: 0.5}}, "scores is {1: 0.5}, not an object"),
        ({"other": 1}, "other is not known"),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        typed(Plan, {**WHOLE, **changes})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("values", "where", "message"),
    [
        ([], "", "it is [], not an object"),
        (None, "the record", "the record is None, not an object"),
        ({}, "the record.", "the record.name is missing"),
        ("x" * 1000, "", f"it is '{'x' * 79}, not an object"),
    ],
    ids=["a list", "nothing", "empty", "long"],
)
def test_what_is_no_object_is_shown_shortened(values: object, where: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - as above
        typed(Plan, values, where)
    assert str(caught.value) == message
