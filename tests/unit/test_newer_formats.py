"""Files of a newer ddpipe: each stops what meets it, says so, and is left as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from samples import a_manifest

from ddpipe.data.manifest import DatasetManifest
from ddpipe.errors import NewerFormat
from ddpipe.model.checkpoint import finished, latest
from ddpipe.model.history import NamedModel
from ddpipe.model.training_record import training_record
from ddpipe.runs import Run
from ddpipe.storage import Store, open_store
from ddpipe.storage.sealed import Format
from ddpipe.train.auto import Device
from ddpipe.train.recipe import Recipe
from ddpipe.train.start import choice_of
from ddpipe.tune.study import Settings, Study

SEALED = Format("thing", "seal.json", schema=1, maker="ddpipe make")
SETTINGS = Settings([], {}, "", "", "tpe", "median", 1)


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
