"""Files of a newer ddpipe: each stops what meets it, says so, and is left as it is."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import unpack
from samples import a_manifest
from stored import latest

from ddpipe.data.manifest import WHOLE_SCHEMA, DatasetManifest, load_manifest
from ddpipe.errors import (
    CheckpointError,
    CorruptObject,
    DatasetError,
    DdpipeError,
    ModelError,
    NewerFormat,
    ParameterError,
)
from ddpipe.model.checkpoint import SCHEMA as CHECKPOINT_SCHEMA
from ddpipe.model.checkpoint import finished, newest
from ddpipe.model.evaluation import FORMAT as EVALUATION
from ddpipe.model.evaluation import load_evaluation
from ddpipe.model.history import SCHEMA as HISTORY_SCHEMA
from ddpipe.model.history import NamedModel
from ddpipe.model.package import FORMAT as PACKAGE
from ddpipe.model.package import load_package
from ddpipe.model.tensors import read_tensors
from ddpipe.model.training_record import RECORD_SCHEMA, training_record
from ddpipe.model.verdict import FORMAT as VERDICT
from ddpipe.model.verdict import load_verdict
from ddpipe.notebook.folder import SCHEMA as LAUNCH_SCHEMA
from ddpipe.notebook.folder import Launch
from ddpipe.runs import SCHEMA as STEP_SCHEMA
from ddpipe.runs import Run
from ddpipe.storage import Store, open_store
from ddpipe.storage.sealed import Format
from ddpipe.train.auto import Device
from ddpipe.train.recipe import Recipe
from ddpipe.train.start import CHOICE_SCHEMA, choice_of
from ddpipe.tune.study import SCHEMA as STUDY_SCHEMA
from ddpipe.tune.study import Settings, Study

SEALED = Format("thing", "seal.json", schema=1, maker="ddpipe make")
SETTINGS = Settings([], {"loss": "cross-entropy"}, "", "", "tpe", "median", 1)


def a_step(store: Store) -> None:
    with Run(store.uri).step("train"):
        pytest.fail("a step began although a newer ddpipe has been here")


def a_choice(store: Store) -> None:
    choice_of(store, Recipe(), a_manifest(), Device())


READERS: Mapping[str, tuple[str, Callable[[Store], object]]] = {
    "sealed folder": ("seal.json", lambda store: SEALED.open(store.uri)),
    "pointer": ("checkpoints/0001-00000000/latest.json", latest),
    "finished training": ("training.json", finished),
    "record": ("training.json", lambda store: training_record(store.uri)),
    "choice": ("choice.json", a_choice),
    "history": ("models/toys/champion.json", lambda store: NamedModel(store, "toys").history()),
    "step": ("steps/train.json", lambda store: Run(store.uri).facts("train")),
    "next try of a step": ("steps/train.json", a_step),
    "study": ("study.json", lambda store: Study(Path(store.uri)).check(SETTINGS)),
    "manifest": (
        "manifest.json",
        lambda store: DatasetManifest.from_json(store.read("manifest.json"), "manifest.json"),
    ),
}


@pytest.mark.parametrize("what", READERS)
def test_a_newer_file_stops_and_stays(what: str, tmp_path: Path) -> None:
    store, (key, read) = open_store(str(tmp_path)), READERS[what]
    content: dict[str, Any] = {"schema": 99, "unheard": "of"}
    store.write(key, json.dumps(content).encode())
    with pytest.raises(NewerFormat, match=rf"newer ddpipe: \S*{re.escape(key)}.*99.*Upgrade ddpipe"):
        read(store)
    assert json.loads(store.read(key)) == content
    assert [item.key for item in store.list()] == [key]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ddpipe wrote once all formats had numbers, and a study that this one began."""
    folder = tmp_path_factory.mktemp("golden")
    unpack(Path(__file__).parents[1] / "golden" / "formats" / "0.1.0-2026-11-26.tar.gz", folder)
    Study(folder / "study").check(SETTINGS)
    Launch(name="a", work="b", sha256="", backend="pytorchjob", nodes=1, processes=1).write(
        open_store(str(folder / "launch"))
    )
    return folder


def a_checkpoint(path: Path) -> object:
    return newest(open_store(str(path.parents[2])))


AS_BEFORE = None, ""
"""Files of before had no number, and are read."""

NOT_USED = ("checkpoint", "choice.json")
"""Where a file with a wrong number is as a damaged one: an earlier checkpoint, or another choice, is used."""

NUMBERED: Mapping[str, tuple[str, int, Callable[[Path], object], tuple[Any, str]]] = {
    "manifest": (
        *("store/datasets/blocks/*/manifest.json", WHOLE_SCHEMA, lambda path: load_manifest(str(path))),
        (DatasetError, "no schema|schema 1,.*Prepare the dataset again"),
    ),
    "evaluation": (
        *("runs/first/evaluation/evaluation.json", EVALUATION.schema),
        *(
            lambda path: load_evaluation(str(path.parent)),
            ((ParameterError, CorruptObject), "schema.*ddpipe evaluate"),
        ),
    ),
    "package": (
        *("runs/first/model/package.json", PACKAGE.schema, lambda path: load_package(str(path.parent))),
        ((ParameterError, CorruptObject), "schema.*ddpipe export"),
    ),
    "verdict": (
        *("runs/first/gate/gate.json", VERDICT.schema, lambda path: load_verdict(str(path.parent))),
        ((ParameterError, CorruptObject), "schema.*ddpipe gate"),
    ),
    "champion history": (
        *("store/models/blocks/champion.json", HISTORY_SCHEMA),
        lambda path: NamedModel(open_store(str(path.parents[2])), "blocks").history(),
        (ModelError, "schema.*Restore the file"),
    ),
    "pointer": (
        *("runs/interrupted/training/checkpoints/*/latest.json", CHECKPOINT_SCHEMA, a_checkpoint),
        (CheckpointError, "schema.*Restore the files"),
    ),
    "checkpoint": (
        *("runs/interrupted/training/checkpoints/*/step-*9.pt", CHECKPOINT_SCHEMA, a_checkpoint),
        AS_BEFORE,
    ),
    "training.json": (
        *("runs/first/training/training.json", RECORD_SCHEMA),
        *(lambda path: training_record(str(path.parent)), AS_BEFORE),
    ),
    "choice.json": (
        *("runs/first/training/choice.json", CHOICE_SCHEMA),
        *(lambda path: a_choice(open_store(str(path.parent))), AS_BEFORE),
    ),
    "run and its steps": (
        *("runs/first/steps/train.json", STEP_SCHEMA),
        *(lambda path: Run(str(path.parents[1])).steps(), AS_BEFORE),
    ),
    "study": (
        "../study/study.json",
        STUDY_SCHEMA,
        lambda path: Study(path.parent).check(SETTINGS),
        AS_BEFORE,
    ),
    "launch": (
        *("../launch/launch.json", LAUNCH_SCHEMA),
        *(lambda path: Launch.read(open_store(str(path.parent))), AS_BEFORE),
    ),
}
"""By format: a file of it, its number today, what reads it, and the error and message for a lower number."""


def renumbered(path: Path, number: object) -> Path:
    """The file with another schema number, or with none, as its writer would have left it."""
    is_json = path.suffix == ".json"
    content = json.loads(path.read_bytes()) if is_json else read_tensors(path.read_bytes())
    content = {name: value for name, value in content.items() if name != "schema"}
    content |= {} if number is None else {"schema": number}
    if is_json:
        data = json.dumps(content).encode()
    else:
        torch.save(content, buffer := io.BytesIO())
        data = buffer.getvalue()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(data)
    for pointer in path.parent.glob("latest.json"):
        pointer.write_text(pointer.read_text().replace(digest, hashlib.sha256(data).hexdigest()))
    if path.name == "manifest.json":  # a version's name is the hash of its content
        return path.parent.rename(path.parents[1] / hashlib.sha256(data).hexdigest()) / path.name
    return path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("change", ["raised", "lowered", "missing", "text"])
@pytest.mark.parametrize("what", NUMBERED)
def test_each_number_is_checked_and_nothing_is_lost(
    what: str, change: str, golden: Path, tmp_path: Path
) -> None:
    pattern, today, read, (error, words) = NUMBERED[what]
    shutil.copytree(golden, tmp_path / "files")
    lower = 1 if what == "manifest" else today - 1  # manifests of 2 are read: their images are cropped
    number = {"raised": today + 1, "lowered": lower, "missing": None, "text": "2"}[change]
    path = renumbered(next((tmp_path / "files" / "bucket").glob(pattern)), number)
    before = contents(tmp_path)
    if change == "raised":
        error, words = NewerFormat, rf"newer ddpipe.*{number}.*Upgrade ddpipe, and leave the file as it is"
    elif change == "text" and what not in NOT_USED:
        error, words = DdpipeError, "schema"
    with pytest.raises(error, match=words) if error else nullcontext():
        read(path)
    assert contents(tmp_path) == before


def test_a_newer_folder_is_not_published_over(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    Format("thing", "seal.json", schema=2, maker="ddpipe make").publish(store, {"a": b"newer"}, {})
    before = contents(tmp_path)
    with pytest.raises(NewerFormat, match="newer ddpipe"):
        SEALED.publish(store, {"a": b"older"}, {})
    assert contents(tmp_path) == before
