"""What to prepare: which parameters are accepted, and what they mean together."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from ddpipe.errors import ParameterError
from ddpipe.parameters import declared
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.sources import SOURCES, Table

FOLDER = PrepareSpec(source="folder", source_path="photos")
CSV = PrepareSpec(source="csv", source_path="scans")


def _problems(spec: PrepareSpec) -> str:
    with pytest.raises(ParameterError) as refused:
        spec.validated()
    return refused.value.seen


def test_the_defaults_prepare_the_digits() -> None:
    assert PrepareSpec.from_dict({}).with_detected_source().source == "digits"
    assert all(item.help.endswith(".") for item in declared(PrepareSpec))


def test_a_dataset_is_named_after_its_source_by_default() -> None:
    assert PrepareSpec().name == "digits"
    assert PrepareSpec(dataset_name="mine").name == "mine"


def test_training_gets_what_validation_and_test_leave() -> None:
    spec = PrepareSpec(validation_fraction=0.25, test_fraction=0.5)
    assert spec.fractions == {"train": 0.25, "validation": 0.25, "test": 0.5}


def test_the_columns_of_a_table_are_given_by_name() -> None:
    spec = replace(
        CSV, table="a.csv", image_column="i", label_columns="a,b", group_column="g", split_column="s"
    )
    assert spec.validated().columns == Table(file="a.csv", image="i", labels=("a", "b"), group="g", split="s")
    assert CSV.columns == Table()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source", "imagenet"),
        ("image_size", -1),
        ("image_size", 4097),
        ("validation_fraction", 0),
        ("validation_fraction", 1),
        ("validation_fraction", float("nan")),
        ("test_fraction", -0.1),
        ("test_fraction", 1.0),
        ("split_seed", -1),
        ("verify", "yes"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(name: str, value: object) -> None:
    assert f"`{name}` is {value!r}, not " in _problems(replace(PrepareSpec(), **{name: value}))


def test_all_conflicts_are_in_one_message() -> None:
    spec = replace(FOLDER, dataset_name="No Name", validation_fraction=0.6, test_fraction=0.4, store="")
    seen = _problems(spec)
    for problem in (
        "3 problems",
        "`dataset_name` is 'No Name'",
        "`validation_fraction` 0.6 and `test_fraction` 0.4 leave nothing for training",
        "`store` is empty",
    ):
        assert problem in seen


@pytest.mark.parametrize("name", ["a", "0", "cifar-10", "x" * 63])
def test_a_name_of_letters_and_digits_is_accepted(name: str) -> None:
    assert PrepareSpec(dataset_name=name).validated().name == name


@pytest.mark.parametrize("name", ["A", "-a", "a/b", "..", "x" * 64, "a b", "ä", "a\n"])
def test_a_name_that_would_not_be_a_folder_in_every_store_is_refused(name: str) -> None:
    assert "`dataset_name` is" in _problems(PrepareSpec(dataset_name=name))


@pytest.mark.parametrize("source", SOURCES)
def test_a_path_is_needed_unless_the_source_is_built_in_or_downloaded(source: str) -> None:
    if source in {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100"}:
        assert PrepareSpec(source=source).validated()
    else:
        assert "`source_path` is empty" in _problems(PrepareSpec(source=source))


def test_the_digits_are_nowhere_else() -> None:
    assert "the source digits is built in" in _problems(PrepareSpec(source="digits", source_path="/data"))


@pytest.mark.parametrize(
    "change",
    [
        {"table": "other.csv"},
        {"group_column": "patient"},
        {"label_columns": "a,b"},
    ],
)
def test_columns_are_refused_where_no_table_is_read(change: dict[str, Any]) -> None:
    assert replace(CSV, **change).validated()
    assert "the source is folder, not csv" in _problems(replace(FOLDER, **change))


def test_the_parameters_are_known_without_numpy() -> None:
    """As in an installation that only compiles and submits pipelines."""
    code = (
        "import sys\n"
        "for name in ('numpy', 'PIL', 'sklearn', 'jinja2', 'simplejpeg', 'torch'): sys.modules[name] = None\n"
        "from ddpipe.prepare.spec import PrepareSpec; PrepareSpec.from_dict({})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_choice_lists_the_choices_one_per_line() -> None:
    (problem,) = PrepareSpec(source="sound").problems()
    assert problem.splitlines()[:3] == ["`source` is 'sound', not one of:", "      auto", "      digits"]


@pytest.mark.parametrize(
    ("path", "table", "expected"),
    [
        ("s3://key:secret@bucket/data?token=1", "", {"location": "s3://bucket/data"}),
        ("/data/photos", "", {"location": "/data/photos"}),
        ("/data/photos/../faces/", "", {"location": "/data/faces"}),
        ("/data", "a.csv", {"location": "/data", "table": "/data/a.csv"}),
        ("", "", {}),
    ],
)
def test_the_place_of_the_raw_data_has_no_secret(path: str, table: str, expected: dict[str, str]) -> None:
    values = {"source": "csv", "table": table} if table else {"source": "folder"}
    assert PrepareSpec.from_dict({"source_path": path, **values} if path else {}).origin == expected
