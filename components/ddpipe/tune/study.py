"""A study: its folder, what it was begun with, and the best recipe that it found.

<studies>/<name>/study.json        what was searched, around which recipe, on which dataset version
<studies>/<name>/journal.log       the trials, in Optuna's format
<studies>/<name>/trials/0000/ …    the run of each trial
<studies>/<name>/best.json         the best recipe, once the study has ended
<studies>/<name>/report.html

The best recipe may come from a bucket that others can write to. Its values are validated like a user's, and a
function that it names as the network is never imported: the user has to name it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from ddpipe.errors import CorruptObject, NoSuchObject, ParameterError, check_schema, listed
from ddpipe.parameters import Between, Parameters, parameter
from ddpipe.runs import NAME, Run
from ddpipe.storage import open_store, split_uri
from ddpipe.train.recipe import Recipe, as_today, own_functions

SETTINGS, SCHEMA = "study.json", 1

FOLDER = "studies"  # where a study is that is given by its name


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions(Parameters):
    """Which study."""

    heading: ClassVar[str] = "Search"
    what: ClassVar[str] = "the study has no valid name"

    study: str = parameter(
        "",
        "Name of the study in the folder studies, or a path; an unfinished study continues (default: name of "
        "the dataset, and the time).",
        common=True,
    )
    processes: int = parameter(1, "Training processes of a trial.", Between(1, 256), common=True)


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the trials of a study: one that continues has the same."""

    search: Sequence[str]
    recipe: dict[str, Any]
    dataset: str
    dataset_id: str
    sampler: str
    pruning: str
    processes: int


@dataclass(frozen=True, slots=True)
class Study:
    """The folder of a study, on this machine."""

    folder: Path

    @classmethod
    def named(cls, study: str) -> Study:
        """The study of this name in the folder `studies`, or at this path."""
        parent, _, name = study.rpartition("/")
        folder = open_store(parent or ("/" if study.startswith("/") else FOLDER)).local_path(".")
        if folder is None or not NAME.fullmatch(name):
            raise ParameterError(
                what="the study cannot be stored",
                which=study,
                seen="trials append to one file: it has to be in a folder on this machine"
                if folder is None
                else "a name consists of letters, digits, '.', '_' and '-' and starts with a letter or digit",
                do="Choose another one with `study`.",
            )
        return cls(folder / name)

    @property
    def name(self) -> str:
        """The name."""
        return self.folder.name

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.folder / "report.html"

    @property
    def best(self) -> Path:
        """The best recipe."""
        return self.folder / BEST

    def run(self, number: int) -> Run:
        """The run of a trial."""
        return Run(str(self.folder / "trials" / f"{number:04}"))

    def check(self, settings: Settings) -> None:
        """Store the settings of a new study; compare those of one that continues."""
        store = open_store(str(self.folder))
        now = json.loads(json.dumps(asdict(settings)))
        try:
            before = json.loads(store.read(SETTINGS))
            check_schema(before, SCHEMA, f"{store.uri}/{SETTINGS}")
            problems = [
                *_differences(as_today(before["recipe"]), now["recipe"]),
                *_differences(before, now, but=("recipe", "schema")),
            ]
        except NoSuchObject:
            store.write(SETTINGS, json.dumps({"schema": SCHEMA, **now}, indent=1).encode())
            return
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise damaged(self.folder / SETTINGS, error) from error
        if problems:
            raise ParameterError(
                what="the study cannot continue",
                which=str(self.folder),
                seen=f"it was begun differently; {listed(problems)}",
                do="Use the same options, or give the new study another name with `study`.",
            )


def damaged(path: Path, error: Exception) -> CorruptObject:
    """The error of a file of a study that no study wrote."""
    return CorruptObject(
        what="the study cannot continue",
        which=str(path),
        seen=f"the file is malformed: {str(error)[:200]}",
        do="Restore the file, or begin another study with `study`.",
    )


def _differences(before: dict[str, Any], now: dict[str, Any], but: Collection[str] = ()) -> list[str]:
    return [
        f"{name} was {before.get(name)!r}, is now {now.get(name)!r}"
        for name in {**before, **now}
        if name not in but and before.get(name) != now.get(name)
    ]


BEST = "best.json"  # in the folder of a study: its best recipe
LARGEST = 1_000_000  # bytes of the file
_LONGEST = 200  # characters of a place that a message shows


def best_recipe(place: str, given: Collection[str] = ()) -> dict[str, Any]:
    """The values of the recipe that a study found."""
    text = place if place.lstrip().startswith("{") else _read(place)
    try:
        content = json.loads(text)
        values = content.get("recipe", content)
        found = Recipe.from_dict(values).to_dict()
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise _not_one(place, f"it is not a JSON object of names and values ({error})") from error
    except ParameterError as error:
        raise _not_one(place, error.seen) from error
    for name in own_functions(found).keys() - set(given):
        raise ParameterError(
            what="the recipe is not used",
            which=_shown(place),
            seen=f"its {name} is the function {found[name]}, and a file never decides what is imported",
            do=f"Name the function yourself: `{name}` {found[name]}",
        )
    return found


def _read(place: str) -> str:
    uri = place if place.endswith(".json") else f"{place.rstrip('/')}/{BEST}"
    store, name = split_uri(uri)
    size = next((item.size for item in store.list(name) if item.key == name), None)
    if size is None:
        raise ParameterError(
            what="there is no best recipe",
            which=place,
            seen=f"{uri} does not exist",
            do="Name the folder of a finished study; repeat the command of an unfinished one to continue.",
        )
    if size > LARGEST:
        raise _not_one(place, f"it has {size} bytes, more than {LARGEST}")
    return store.read(name).decode(errors="replace")


def _not_one(place: str, seen: str) -> ParameterError:
    return ParameterError(
        what="the recipe is not valid",
        which=_shown(place),
        seen=seen,
        do="Name a study's folder, or a JSON object of hyperparameters, with `recipe`.",
    )


def _shown(place: str) -> str:
    return place if len(place) <= _LONGEST else f"{place[:_LONGEST]}…"


def recipe_text(recipe: Recipe) -> str:
    """What shapes the model, as one line that `best_recipe` reads."""
    return json.dumps(recipe.shaping(), sort_keys=True)


def winner_json(recipe: Recipe, **facts: object) -> bytes:
    """The content of the file: the recipe, and what is known about it."""
    return json.dumps({"recipe": recipe.to_dict(), **facts}, indent=1).encode()
