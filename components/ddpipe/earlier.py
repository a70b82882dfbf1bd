"""What earlier runs leave to later ones: their model where nothing has changed, or weights to start from.

    <runs>/_earlier/same/<hash>.json      the last run of this data, recipe and code
    <runs>/_earlier/latest/<hash>.json    the last run of this dataset, classes, split rule and network

A note is written when its run is complete, and names the run's files by their hashes. It is believed only as
far as these files are there and have not changed, so runs may be deleted, damaged or made anew at any time;
of two runs that end together, the note of either is right.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ddpipe.data.manifest import DatasetManifest, load_manifest
from ddpipe.errors import CorruptObject, NoSuchObject, ParameterError, StoreError
from ddpipe.jobs import LOCAL
from ddpipe.model import is_own_function
from ddpipe.runs import Run
from ddpipe.steps import TrainOptions
from ddpipe.storage import Store, open_store, split_uri
from ddpipe.storage.files import info_of
from ddpipe.train.recipe import LATEST, Recipe

FOLDER = "_earlier"
"""Beside the folders of runs: no run's name begins so."""

START = "start.json"
"""Where a run keeps which weights it starts from, for all its attempts."""

CHUNK = 16 * 2**20
"""Bytes that are hashed at once: the launcher has little memory."""

SHAPING = ("data", "distributed", "evaluate", "export", "model", "train")
"""Our packages that decide what becomes of a dataset version."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Marks:
    """What a training is found by.

    Attributes:
        latest: Key of the note about the last run of its dataset, classes, split rule and network.
        same: Key of the note about the last run of the same data, recipe and code; empty: it cannot be told.
        unknown: Why not.
    """

    latest: str
    same: str = ""
    unknown: str = ""

    @property
    def keys(self) -> list[str]:
        """The notes that there are to write."""
        return [key for key in (self.same, self.latest) if key]


@dataclass(frozen=True, slots=True)
class Earlier:
    """A complete run of the past.

    Attributes:
        run: The run.
        told: Its name or title and when it ended, for people.
    """

    run: Run
    told: str


def marks(dataset: str, recipe: Recipe, options: TrainOptions) -> Marks:
    """What a training is found by.

    Args:
        dataset: Address of the dataset version's manifest.
        recipe: How to train.
        options: Where.

    Raises:
        DatasetError: The dataset is damaged.
        StoreError: It cannot be read.
    """
    manifest = load_manifest(dataset)
    latest = _key("latest", [*_family(manifest), recipe.model])
    try:
        parts = [dataset, recipe.shaping(), _weights(recipe), _place(recipe, options)]
    except _UnknownError as reason:
        return Marks(latest, unknown=str(reason))
    return Marks(latest, _key("same", parts))


def _family(manifest: DatasetManifest) -> list[Any]:
    """What versions have in common of which one's model may start on the other.

    Split otherwise, a version may test on what the model was trained on.
    """
    split_rule = {name: value for name, value in manifest.split_rule.items() if name != "groups"}  # a count
    return [manifest.name, manifest.task, manifest.classes, manifest.shape, split_rule, manifest.seed]


def _key(kind: str, parts: object) -> str:
    return f"{FOLDER}/{kind}/{_hash(parts)}.json"


class _UnknownError(Exception):
    """Whether something has changed cannot be told."""


def _weights(recipe: Recipe) -> str:
    """What stands behind the address of initial weights, where they have one."""
    if recipe.warm_start not in {"", LATEST}:
        return _stamp(f"{recipe.warm_start}/package.json")
    return _stamp(recipe.pretrained) if recipe.pretrained not in {"", "torchvision"} else ""


def _stamp(uri: str) -> str:
    """What changes whenever an object does."""
    store, name = split_uri(uri)
    try:
        if path := store.local_path(name):
            return info_of(name, path.stat()).etag
        return next(info.etag for info in store.list(name) if info.key == name)
    except (OSError, StoreError, StopIteration) as error:
        raise _UnknownError(f"{uri} cannot be read from here") from error


def _place(recipe: Recipe, options: TrainOptions) -> dict[str, Any]:
    """Code and processes: rounding depends on how many there are."""
    is_job = options.backend != LOCAL
    if is_own_function(recipe.model) and not (is_job and "@sha256:" in options.image):
        raise _UnknownError(
            f"{recipe.model} is code of your own, and in no image that is named by its digest"
        )
    return {
        "code": _code(),
        "software": options.image if is_job else version("torch"),
        "processes": options.processes_per_pod * (options.nodes if is_job else 1),
        "gpus": options.gpus,
    }


@functools.cache
def _code() -> str:
    root = Path(__file__).parent
    files = sorted(path for name in SHAPING for path in (root / name).rglob("*.py"))
    return _hash([(path.relative_to(root).as_posix(), path.read_text()) for path in files])


def _hash(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def note(run: Run, keys: Sequence[str], files: Mapping[str, str]) -> None:
    """Leave a complete run to later ones.

    Args:
        run: The run.
        keys: Of its `Marks`.
        files: SHA-256 of each file that counts, by its path in the run's folder.
    """
    finished = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    content = json.dumps({"run": run.name, "title": run.title, "finished": finished, "files": dict(files)})
    for key in keys:
        open_store(run.folder).write(key, content.encode())


def unchanged_since(run: Run, found_by: Marks) -> Earlier | None:
    """The earlier run, beside this one, that had the same data, recipe and code, if it is still whole.

    Raises:
        StoreError: The store does not answer.
    """
    if found_by.unknown:
        _log.info("training, as it cannot be told whether anything changed: %s", found_by.unknown)
        return None
    return _find(run, found_by.same)


def settled(run: Run, recipe: Recipe, found_by: Marks) -> Recipe:
    """The recipe with an address in place of `latest`, the same one for each attempt of the run.

    Where there is no model to start from yet, training starts as it would without `latest`.

    Raises:
        StoreError: The store does not answer, or cannot be written to.
    """
    if recipe.warm_start != LATEST:
        return recipe
    store = open_store(run.uri)
    start = _started(store)
    if start.get("for") != found_by.latest:
        found = _find(run, found_by.latest, below="model/")
        start = {"for": found_by.latest, "warm_start": found.run.model if found else ""}
        store.write(START, json.dumps(start).encode())
    if not start["warm_start"]:
        _log.info("no earlier model of this dataset, classes, split rule and network: starting without one")
        return replace(recipe, warm_start="")
    _log.info("starting from the latest model: %s", start["warm_start"])
    if recipe.pretrained:
        _log.warning(
            "pretrained %s is not used: it is for a first run, and warm_start latest found a model",
            recipe.pretrained,
        )
    return replace(recipe, warm_start=start["warm_start"], pretrained="")


def _started(store: Store) -> dict[str, str]:
    try:
        start: dict[str, str] = json.loads(store.read(START))
    except NoSuchObject:
        return {}
    return start


def _find(run: Run, key: str, below: str = "") -> Earlier | None:
    """The run that a note names, if it is whole, or what it has below a folder."""
    try:
        noted = json.loads(open_store(run.folder).read(key))
        earlier = Run.named(run.folder, noted["run"])
        told = f"{noted['title'] or earlier.name}, {noted['finished']}"
        files = {name: value for name, value in noted["files"].items() if name.startswith(below)}
    except NoSuchObject:
        return None
    except (CorruptObject, ParameterError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("the note about an earlier run is damaged (%r) and not used", error)
        return None
    if problem := _damage(open_store(earlier.uri), files):
        _log.warning("the earlier run %s is no longer whole (%s) and not used", told, problem)
        return None
    return Earlier(earlier, told)


def _damage(store: Store, files: Mapping[str, str]) -> str:
    """The first file that is not as it was; empty if all are."""
    if not files:
        return "its note names no files"
    sizes = {info.key: info.size for info in store.list()}
    for name, expected in files.items():
        if name not in sizes:
            return f"{name} is missing"
        if _sha256(store, name, sizes[name]) != expected:
            return f"{name} has changed"
    return ""


def _sha256(store: Store, name: str, size: int) -> str:
    digest = hashlib.sha256()
    try:
        for start in range(0, size, CHUNK):
            digest.update(store.read_range(name, start, min(CHUNK, size - start)))
    except (NoSuchObject, CorruptObject):  # it went, or was replaced, since it was listed
        return ""
    return digest.hexdigest()
