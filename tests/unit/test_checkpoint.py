"""Checkpoints: whole or not there, and never of anything else."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddpipe.errors import CheckpointError
from ddpipe.model.architectures import Classifier, build
from ddpipe.model.checkpoint import Checkpoint, latest, load_model, save
from ddpipe.storage import Store, open_store


def a_checkpoint(step: int = 1) -> Checkpoint:
    torch.manual_seed(step)
    model = Classifier(build("digits-cnn", (8, 8, 1), 3), [0.25], [0.5])
    return Checkpoint(
        step=step,
        epoch=0,
        recipe={"model": "digits-cnn", "seed": 0},
        dataset_id="d" * 64,
        network={"name": "digits-cnn", "shape": (8, 8, 1), "classes": 3},
        world_size=2,
        states={"model": model.state_dict(), "optimizer": {"state": {}, "param_groups": []}},
        history=[{"epoch": 1, "validation_loss": 0.5}],
        seconds=1.5,
    )


@pytest.fixture
def store(store_uri: str) -> Store:
    return open_store(store_uri)


def the_files(store: Store) -> set[str]:
    return {stored.key for stored in store.list("checkpoints/")}


def test_nothing_saved_is_nothing_found(store: Store) -> None:
    assert latest(store) is None


def test_what_was_saved_last_is_found_again(store: Store) -> None:
    for step in (1, 2):
        save(store, a_checkpoint(step))
    found, expected = latest(store), a_checkpoint(2)
    assert found
    assert all(
        torch.equal(found.states["model"][name], value) for name, value in expected.states["model"].items()
    )
    assert replace(found, states={}) == replace(expected, states={})


def test_the_last_two_are_kept(store: Store) -> None:
    for step in (1, 2, 3):
        save(store, a_checkpoint(step))
    steps = {f"checkpoints/step-{step:08d}.pt" for step in (2, 3)}
    assert the_files(store) == {"checkpoints/latest.json", *steps}


def test_saving_a_step_again_replaces_it(store: Store) -> None:
    for step in (1, 2, 2):
        save(store, a_checkpoint(step))
    assert len(the_files(store)) == 3
    assert latest(store)


def test_content_without_its_pointer_is_ignored_and_swept_up(store: Store) -> None:
    save(store, a_checkpoint(1))
    store.write("checkpoints/step-00000002.pt", b"half")
    found = latest(store)
    assert found
    assert found.step == 1
    save(store, a_checkpoint(3))
    assert "checkpoints/step-00000002.pt" not in the_files(store)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        save(store, a_checkpoint(step))
    store.write("checkpoints/step-00000002.pt", b"damaged")
    with caplog.at_level(logging.WARNING):
        found = latest(store)
    assert found
    assert found.step == 1
    assert "step-00000002.pt: its content has changed" in caplog.text


def test_a_lost_checkpoint_gives_way_to_the_one_before(store: Store) -> None:
    for step in (1, 2):
        save(store, a_checkpoint(step))
    store.delete("checkpoints/step-00000002.pt")
    found = latest(store)
    assert found
    assert found.step == 1


def test_training_does_not_start_anew_over_checkpoints_that_are_all_damaged(store: Store) -> None:
    for step in (1, 2):
        save(store, a_checkpoint(step))
        store.write(f"checkpoints/step-{step:08d}.pt", b"damaged")
    with pytest.raises(CheckpointError, match=r"step-00000002.*step-00000001"):
        latest(store)


@pytest.mark.parametrize("pointer", [b"", b"[]", b'{"checkpoints": [{}]}', b'{"checkpoints": 3}'])
def test_a_malformed_pointer_is_refused(tmp_path: Path, pointer: bytes) -> None:
    store = open_store(str(tmp_path))
    store.write("checkpoints/latest.json", pointer)
    with pytest.raises(CheckpointError, match=r"latest\.json is malformed"):
        latest(store)


def test_a_checkpoint_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    save(store, replace(a_checkpoint(), schema=99))
    with pytest.raises(CheckpointError, match="schema 99"):
        latest(store)


def test_no_code_in_a_checkpoint_is_ever_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    store = open_store(str(tmp_path))
    save(store, replace(a_checkpoint(), recipe={"bomb": Bomb()}))
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        latest(store)
    assert not (tmp_path / "exploded").exists()


def test_a_finished_training_gives_its_model(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    save(store, a_checkpoint())
    store.write("training.json", json.dumps({}).encode())
    classifier, checkpoint = load_model(str(tmp_path))
    assert not classifier.training
    assert checkpoint.network["classes"] == 3
    assert classifier.mean.flatten().tolist() == [0.25]
    weights = checkpoint.states["model"]
    assert all(torch.equal(weights[name], value) for name, value in classifier.state_dict().items())


def test_a_training_that_has_not_finished_gives_no_model(tmp_path: Path) -> None:
    save(open_store(str(tmp_path)), a_checkpoint())
    with pytest.raises(CheckpointError, match="the training has not finished"):
        load_model(str(tmp_path))
