"""`ddpipe data`: what a store holds, what is damaged, what differs, what is unused."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from samples import a_folder, a_manifest, a_split, an_image

from ddpipe.__main__ import cli
from ddpipe.data.catalogue import clean_up, difference, garbage, objects_of, shards_of
from ddpipe.data.manifest import SCHEMA, SPLITS, ShardRef, Split, manifest_key
from ddpipe.data.reader import open_split
from ddpipe.data.shards import object_key
from ddpipe.data.versions import versions
from ddpipe.errors import DatasetError, NoSuchObject, ParameterError
from ddpipe.prepare.prepare import Prepared, prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.storage import Store, open_store, write_uri


@pytest.fixture
def toys(tmp_path: Path, store_uri: str) -> PrepareSpec:
    path = a_folder(tmp_path / "toys", {"ball": 10, "kite": 6})
    return PrepareSpec(source="folder", source_path=str(path), dataset_name="toys", store=store_uri)


def _ddpipe(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["data", *arguments])
    return result.exit_code, result.stdout


def _facts(*arguments: str) -> Any:
    code, output = _ddpipe(*arguments, "--json")
    assert code == 0
    return json.loads(output)


def _changed(spec: PrepareSpec) -> Prepared:
    """Another version: one image more, one less."""
    a_folder(Path(spec.source_path), {"ball": 1}, start=50)
    (Path(spec.source_path) / "kite" / "0000.png").unlink()
    return prepare(spec)


def test_all_versions_are_listed_the_newest_last(toys: PrepareSpec) -> None:
    first, second = prepare(toys), _changed(toys)
    other = prepare(replace(toys, dataset_name="others"))
    listed = [version["uri"] for version in _facts("ls", "--store", toys.store)["versions"]]
    assert set(listed) == {first.manifest_uri, second.manifest_uri, other.manifest_uri}
    assert [version.dataset_id for version in versions(open_store(toys.store), "others")] == [
        other.dataset_id
    ]
    head, *lines = _ddpipe("ls", "--store", toys.store)[1].splitlines()
    assert head.split() == ["NAME", "ID", "IMAGES", "CLASSES", "SOURCE", "PUBLISHED"]
    assert len(lines) == 3


def test_an_empty_store_has_no_versions(tmp_path: Path) -> None:
    code, output = _ddpipe("ls", "--store", str(tmp_path))
    assert code == 0
    assert output == f"no versions in {tmp_path}: `ddpipe prepare photos` makes one\n"


@pytest.mark.parametrize(
    "command", [("data", "ls"), ("data", "clean-up"), ("models", "ls"), ("runs", "ls")], ids=" ".join
)
def test_a_folder_that_is_not_there_is_no_empty_one(command: tuple[str, str], tmp_path: Path) -> None:
    option = "--runs" if "runs" in command else "--store"
    result = CliRunner().invoke(cli, [*command, option, str(tmp_path / "typo")])
    assert result.exit_code == NoSuchObject.exit_code
    assert "there is no such folder" in result.stderr
    assert "`ddpipe run photos`; with --gate-model NAME, also a model" in result.stderr  # how it appears


def test_show_describes_a_version_in_numbers(toys: PrepareSpec) -> None:
    prepared = prepare(toys)
    facts = _facts("show", prepared.manifest_uri)
    assert sum(facts["samples"].values()) == 16
    assert sum(counts["ball"] for counts in facts["per_class"].values()) == 10
    shown = _ddpipe("show", prepared.manifest_uri)[1]
    assert "2 classes, 6 x 4 x 1" in shown
    assert f"from folder {toys.source_path}" in shown  # where the raw data lies
    assert facts["origin"] == {"location": toys.source_path}


def test_verify_accepts_an_intact_version_only(toys: PrepareSpec) -> None:
    prepared = prepare(toys)
    assert _facts("verify", prepared.manifest_uri)["shards"] == 3
    store = open_store(toys.store)
    changed, lost, _ = [info.key for info in store.list("shards/")]
    store.write(changed, b"something else")
    store.delete(lost)
    code, output = _ddpipe("verify", prepared.manifest_uri, "--json")
    assert code == DatasetError.exit_code
    assert f"{changed}: its content has the hash" in json.loads(output)["seen"]
    assert lost in json.loads(output)["seen"]


def test_diff_lists_samples(toys: PrepareSpec) -> None:
    first, second = prepare(toys), _changed(toys)
    facts = _facts("diff", first.manifest_uri, second.manifest_uri)
    assert facts["added"] == ["ball/0050.png"]
    assert facts["removed"] == ["kite/0000.png"]
    assert facts["changed"] == []
    assert "1 added" in _ddpipe("diff", first.manifest_uri, second.manifest_uri)[1]


@pytest.mark.parametrize("image_format", ["raw", "jpeg"])
def test_diff_lists_images_with_changed_files(toys: PrepareSpec, image_format: str) -> None:
    """Others in the same shards, which are written again, are not."""
    spec = replace(toys, image_format=image_format)
    first = prepare(spec)
    for name in ("ball/0003.png", "kite/0002.png"):
        an_image(Path(spec.source_path) / name, seed=12345)
    second = prepare(spec)
    facts = _facts("diff", first.manifest_uri, second.manifest_uri)
    assert facts["changed"] == ["ball/0003.png", "kite/0002.png"]
    assert facts["relabelled"] == {}
    text = _ddpipe("diff", first.manifest_uri, second.manifest_uri)[1]
    assert "2 with other files\n  ball/0003.png\n  kite/0002.png" in text


def test_of_another_size_the_files_are_the_same(toys: PrepareSpec) -> None:
    first, second = prepare(toys), prepare(replace(toys, image_size=5))
    assert _facts("diff", first.manifest_uri, second.manifest_uri)["changed"] == []


def test_images_without_a_record_of_their_files_are_counted(toys: PrepareSpec) -> None:
    first, second = prepare(toys), _changed(toys)
    store = open_store(toys.store)
    for info in store.list("datasets/toys/encoded/"):
        store.delete(info.key)
    text = _ddpipe("diff", first.manifest_uri, second.manifest_uri)[1]
    assert "0 with other files, 15 not compared: no record of their files" in text


def test_diff_lists_moved_and_relabeled_samples(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    train = a_split(6, store=store)
    old = {"train": train, "validation": _one(store, "a"), "test": _one(store, "b")}
    new = {"train": train, "validation": _one(store, "b"), "test": _one(store, "a", label=1)}
    found = difference((a_manifest(splits=old), store), (a_manifest(splits=new), store))
    assert found.moved == {"a": ("validation", "test"), "b": ("test", "validation")}
    assert found.relabelled == {"a": ("ball", "kité")}
    assert (found.added, found.removed) == ((), ())
    assert found.shared_bytes == 1007, "the shards of training and of b"


def _one(store: Store, name: str, label: int = 0) -> Split:
    digest = hashlib.sha256(f"{name} {label}".encode()).hexdigest()
    return a_split(1, shards=[ShardRef(digest, 7, 1)], ids=[name], labels=[label], store=store)


def test_only_unused_shards_are_garbage(toys: PrepareSpec) -> None:
    first, second = prepare(toys), _changed(toys)
    store = open_store(toys.store)
    assert _facts("clean-up", "--store", toys.store, "--grace", "0")["objects"] == []
    store.delete(first.manifest_uri.removeprefix(f"{store.uri}/"))
    assert _facts("clean-up", "--store", toys.store)["objects"] == [], "younger than a day"
    dry = _facts("clean-up", "--store", toys.store, "--grace", "0")
    assert (len(dry["objects"]) > 1, dry["deleted"]) == (True, 0)
    done = _facts("clean-up", "--store", toys.store, "--grace", "0", "--delete")
    assert done["deleted"] == len(dry["objects"])
    assert _facts("clean-up", "--store", toys.store, "--grace", "0")["objects"] == []
    for split in SPLITS:
        open_split(second.manifest_uri, split)
    assert prepare(toys).reused


def test_leftovers_go_once_their_writers_are_certainly_dead(store_uri: str) -> None:
    store, now, grace = open_store(store_uri), datetime.now(UTC), timedelta(days=30)
    notes = ["claims/1.json", "cleanings/2.json"]
    for note in notes:
        store.write(note, b"[]")
    assert clean_up(store, grace, now + timedelta(hours=23)) == []
    assert [info.key for info in garbage(store, grace, now + timedelta(hours=25))] == notes
    assert [info.key for info in clean_up(store, grace, now + timedelta(hours=25))] == notes
    assert list(store.list()) == []


@pytest.mark.parametrize("key", ["shards/aa.tar", "columns/bb.npy", "scratch/one/cc.tar"])
def test_what_is_just_as_old_as_the_grace_stays(key: str, store_uri: str) -> None:
    store, grace = open_store(store_uri), timedelta(days=30)
    store.write(key, b"something")
    (written,) = [info.modified for info in store.list()]
    assert garbage(store, grace, written + grace) == []
    assert [info.key for info in garbage(store, grace, written + grace + timedelta.resolution)] == [key]


@pytest.mark.parametrize("note", ["claims/1.json", "cleanings/2.json"])
def test_an_intent_is_removed_when_it_is_older_than_a_day(note: str, store_uri: str) -> None:
    store = open_store(store_uri)
    store.write(note, b"[]")
    (written,) = [info.modified for info in store.list()]
    day = timedelta(days=1)
    assert garbage(store, timedelta(0), written + day) == []
    assert [info.key for info in garbage(store, timedelta(0), written + day + timedelta.resolution)] == [note]


def test_half_a_file_of_a_killed_writer_is_listed_after_a_day_and_deleted(tmp_path: Path) -> None:
    store, runs = tmp_path / "store", tmp_path / "runs"
    halves = [runs / "toys" / ".partial-1", store / "shards" / ".partial-2"]
    for half in halves:
        half.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(b"half")
    command = ("clean-up", "--store", str(store), "--runs", str(runs), "--grace", "0")
    assert _facts(*command, "--delete")["objects"] == [], "younger than a day, though the grace is 0"
    for half in halves:
        os.utime(half, (0, 0))
    found = _facts(*command)
    assert (found["objects"], found["bytes"]) == (["shards/.partial-2", str(halves[0])], 8)
    assert _facts(*command, "--delete")["deleted"] == 2
    assert not any(half.exists() for half in halves)


@pytest.mark.parametrize("grace", ["-1", "nan", "inf"])
def test_an_invalid_grace_is_rejected(grace: str, tmp_path: Path) -> None:
    code, output = _ddpipe("clean-up", "--store", str(tmp_path), "--grace", grace, "--json")
    assert code == ParameterError.exit_code
    assert f"grace is {float(grace)}, not a number from 0" in json.loads(output)["seen"]


@pytest.mark.parametrize("command", ["ls", "clean-up"])
def test_an_empty_address_of_a_store_is_refused(command: str) -> None:
    """It is not the folder that one happens to be in."""
    code, output = _ddpipe(command, "--store", "", "--json")
    assert (code, json.loads(output)["seen"]) == (ParameterError.exit_code, "it is empty")


def test_the_beginning_of_an_id_names_a_version(toys: PrepareSpec) -> None:
    first, second = prepare(toys), _changed(toys)
    at = ("--store", toys.store)
    short = first.dataset_id[:8]
    assert _facts("show", short, *at)["dataset_id"] == first.dataset_id
    assert _facts("verify", short, *at)["shards"] == 3
    assert _facts("diff", short, second.dataset_id, *at)["added"] == ["ball/0050.png"]
    code, output = _ddpipe("show", "0123abcd", *at, "--json")
    assert code == DatasetError.exit_code
    assert json.loads(output)["seen"] == "versions in the store: 2"


def test_an_id_that_two_versions_may_have_is_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for end in "ab":
        store.write(f"datasets/toys/{'0' * 63}{end}/manifest.json", b"")
    code, output = _ddpipe("show", "0000", "--store", str(tmp_path), "--json")
    assert code == DatasetError.exit_code
    assert json.loads(output)["seen"].count("manifest.json") == 2


def test_a_removed_version_leaves_only_its_shards(toys: PrepareSpec) -> None:
    first, second = prepare(toys), _changed(toys)
    removed = _facts("rm", first.dataset_id[:8], "--store", toys.store)["removed"]
    assert removed == first.manifest_uri
    assert [found.dataset_id for found in versions(open_store(toys.store))] == [second.dataset_id]
    assert _facts("clean-up", "--store", toys.store, "--grace", "0")["objects"]
    assert _ddpipe("rm", first.manifest_uri)[0] == NoSuchObject.exit_code


def test_a_version_that_a_training_needs_is_not_removed(toys: PrepareSpec, tmp_path: Path) -> None:
    version, runs = prepare(toys), tmp_path / "runs"
    (runs / "one" / "training").mkdir(parents=True)
    choice = runs / "one" / "training" / "choice.json"
    choice.write_text(json.dumps({"schema": 1, "dataset_id": version.dataset_id}))
    command = ("rm", version.manifest_uri, "--runs", str(runs))
    code, output = _ddpipe(*command, "--json")
    assert (code, "one/training" in json.loads(output)["seen"]) == (DatasetError.exit_code, True)
    assert prepare(toys).reused
    choice.with_name("training.json").write_text("{}")
    assert _facts(*command)["removed"] == version.manifest_uri


def test_unused_columns_are_garbage(toys: PrepareSpec) -> None:
    first, second = prepare(toys), _changed(toys)
    _facts("rm", first.manifest_uri)
    _facts("clean-up", "--store", toys.store, "--grace", "0", "--delete")
    left = {info.key for info in open_store(toys.store).list("columns/")}
    assert left == {object_key(one) for one in objects_of(second.manifest) - shards_of(second.manifest)}


def test_nothing_is_cleaned_up_beside_a_version_of_another_schema(toys: PrepareSpec) -> None:
    """Nobody here knows what it needs; it says so, and how to get rid of it."""
    first = prepare(toys)
    old = first.manifest.to_json().replace(f'"schema":{SCHEMA}', '"schema":1')
    store, key = open_store(toys.store), manifest_key("toys", hashlib.sha256(old.encode()).hexdigest())
    store.write(key, old.encode())
    code, output = _ddpipe("clean-up", "--store", toys.store, "--grace", "0", "--delete", "--json")
    assert code == DatasetError.exit_code
    assert "schema 1" in json.loads(output)["seen"]
    assert "ddpipe data rm" in json.loads(output)["do"]
    _facts("rm", f"{store.uri}/{key}")
    assert _facts("clean-up", "--store", toys.store, "--grace", "0")["objects"] == []
    assert prepare(toys).reused


def test_a_damaged_version_can_be_removed(toys: PrepareSpec) -> None:
    prepared = prepare(toys)
    write_uri(prepared.manifest_uri, b"damaged")
    _facts("rm", prepared.manifest_uri)
    assert versions(open_store(toys.store)) == []


def test_only_versions_are_removed(tmp_path: Path) -> None:
    (tmp_path / "precious.json").write_text("{}")
    assert _ddpipe("rm", str(tmp_path / "precious.json"))[0] == DatasetError.exit_code
    assert (tmp_path / "precious.json").exists()


@pytest.mark.parametrize("content", [bytes(range(256)) * 99, b"[" * 10**6, b'{"facts": {}}', b""])
def test_something_else_than_a_manifest_is_called_so(content: bytes, tmp_path: Path) -> None:
    """In a line, and not with all that it holds."""
    (tmp_path / "other.json").write_bytes(content)
    code, output = _ddpipe("show", str(tmp_path / "other.json"), "--json")
    error = json.loads(output)
    assert code == DatasetError.exit_code
    assert error["seen"].startswith("it is not a dataset manifest: ")
    assert len(error["seen"]) < 200
    assert "ddpipe data ls" in error["do"]
