"""Results of earlier runs that later runs reuse: the model if nothing has changed, or initial weights.

    <runs>/_earlier/same/<hash>.json      the last run of this data, recipe and code
    <runs>/_earlier/latest/<hash>.json    the last run of this dataset, classes, split rule and network

A complete run writes a record under both keys, with the hashes of its files. A later run looks its own keys
up, and uses a record only if these files still exist and have not changed. So runs can be deleted, damaged or
repeated at any time; if two runs end at the same time, the record of either is right.

Trainings are not stored under their key themselves: a run would no longer be one folder that can be copied
and deleted, two runs of one key would write to one folder at a time, and a folder may still be damaged.
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

from ddpipe.data.manifest import load_manifest, store_of
from ddpipe.errors import CorruptObject, NoSuchObject, ParameterError, StoreError
from ddpipe.jobs import LOCAL
from ddpipe.model.training_record import METRICS
from ddpipe.processes.packing import is_shipped
from ddpipe.runs import Run
from ddpipe.steps import TrainOptions
from ddpipe.storage import Store, open_store, split_uri
from ddpipe.storage.files import info_of
from ddpipe.train.recipe import LATEST, NONE, Recipe, own_functions

FOLDER = "_earlier"  # next to the folders of runs, whose names cannot start like this
START = "start.json"  # where a run stores which weights it starts from, for all its attempts
CHUNK = 16 * 2**20  # bytes to hash at a time: the launcher has little memory
# What reading a damaged record raises.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
# The packages of ddpipe whose code shapes a model.
SHAPING = ("data", "distributed", "evaluate", "export", "model", "train")
_MOST_MEMORY = 2**60  # bytes: more is no measurement
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReuseKeys:
    """Under which keys a training is recorded; `unknown` says why `same` cannot be computed."""

    latest: str
    same: str = ""
    unknown: str = ""

    @property
    def keys(self) -> list[str]:
        """The keys to write a record under."""
        return [key for key in (self.same, self.latest) if key]


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier run, and when it finished."""

    run: Run
    finished: str

    def __str__(self) -> str:
        return f"{self.run.name}, {self.finished}"


def reuse_keys(dataset: str, recipe: Recipe, options: TrainOptions) -> ReuseKeys:
    """The keys of a training."""
    manifest = load_manifest(dataset)
    # What dataset versions must have in common for a model of one to start training on the other. With
    # another split rule, the test split might contain images that the model was trained on.
    rule = {name: value for name, value in manifest.split_rule.items() if name != "groups"}  # a count
    family = [manifest.name, manifest.task, manifest.classes, manifest.shape, rule, manifest.seed]
    latest = _key("latest", [*family, recipe.model])
    try:
        parts = [dataset, recipe.shaping(), _weights(recipe), _place(recipe, options)]
    except _UnknownError as reason:
        return ReuseKeys(latest, unknown=str(reason))
    return ReuseKeys(latest, _key("same", parts))


def _key(kind: str, parts: object) -> str:
    return f"{FOLDER}/{kind}/{_hash(parts)}.json"


class _UnknownError(Exception):
    """It is unknown whether anything has changed."""


def _weights(recipe: Recipe) -> str:
    """The content of the initial weights, as far as a URI names them."""
    if recipe.warm_start not in {"", LATEST}:
        return _stamp(f"{recipe.warm_start}/package.json")
    return _stamp(recipe.pretrained) if recipe.has_pretrained and recipe.pretrained != "torchvision" else ""


def _stamp(uri: str) -> str:
    """A text that changes whenever the object does."""
    store, name = split_uri(uri)
    try:
        if path := store.local_path(name):
            return info_of(name, path.stat()).etag
        return next(info.etag for info in store.list(name) if info.key == name)
    except (OSError, StoreError, StopIteration) as error:
        raise _UnknownError(f"{uri} cannot be read from here") from error


def _place(recipe: Recipe, options: TrainOptions) -> dict[str, Any]:
    """Code, and number of processes, on which rounding depends."""
    is_job = options.backend != LOCAL
    own = own_functions(recipe.to_dict()).values()
    if own and (any(map(is_shipped, own)) or not (is_job and "@sha256:" in options.image)):
        raise _UnknownError(f"{', '.join(own)} is your own code, and not in an image given by its digest")
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


def record(run: Run, keys: Sequence[str], files: Mapping[str, str]) -> None:
    """Record a complete run for later ones."""
    finished = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    about = {"run": run.name, "finished": finished, "files": dict(files)}
    content = json.dumps({**about, "memory": peak_memory(run.training, METRICS)})
    for key in keys:
        open_store(run.folder).write(key, content.encode())


def peak_memory(folder: str, key: str) -> int:
    """The most bytes that a process had, by the metrics of a training or a record of here; 0: unknown."""
    try:
        lines = map(json.loads, open_store(folder).read(key).splitlines())
        found = [line.get("memory") for line in lines]
    except (StoreError, *MALFORMED):  # it is for advice only
        return 0
    return max((one for one in found if isinstance(one, int) and one < _MOST_MEMORY), default=0)


def unchanged_since(run: Run, keys: ReuseKeys) -> Earlier | None:
    """The last run in the same folder with the same data, recipe and code, if it is still complete."""
    if keys.unknown:
        _log.info("training, because it is unknown whether anything has changed: %s", keys.unknown)
        return None
    return _find(run, keys.same)


def with_latest_weights(run: Run, recipe: Recipe, keys: ReuseKeys, dataset: str) -> Recipe:
    """The recipe with the URI of a model in place of `latest`, the same one for every attempt of the run."""
    # Without an earlier model, or with one that was trained on images that are to judge this one, training
    # starts as if `latest` were not given.
    if recipe.warm_start != LATEST:
        return recipe
    store = open_store(run.uri)
    start = _started(store)
    if start.get("for") != keys.latest:
        found = _find(run, keys.latest, below="model/")
        if found and (seen := _seen(found.run.model, dataset)):
            _log.warning("the latest model is not used: it was trained on %s of this version", seen)
            found = None
        start = {"for": keys.latest, "warm_start": found.run.model if found else ""}
        store.write(START, json.dumps(start).encode())
    if not start["warm_start"]:
        _log.info("there is no earlier model of this dataset, classes, split rule and network to start from")
        return replace(recipe, warm_start="")
    _log.info("initial weights from the latest model: %s", start["warm_start"])
    if recipe.has_pretrained:
        _log.warning("pretrained %s is not used, because warm_start latest found a model", recipe.pretrained)
    return replace(recipe, warm_start=start["warm_start"], pretrained=NONE)


def _seen(package: str, dataset: str) -> str:
    """How many validation and test images the model was trained on; empty: none, or unknown."""
    # numpy, which no other launcher waits for
    from ddpipe.data.index import counted, held_out_seen, samples_seen  # noqa: PLC0415

    known, manifest = samples_seen(package), load_manifest(dataset)
    return "" if known is None else counted(held_out_seen(manifest, store_of(dataset), known), manifest)


def _started(store: Store) -> dict[str, str]:
    try:
        start = json.loads(store.read(START))
    except NoSuchObject:
        return {}
    except (ValueError, RecursionError):
        start = None
    if isinstance(start, dict) and all(isinstance(start.get(key), str) for key in ("for", "warm_start")):
        return start
    _log.warning("%s/%s is damaged and not used", store.uri, START)
    return {}


def _find(run: Run, key: str, below: str = "") -> Earlier | None:
    """The run recorded under a key, if its files, or those in one folder of it, are unchanged."""
    try:
        found = json.loads(open_store(run.folder).read(key))
        earlier = Earlier(Run.named(run.folder, found["run"]), found["finished"])
        files = {name: value for name, value in found["files"].items() if name.startswith(below)}
    except NoSuchObject:
        return None
    except (CorruptObject, ParameterError, *MALFORMED) as error:
        _log.warning("the record of an earlier run is damaged (%r) and not used", error)
        return None
    if problem := _damage(open_store(earlier.run.uri), files):
        _log.warning("the earlier run %s is no longer complete (%s) and not used", earlier, problem)
        return None
    return earlier


def _damage(store: Store, files: Mapping[str, str]) -> str:
    """What is wrong with the first file that is missing or changed; empty if all are intact."""
    if not files:
        return "its record names no files"
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
    except (NoSuchObject, CorruptObject):  # it was removed or replaced after it was listed
        return ""
    return digest.hexdigest()
