"""What ddpipe wrote is still read: tests/support/write_formats.py shows how these files came to be.

0.1.0 was written before the formats had numbers, the other one when all of them had.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import commands_here
import numpy as np
import pytest
import s3_server
from archives import unpack
from s3_server import BUCKET
from write_formats import EPOCHS, RUNS, STORE, TINY, training

from ddpipe import load_model
from ddpipe.storage import open_store

VERSIONS = sorted((Path(__file__).parents[1] / "golden" / "formats").glob("*.tar.gz"))
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name.removesuffix(".tar.gz"))
def written(
    request: pytest.FixtureRequest, s3: s3_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The files of one version: its bucket is in the S3 server, its studies in the folder."""
    # For the processes that train.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
    unpack(request.param, tmp_path)
    for path in (tmp_path / "bucket").rglob("*"):
        if path.is_file():
            s3.client.fput_object(BUCKET, path.relative_to(tmp_path / "bucket").as_posix(), str(path))
    return tmp_path


def ddpipe(*arguments: str) -> dict[str, Any]:
    """What a command prints with --json."""
    finished = commands_here.ddpipe(Path(), *arguments, "--json")
    assert finished.exit_code == 0, finished.stderr
    facts: dict[str, Any] = json.loads(finished.stdout)
    return facts


def losses(run: str) -> list[float]:
    """The training losses of a run's epochs."""
    lines = open_store(f"{RUNS}/{run}").read("training/metrics.jsonl").decode().splitlines()
    return [record["train_loss"] for record in map(json.loads, lines) if "train_loss" in record]


def test_datasets_are_verified(written: Path) -> None:
    keys = [item.key for item in open_store(f"{STORE}/datasets").list()]
    manifests = [key for key in keys if key.endswith("manifest.json")]
    assert {"blocks", "large", "labels"} <= {key.partition("/")[0] for key in manifests}
    for manifest in manifests:
        assert ddpipe("data", "verify", f"{STORE}/datasets/{manifest}")["shards"]


def test_package_answers_as_it_did(written: Path) -> None:
    images = np.stack([np.full((8, 8, 1), value, np.uint8) for value in (40, 200)])
    found = load_model(f"{RUNS}/first/model").predict(images)
    assert [prediction.answer for prediction in found] == [("dark",), ("light",)]


@pytest.mark.slow
def test_interrupted_run_is_resumed_as_if_nothing_had_happened(written: Path) -> None:
    ddpipe(*training("interrupted"))
    record = json.loads(open_store(f"{RUNS}/interrupted").read("training/training.json"))
    assert record["resumed_from"] >= record["steps"] * 2 / EPOCHS
    # Processors round differently: after one epoch from the same weights, losses are 0.0005 of them apart.
    np.testing.assert_allclose(losses("interrupted"), losses("first"), rtol=2e-3)


@pytest.mark.slow
def test_new_model_is_compared_with_the_champion_and_rolled_back(written: Path) -> None:
    shown = ("models", "show", "blocks", "--store", STORE)
    before = ddpipe(*shown)
    ddpipe(*training("third", "--gate-model", "blocks", "--seed", "2", "--gate-gain", "-1"))
    assert ddpipe(*shown) != before
    ddpipe("models", "rollback", "blocks", "--store", STORE)
    now = ddpipe(*shown)
    assert len(now["promotions"]) == len(before["promotions"]) + 2
    assert {**now, "promotions": None} == {**before, "promotions": None}


@pytest.mark.slow
def test_study_continues_with_its_next_trial(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written)
    command = ("tune", *training("")[1:5], *TINY[:4], "--epochs", "2", "--trials", "3")
    found = ddpipe(*command, "--study", "old", "--search", "learning_rate")
    assert [trial["number"] for trial in found["trials"]] == [0, 1, 2]
