"""Checkpoints: whole or not there, and never of anything else."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stored import latest

from ddpipe.errors import CheckpointError, NewerFormat
from ddpipe.model.checkpoint import Checkpoint, Saved, claim, load, newest
from ddpipe.model.classifier import Classifier, build, load_model
from ddpipe.storage import ObjectInfo, Store, open_store


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


def saved(store: Store, *steps: int, best: int = 0, keep: int = 2) -> list[Saved]:
    """Checkpoints of these steps, by one attempt that begins where the last one ended."""
    attempt = claim(store, start(store), keep)
    return [attempt.save(a_checkpoint(step), best=step == best) for step in steps]


def start(store: Store) -> Saved | None:
    found = newest(store)
    return found and found[0]


def steps(store: Store) -> list[int]:
    """Of the checkpoints whose content is stored."""
    keys = [item.key for item in store.list("checkpoints/")]
    return sorted(int(key[-11:-3]) for key in keys if key.endswith(".pt"))


def attempts(store: Store) -> set[str]:
    return {item.key.split("/")[1] for item in store.list("checkpoints/")}


def test_nothing_saved_is_nothing_found(store: Store) -> None:
    assert latest(store) is None


def test_what_was_saved_last_is_found_again(store: Store) -> None:
    saved(store, 1, 2)
    found, expected = latest(store), a_checkpoint(2)
    assert found
    assert all(
        torch.equal(found.states["model"][name], value) for name, value in expected.states["model"].items()
    )
    assert replace(found, states={}) == replace(expected, states={})


def test_attempts_are_numbered_and_go_when_nothing_of_theirs_is_kept(store: Store) -> None:
    for step in (1, 2, 3):
        saved(store, step)
    keys = sorted(item.key for item in store.list("checkpoints/"))
    second, *third = keys
    assert re.fullmatch(r"checkpoints/0002-[0-9a-f]{8}/step-00000002\.pt", second)
    assert len(third) == 2
    for key in third:
        assert re.fullmatch(r"checkpoints/0003-[0-9a-f]{8}/(latest\.json|step-00000003\.pt)", key)


def test_pointer_names_the_newest_checkpoint_first(store: Store) -> None:
    every = saved(store, 1, 2, 3, best=1)
    pointer = json.loads(store.read(f"{every[0].file.rpartition('/')[0]}/latest.json"))
    named = [Saved.from_dict(entry) for entry in pointer["checkpoints"]]
    assert named == [every[2], every[1], every[0]]
    assert [one.best for one in named] == [False, False, True]
    assert all(hashlib.sha256(store.read(one.file)).hexdigest() == one.sha256 for one in named)


@pytest.mark.parametrize(
    "file",
    [
        "checkpoints/0001-0000000/step-00000001.pt",
        "checkpoints/0001-00000000/step-1.pt",
        "checkpoints/0001-00000000/../step-00000001.pt",
        "checkpoints/0001-00000000/step-00000001.pt/",
        "/checkpoints/0001-00000000/step-00000001.pt",
    ],
)
def test_no_other_file_is_taken_for_a_checkpoint(file: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a checkpoint"):
        Saved.from_dict({"file": file, "sha256": "", "step": 1, "best": False})


def test_last_two_are_kept(store: Store) -> None:
    saved(store, 1, 2, 3)
    assert steps(store) == [2, 3]


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_as_many_are_kept_as_wanted_and_the_best_beside_them(store: Store, keep: int) -> None:
    saved(store, *range(1, 9), best=2, keep=keep)
    assert steps(store) == [2, *range(9 - keep, 9)]


def test_better_one_takes_the_place_of_the_best(store: Store) -> None:
    attempt = claim(store, None)
    for step in range(1, 7):
        attempt.save(a_checkpoint(step), best=step in {2, 3})
    assert steps(store) == [3, 5, 6]
    assert [one.step for one in attempt.saved if one.best] == [3]


def test_step_is_saved_once_and_stays_the_best(store: Store) -> None:
    _, best, again, _ = saved(store, 1, 2, 2, 3, best=2)
    assert again == best
    assert steps(store) == [2, 3]
    assert load(store, best).step == 2


class DiesBefore:
    """A store whose writer dies when it is about to write a key of this ending."""

    def __init__(self, store: Store, ending: str) -> None:
        self._store, self._ending = store, ending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, key: str, data: bytes) -> None:
        if key.endswith(self._ending):
            raise KeyboardInterrupt
        self._store.write(key, data)


@pytest.mark.parametrize("ending", [".pt", "latest.json"])
def test_writer_that_dies_amid_saving_leaves_the_checkpoint_before(store: Store, ending: str) -> None:
    """So the pointer comes after the content, and nothing goes before the pointer no longer names it."""
    attempt = claim(store, None, keep=1)
    attempt.save(a_checkpoint(1))
    attempt._store = DiesBefore(store, ending)
    with pytest.raises(KeyboardInterrupt):
        attempt.save(a_checkpoint(2))
    found = latest(store)
    assert found
    assert found.step == 1


def test_pointer_is_written_after_the_content(store: Store) -> None:
    attempt = claim(store, None)
    attempt._store = DiesBefore(store, ".pt")
    with pytest.raises(KeyboardInterrupt):
        attempt.save(a_checkpoint(1))
    assert latest(store) is None


def test_content_without_its_pointer_is_ignored_and_swept_up(store: Store) -> None:
    saved(store, 1)
    stray = f"checkpoints/{attempts(store).pop()}/step-00000002.pt"
    store.write(stray, b"half")
    found = latest(store)
    assert found
    assert found.step == 1
    saved(store, 3)
    assert not store.exists(stray)


def test_damaged_checkpoint_gives_way_to_the_one_before(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    _, damaged = saved(store, 1, 2)
    store.write(damaged.file, b"damaged")
    with caplog.at_level(logging.WARNING):
        found = latest(store)
    assert found
    assert found.step == 1
    assert "step-00000002.pt: its content has changed" in caplog.text


def test_lost_checkpoint_gives_way_to_the_one_before(store: Store) -> None:
    _, lost = saved(store, 1, 2)
    store.delete(lost.file)
    found = latest(store)
    assert found
    assert found.step == 1


def test_newer_attempt_counts_although_it_has_fewer_steps(store: Store) -> None:
    _, damaged = saved(store, 10, 20)
    store.write(damaged.file, b"damaged")
    saved(store, 15)
    found = start(store)
    assert found
    assert found.step == 15
    assert steps(store) == [10, 15]


def test_best_checkpoint_that_is_damaged_is_not_carried_on(store: Store) -> None:
    best, *_ = saved(store, 1, 2, 3, best=1)
    store.write(best.file, b"damaged")
    assert not [one for one in claim(store, start(store)).saved if one.best]


def test_training_does_not_restart_over_damaged_checkpoints(store: Store) -> None:
    for one in saved(store, 1, 2):
        store.write(one.file, b"damaged")
    with pytest.raises(CheckpointError, match=r"step-00000002.*step-00000001"):
        latest(store)


def test_process_presumed_dead_cannot_overwrite_its_successor(store: Store) -> None:
    zombie = claim(store, None)
    zombie.save(a_checkpoint(1))
    successor = claim(store, start(store))
    ours = successor.save(replace(a_checkpoint(2), world_size=7))
    with pytest.raises(CheckpointError, match="another process has taken over this training"):
        zombie.save(a_checkpoint(2))
    assert start(store) == ours
    assert load(store, ours).world_size == 7


def test_process_that_misses_its_successor_writes_to_its_own_folder(store: Store) -> None:
    """As on a file system that shows other machines' changes late."""
    zombie = claim(store, None)
    zombie.save(a_checkpoint(1))
    ours = claim(store, start(store)).save(a_checkpoint(2))
    zombie._check_newest = lambda _: None  # type: ignore[method-assign]
    seen = [item for item in store.list("checkpoints/") if zombie._name in item.key]
    zombie._store = Stale(store, seen)
    for step in (2, 3, 4):
        zombie.save(replace(a_checkpoint(step), world_size=7))
    assert start(store) == ours
    assert load(store, ours).world_size == 2


class Stale(DiesBefore):
    """A store that lists what was there a while ago."""

    def __init__(self, store: Store, listed: Sequence[ObjectInfo]) -> None:
        super().__init__(store, "/")
        self._listed = listed

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter(self._listed)


def test_of_two_successors_at_once_one_continues(store: Store) -> None:
    saved(store, 1)
    rivals = [claim(store, start(store)) for _ in range(2)]
    ends = []
    for rival in rivals:
        try:
            ends.append(rival.save(a_checkpoint(2)))
        except CheckpointError:
            ends.append(None)
    # the first may have saved before it heard of the second
    assert start(store) == (ends[1] or ends[0])


def test_successor_that_dies_before_saving_leaves_its_start(store: Store) -> None:
    one, other = saved(store, 1, 2)
    claim(store, other)
    assert start(store) == other
    store.write(other.file, b"damaged")
    assert start(store) == one


@pytest.mark.parametrize(
    "pointer",
    [
        b"",
        b"[]",
        b'{"checkpoints": [{}]}',
        b'{"checkpoints": 3}',
        b'{"checkpoints": [{"file": "../../secret", "sha256": "", "step": 1, "best": false}]}',
    ],
)
def test_malformed_pointer_is_refused(tmp_path: Path, pointer: bytes) -> None:
    store = open_store(str(tmp_path))
    store.write("checkpoints/0001-00000000/latest.json", pointer)
    with pytest.raises(CheckpointError, match=r"latest\.json is malformed"):
        latest(store)


def test_no_code_in_a_checkpoint_is_ever_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    store = open_store(str(tmp_path))
    claim(store, None).save(replace(a_checkpoint(), recipe={"bomb": Bomb()}))
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        latest(store)
    assert not (tmp_path / "exploded").exists()


def finish(store: Store, result: Saved) -> None:
    store.write("training.json", json.dumps({"checkpoint": asdict(result)}).encode())


def test_finished_training_gives_the_model_that_it_names(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    best, *_ = saved(store, 1, 2, best=1)
    finish(store, best)
    classifier, checkpoint = load_model(str(tmp_path))
    assert not classifier.training
    assert checkpoint.step == 1
    assert checkpoint.network["classes"] == 3
    assert (classifier.mean.flatten().tolist(), classifier.std.flatten().tolist()) == ([0.25], [0.5])
    weights = checkpoint.states["model"]
    assert all(torch.equal(weights[name], value) for name, value in classifier.state_dict().items())


@pytest.mark.parametrize("damage", ["cut short", "lost"])
def test_no_older_checkpoint_stands_in_for_the_result_of_a_training(store: Store, damage: str) -> None:
    _, result = saved(store, 1, 2)
    finish(store, result)
    content = store.read(result.file)
    store.delete(result.file)
    if damage == "cut short":
        store.write(result.file, content[:-1])
    with pytest.raises(CheckpointError, match=r"step-00000002\.pt: .*[Rr]un the training again"):
        load_model(store.uri)


def test_training_that_has_not_finished_gives_no_model(store: Store) -> None:
    saved(store, 1)
    with pytest.raises(CheckpointError, match="the training has not finished"):
        load_model(store.uri)


def test_training_whose_record_names_no_checkpoint_gives_no_model(tmp_path: Path) -> None:
    saved(open_store(str(tmp_path)), 1)
    (tmp_path / "training.json").write_text("{}")
    with pytest.raises(CheckpointError, match="it names no checkpoint"):
        load_model(str(tmp_path))


def test_last_two_are_kept_while_each_is_the_best(store: Store) -> None:
    attempt = claim(store, None, keep=2)
    for step in range(1, 5):
        attempt.save(a_checkpoint(step), best=True)
    assert steps(store) == [3, 4]
    assert [one.step for one in attempt.saved if one.best] == [4]


def test_a_newer_checkpoint_is_not_skipped_for_an_older_one(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    attempt = claim(store, None)
    attempt.save(a_checkpoint(1))
    attempt.save(replace(a_checkpoint(2), schema=99))
    before = [item.key for item in store.list()]
    with pytest.raises(NewerFormat, match="step-00000002"):
        latest(store)
    assert [item.key for item in store.list()] == before
