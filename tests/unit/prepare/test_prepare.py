"""The step: raw data in, a dataset version out, or one error that names everything wrong."""

from __future__ import annotations

import html
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from s3_server import BUCKET, Server
from samples import a_folder, a_manifest, a_picture, an_image, sample_ids

from ddpipe import workflow
from ddpipe.data import shards
from ddpipe.data.catalogue import clean_up, garbage
from ddpipe.data.manifest import SPLITS, load_manifest, store_of
from ddpipe.data.reader import open_split
from ddpipe.data.shards import object_key, shard_key
from ddpipe.data.versions import versions
from ddpipe.errors import DatasetError, DdpipeError, NoSuchBucket, NotWritable, ParameterError, SourceError
from ddpipe.prepare import building, packing
from ddpipe.prepare.entries import Entry
from ddpipe.prepare.prepare import Prepared, prepare
from ddpipe.prepare.report import data_report_html, how_split
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.runs import Run
from ddpipe.sources.folder import ClassFolders
from ddpipe.sources.sample import Sample
from ddpipe.storage import ObjectInfo, Store, open_store
from ddpipe.storage.files import FileStore

DIGITS = "0cc726233b3cbad585e9543d5abbe5e72a0cf8c7d79a8e3306010cc1b4f3a7a3"
"""The version that the digits have always had: everything in it is a function of them and of the seed."""


@pytest.fixture
def toys(tmp_path: Path) -> PrepareSpec:
    """Two classes of ten and six images."""
    path = a_folder(tmp_path / "toys", {"ball": 10, "kite": 6})
    return PrepareSpec(
        source="folder", source_path=str(path), dataset_name="toys", store=str(tmp_path / "store")
    )


def _folder(spec: PrepareSpec) -> Path:
    return Path(spec.source_path)


def _content(prepared: Prepared) -> dict[str, tuple[int, bytes]]:
    """Label and pixels of every sample, by its id."""
    readers = [open_split(prepared.manifest_uri, split) for split in SPLITS]
    return {
        sample: (int(reader.labels[index]), reader.images([index]).tobytes())
        for reader in readers
        for index, sample in enumerate(reader.sample_ids)
    }


def _places(prepared: Prepared) -> dict[str, str]:
    return {sample: name for name in SPLITS for sample in sample_ids(prepared.manifest_uri, name)}


def _objects(spec: PrepareSpec) -> dict[str, str]:
    return {info.key: info.etag for info in open_store(spec.store).list()}


# What comes out


def test_the_digits_are_the_version_that_they_always_were(store_uri: str) -> None:
    prepared = prepare(PrepareSpec(source="digits", store=store_uri))
    assert prepared.dataset_id == DIGITS
    assert prepared.encoded == 1797
    assert load_manifest(prepared.manifest_uri) == prepared.manifest
    train = open_split(prepared.manifest_uri, "train")
    pixels = train.images(range(len(train))) / 255
    np.testing.assert_allclose(prepared.manifest.mean, pixels.mean(axis=(0, 1, 2)), atol=1e-6)
    np.testing.assert_allclose(prepared.manifest.std, pixels.std(axis=(0, 1, 2)), atol=1e-6)
    assert (pixels.min(), pixels.max()) == (0, 1)


def test_digits_can_be_enlarged(tmp_path: Path) -> None:
    spec = PrepareSpec(source="digits", store=str(tmp_path), image_size=16)
    assert prepare(spec).manifest.shape == (16, 16, 1)


def test_every_image_of_a_folder_arrives_unchanged_with_its_class(toys: PrepareSpec) -> None:
    prepared = prepare(toys)
    expected = {
        path.relative_to(_folder(toys)).as_posix(): (
            ["ball", "kite"].index(path.parent.name),
            np.asarray(Image.open(path)).tobytes(),
        )
        for path in _folder(toys).rglob("*.png")
    }
    assert _content(prepared) == expected
    assert prepared.manifest.classes == ("ball", "kite")
    assert prepared.manifest.shape == (4, 6, 1)
    assert prepared.encoded == 16


def test_every_class_is_in_every_split(toys: PrepareSpec) -> None:
    for split in prepare(toys).manifest.splits.values():
        assert all(split.per_class)


def test_many_images_are_cut_into_shards(toys: PrepareSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _content(prepare(toys))
    monkeypatch.setattr(shards, "SHARD_BYTES", 3 * 4 * 6)
    cut = prepare(replace(toys, store=toys.store + "-2"))
    assert [shard.count for shard in cut.manifest.splits["train"].shards][:2] == [3, 3]
    assert _content(cut) == whole


def test_the_commonest_size_wins_and_any_color_makes_all_color(toys: PrepareSpec) -> None:
    an_image(_folder(toys) / "kite" / "large.png", (20, 30), mode="RGB")
    prepared = prepare(toys)
    assert prepared.manifest.shape == (4, 6, 3)
    assert len(prepared.manifest.mean) == len(prepared.manifest.std) == 3


def test_all_images_get_the_size_asked_for(toys: PrepareSpec) -> None:
    assert prepare(replace(toys, image_size=5)).manifest.shape == (5, 5, 1)


def test_hidden_files_and_files_beside_the_classes_are_not_looked_at(toys: PrepareSpec) -> None:
    plain = prepare(toys)
    (_folder(toys) / "README.md").write_text("about")
    (_folder(toys) / "ball" / ".DS_Store").write_bytes(b"\0")
    (_folder(toys) / ".git" / "objects").mkdir(parents=True)
    assert prepare(toys).dataset_id == plain.dataset_id


def test_the_version_does_not_depend_on_where_data_and_store_are(
    toys: PrepareSpec, tmp_path: Path, s3: Server
) -> None:
    moved = shutil.copytree(_folder(toys), tmp_path / "elsewhere")
    other = replace(toys, source_path=str(moved), store=f"s3://{BUCKET}/x")
    assert prepare(other).dataset_id == prepare(toys).dataset_id


# Preparing again


def test_unchanged_data_is_proven_and_not_written_again(store_uri: str, toys: PrepareSpec) -> None:
    spec = replace(toys, store=store_uri)
    first, before = prepare(spec), _objects(spec)
    again = prepare(spec)
    assert (first.reused, again.reused) == (False, True)
    assert again.encoded == 0
    assert again.manifest == first.manifest
    assert _objects(spec) == before


def test_one_changed_pixel_is_another_version(toys: PrepareSpec) -> None:
    first = prepare(toys)
    an_image(_folder(toys) / "ball" / "0003.png", seed=99)
    second = prepare(toys)
    assert not second.reused
    assert second.dataset_id != first.dataset_id
    assert load_manifest(first.manifest_uri) == first.manifest


@pytest.mark.parametrize(
    "change", [{"split_seed": 1}, {"image_size": 5}, {"test_fraction": 0.25}, {"dataset_name": "other"}]
)
def test_another_parameter_is_another_version(change: dict[str, object], toys: PrepareSpec) -> None:
    first = prepare(toys)
    second = prepare(replace(toys, **change))
    assert (second.reused, second.dataset_id == first.dataset_id) == (False, False)


def test_adding_images_moves_no_old_one(toys: PrepareSpec) -> None:
    """Of classes that are large enough to be in all splits by themselves."""
    a_folder(_folder(toys), {"ball": 150, "kite": 150})
    before = _places(prepare(toys))
    a_folder(_folder(toys), {"ball": 50, "kite": 5}, start=150)
    after = _places(prepare(toys))
    assert len(after) == len(before) + 55
    assert {sample: after[sample] for sample in before} == before


def test_a_version_that_lost_a_shard_is_made_whole(toys: PrepareSpec) -> None:
    first, before = prepare(toys), _objects(toys)
    lost = next(key for key in before if key.startswith("shards/"))
    open_store(toys.store).delete(lost)
    again = prepare(toys)
    assert (again.reused, again.dataset_id) == (False, first.dataset_id)
    assert _objects(toys).keys() == before.keys()


@pytest.mark.parametrize("damage", ["lost", "flipped"])
def test_a_version_that_lost_a_column_is_made_whole(damage: str, toys: PrepareSpec) -> None:
    first, before = prepare(toys), _objects(toys)
    column = first.manifest.splits["train"].labels
    if damage == "lost":
        open_store(toys.store).delete(object_key(column))
    else:
        _flip(toys, object_key(column))
    again = prepare(toys)
    assert (again.reused, again.encoded, again.dataset_id) == (False, 0, first.dataset_id)
    assert _objects(toys).keys() == before.keys()
    assert len(_content(again)) == 16
    assert prepare(toys).reused


def test_a_damaged_manifest_is_written_again(
    toys: PrepareSpec, store_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = replace(toys, store=store_uri)
    first = prepare(spec)
    store, key = open_store(spec.store), first.manifest_uri.removeprefix(f"{open_store(spec.store).uri}/")
    whole = store.read(key)
    store.write(key, whole[: len(whole) // 2])
    again = prepare(spec)
    assert (again.reused, again.encoded, again.dataset_id) == (False, 0, first.dataset_id)
    assert f"damaged: {key} differs from what was published" in caplog.text
    assert store.read(key) == whole
    assert prepare(spec).reused


@pytest.fixture
def sharded(toys: PrepareSpec, store_uri: str, monkeypatch: pytest.MonkeyPatch) -> PrepareSpec:
    """Toys whose training split has several shards, the last of them small."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 5 * 32 * 32)
    spec = replace(toys, store=store_uri, image_size=32)
    assert [shard.count for shard in prepare(spec).manifest.splits["train"].shards] == [5, 5, 2]
    return spec


def _flip(spec: PrepareSpec, key: str) -> None:
    store = open_store(spec.store)
    data = store.read(key)
    store.write(key, data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("place", [0, 1, -1])
def test_verify_repairs_damaged_shards(place: int, sharded: PrepareSpec) -> None:
    """The version stays what it was, also for who trained on it."""
    first = prepare(sharded)
    shard, before = first.manifest.splits["train"].shards[place], _objects(sharded)
    _flip(sharded, shard_key(shard))
    assert prepare(sharded).reused, "its shards are not read"
    repaired = prepare(replace(sharded, verify=True))
    assert (repaired.reused, repaired.encoded) == (False, shard.count)
    assert repaired.dataset_id == first.dataset_id
    assert len(_content(repaired)) == 16
    assert _objects(sharded).keys() == before.keys()
    assert prepare(replace(sharded, verify=True)).reused


def test_verify_repairs_a_shard_that_is_cut_off(sharded: PrepareSpec) -> None:
    """Its size shows it."""
    first = prepare(sharded)
    open_store(sharded.store).write(shard_key(first.manifest.splits["train"].shards[1]), b"cut")
    again = prepare(sharded)
    assert (again.encoded, again.dataset_id) == (5, first.dataset_id)
    assert len(_content(again)) == 16


def test_no_image_is_taken_from_a_damaged_shard(sharded: PrepareSpec) -> None:
    _flip(sharded, shard_key(prepare(sharded).manifest.splits["train"].shards[1]))
    other = replace(sharded, split_seed=1)
    fresh = prepare(replace(other, store=sharded.store + "-2"))
    assert _content(prepare(replace(other, verify=True))) == _content(fresh)


def test_a_damaged_shard_without_its_image_is_reported(toys: PrepareSpec) -> None:
    """The file hides its change, as far as it can."""
    shard = prepare(toys).manifest.splits["train"].shards[0]
    open_store(toys.store).delete(shard_key(shard))
    for path in _folder(toys).rglob("*.png"):
        status = path.stat()
        path.write_bytes(bytes(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(SourceError, match="it is not an image"):
        prepare(toys)


PREPARE = """
import sys
from pathlib import Path
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
spec = PrepareSpec(source="folder", source_path=sys.argv[1], dataset_name="toys", store=sys.argv[2])
def run(): return prepare(spec)
"""


@pytest.mark.slow
def test_a_kill_at_any_point_leaves_no_half_version(toys: PrepareSpec) -> None:
    """Killed before the n-th file takes its place, for all n until it runs to its end."""
    script = PREPARE + (
        "import os, signal\n"
        "countdown, real = int(sys.argv[3]), Path.replace\n"
        "def counting(self, target):\n"
        "    global countdown\n"
        "    countdown -= 1\n"
        "    return real(self, target) if countdown else os.kill(os.getpid(), signal.SIGKILL)\n"
        "Path.replace = counting; run()"
    )
    store = open_store(toys.store)
    for point in range(1, 20):
        shutil.rmtree(toys.store, ignore_errors=True)
        command = [sys.executable, "-c", script, str(_folder(toys)), toys.store, str(point)]
        outcome = subprocess.run(command, check=False)
        for key in [info.key for info in store.list("datasets/") if info.key.endswith("manifest.json")]:
            for split in SPLITS:
                open_split(f"{store.uri}/{key}", split)
        finished = prepare(toys)
        assert len(_content(finished)) == 16
        if outcome.returncode == 0:
            break
        assert outcome.returncode == -signal.SIGKILL
    assert point == len(_objects(toys)) + 2, "each, and the claim, was once what it was killed before"


def test_two_prepares_at_once_agree(toys: PrepareSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """In step: each object is written by both of them at the same moment."""
    both, real, written = Barrier(2, timeout=60), FileStore.write, Counter[str]()

    def in_step(self: FileStore, key: str, data: bytes) -> None:
        written[key.partition("/")[0] if key.startswith("claims/") else key] += 1
        both.wait()
        real(self, key, data)

    monkeypatch.setattr(FileStore, "write", in_step)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(prepare, [toys, toys])
    monkeypatch.undo()
    assert set(written.values()) == {2}
    assert first.manifest == second.manifest
    assert set(_objects(toys)) == set(written) - {"claims"}
    assert len(_content(first)) == 16
    again = prepare(toys)
    assert (again.reused, again.dataset_id) == (True, first.dataset_id)


def test_a_shard_deleted_while_others_are_written_is_reported(
    toys: PrepareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No manifest names a missing shard; the next prepare writes it again."""
    first = prepare(toys)
    an_image(_folder(toys) / "ball" / "new.png", seed=5)
    grown = prepare(replace(toys, store=toys.store + "-2"))
    unchanged = next(split for split in SPLITS if split != _places(grown)["ball/new.png"])
    lost = shard_key(first.manifest.splits[unchanged].shards[0])
    store, real = open_store(toys.store), packing.write_entry

    def cleaned_up_meanwhile(*arguments: Any) -> None:
        real(*arguments)
        store.delete(lost)

    with monkeypatch.context() as patch:
        patch.setattr(packing, "write_entry", cleaned_up_meanwhile)
        with pytest.raises(DatasetError, match=lost):
            prepare(toys)
    assert [version.dataset_id for version in versions(store)] == [first.dataset_id]
    finished = prepare(toys)
    assert finished.dataset_id == grown.dataset_id
    assert _content(finished) == _content(grown)


@pytest.fixture
def forsaken(toys: PrepareSpec) -> PrepareSpec:
    """Toys of which there are shards, three days old, and no version."""
    version = prepare(toys)
    for path in Path(toys.store).rglob("*.*"):
        os.utime(path, (time.time() - 3 * 86400,) * 2)
    Path(version.manifest_uri).unlink()
    return toys


DAY = timedelta(days=1)


def test_what_is_about_to_be_published_is_not_cleaned_up(
    forsaken: PrepareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at its shards and the manifest."""
    store, real = FileStore(Path(forsaken.store)), FileStore.write
    assert garbage(store, DAY, datetime.now(UTC))

    def cleaned_up_before(self: FileStore, key: str, data: bytes) -> None:
        if key.endswith("manifest.json"):
            assert clean_up(store, DAY, datetime.now(UTC)) == []
        real(self, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "write", cleaned_up_before)
        prepared = prepare(forsaken)
    assert prepared.encoded == 0
    assert len(_content(prepared)) == 16
    assert not list(store.list("claims/"))


def test_what_is_being_cleaned_up_is_not_published(
    forsaken: PrepareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real, refusals = FileStore(Path(forsaken.store)), FileStore.delete, list[str]()

    def prepared_before(self: FileStore, key: str) -> None:
        if key.startswith("shards/") and not refusals:
            refusals.append("")
            with pytest.raises(DatasetError, match="clean-up` is deleting"):
                prepare(forsaken)
        real(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "delete", prepared_before)
        assert clean_up(store, DAY, datetime.now(UTC))
    assert refusals
    assert versions(store) == []
    assert not list(store.list("cleanings/"))
    assert len(_content(prepare(forsaken))) == 16


def test_the_intent_of_a_killed_process_expires_after_an_hour(forsaken: PrepareSpec) -> None:
    notes = [Path(forsaken.store) / folder / "old.json" for folder in ("claims", "cleanings")]
    for note in notes:
        FileStore(note.parent).write(note.name, b'["damaged')
        os.utime(note, (time.time() - 50 * 60,) * 2)
    with pytest.raises(DatasetError, match="an intent is damaged"):
        prepare(forsaken)
    for note in notes:
        os.utime(note, (time.time() - 70 * 60,) * 2)
    assert prepare(forsaken).encoded == 0


@pytest.mark.parametrize("content", [b'["cut', b"7", b"[1]", b"{}"])
def test_a_damaged_intent_stops_what_it_may_protect(content: bytes, forsaken: PrepareSpec) -> None:
    store = open_store(forsaken.store)
    for folder, act in (
        ("cleanings", lambda: prepare(forsaken)),
        ("claims", lambda: clean_up(store, DAY, datetime.now(UTC))),
    ):
        store.write(f"{folder}/other.json", content)
        with pytest.raises(DatasetError, match=f"{folder}/other.json"):
            act()
        store.delete(f"{folder}/other.json")


def test_an_entry_that_vanishes_while_it_is_read_is_no_error(
    toys: PrepareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, real = prepare(toys), FileStore.list

    def vanishing(self: FileStore, prefix: str = "") -> Iterator[ObjectInfo]:
        found = list(real(self, prefix))
        for info in found:
            if "/encoded/" in info.key:
                self.delete(info.key)
        return iter(found)

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "list", vanishing)
        assert prepare(toys).dataset_id == first.dataset_id


# Small shards


def test_small_additions_do_not_pile_up_in_small_shards(
    toys: PrepareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is at least half full stays; of the others there is never more than one in a split."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 4 * 32 * 32)
    a_folder(_folder(toys), {"ball": 30, "kite": 30}, start=100)
    kept = set[str]()
    for number in range(8):
        found = prepare(replace(toys, image_size=32)).manifest.splits["train"].shards
        assert sum(shard.count < 2 for shard in found) <= 1
        full = {shard.sha256 for shard in found if shard.count >= 2}
        assert kept <= full
        kept = full
        an_image(_folder(toys) / "ball" / f"new{number}.png", seed=10**6 + number)


@pytest.mark.parametrize(("more", "stays"), [(0, True), (1, False)])
def test_a_shard_stays_if_it_is_at_least_half_full(
    more: int, stays: bool, toys: PrepareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = prepare(toys).manifest.splits["train"].shards[0]
    monkeypatch.setattr(shards, "SHARD_BYTES", 2 * shard.bytes + more)
    a_folder(_folder(toys), {"ball": 10}, start=100)
    assert (shard in prepare(toys).manifest.splits["train"].shards) == stays


# Wrong input


def _refused(spec: PrepareSpec, kind: type[DdpipeError]) -> DdpipeError:
    """Refused with this error, and nothing was written."""
    with pytest.raises(kind) as caught:
        prepare(spec)
    assert not list(open_store(spec.store).list())
    return caught.value


def test_an_impossible_spec_is_refused_before_anything_is_written(toys: PrepareSpec) -> None:
    _refused(replace(toys, image_size=-1), ParameterError)
    _refused(replace(toys, source_path=""), ParameterError)


def test_a_folder_that_does_not_exist_is_named(toys: PrepareSpec) -> None:
    assert "no/such" in _refused(replace(toys, source_path="no/such"), SourceError).which


def test_an_empty_folder_is_refused(toys: PrepareSpec, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no image" in _refused(replace(toys, source_path=str(tmp_path / "empty")), SourceError).seen


def test_classes_that_are_too_small_are_all_named(toys: PrepareSpec) -> None:
    a_folder(_folder(toys), {"single": 1, "pair": 2})
    seen = _refused(toys, SourceError).seen
    assert "'single' has 1" in seen
    assert "'pair' has 2" in seen
    assert "ball" not in seen


def _damage(spec: PrepareSpec) -> None:
    """One file cut off, one that is no image, one empty."""
    whole = an_image(_folder(spec) / "ball" / "cut.png", (60, 60)).read_bytes()
    (_folder(spec) / "ball" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (_folder(spec) / "ball" / "text.jpg").write_text("not an image")
    (_folder(spec) / "kite" / "void.png").touch()


def test_unreadable_images_are_all_named(toys: PrepareSpec) -> None:
    _damage(toys)
    error = _refused(toys, SourceError)
    for problem in (
        "3 problems",
        "ball/cut.png: ",
        "ball/text.jpg: it is not an image",
        "kite/void.png: it is empty",
    ):
        assert problem in error.seen
    assert "skip_bad" in error.do


def test_a_folder_without_a_readable_image_lists_all_reasons(toys: PrepareSpec) -> None:
    for path in _folder(toys).rglob("*.png"):
        path.write_text("not an image")
    assert "16 problems" in _refused(toys, SourceError).seen


def test_unreadable_images_are_skipped_and_listed_if_so_asked(
    toys: PrepareSpec, caplog: pytest.LogCaptureFixture
) -> None:
    clean = _content(prepare(replace(toys, store=toys.store + "-2")))
    _damage(toys)
    with caplog.at_level(logging.WARNING, "ddpipe"):
        prepared = prepare(replace(toys, skip_bad=True))
    assert prepared.skipped == ["ball/cut.png", "ball/text.jpg", "kite/void.png"]
    assert prepared.manifest.skipped == tuple(prepared.skipped)
    messages = [record.message.split(":")[0] for record in caplog.records]
    assert [text for text in messages if text != "check the data"] == [
        f"skipped {x}" for x in prepared.skipped
    ]
    assert _content(prepared) == clean


def test_a_small_split_is_a_warning(toys: PrepareSpec, caplog: pytest.LogCaptureFixture) -> None:
    prepare(toys)
    assert "check the data: class 'kite' has few images (4 in train" in caplog.text


def test_a_version_with_skipped_images_is_not_reused_by_the_strict(toys: PrepareSpec) -> None:
    _damage(toys)
    prepare(replace(toys, skip_bad=True))
    with pytest.raises(SourceError):
        prepare(toys)


def test_skipping_may_not_empty_a_class(toys: PrepareSpec) -> None:
    a_folder(_folder(toys), {"pairs": 2})
    (_folder(toys) / "pairs" / "bad.png").touch()
    assert "'pairs' has 2" in _refused(replace(toys, skip_bad=True), SourceError).seen


def test_a_read_only_store_is_refused_before_the_data_is_read(
    toys: PrepareSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail(f"{self} was read"))
    with pytest.raises(NotWritable):
        prepare(replace(toys, store=str(tmp_path / "file")))


def test_a_bucket_that_does_not_exist_is_refused(toys: PrepareSpec, s3: Server) -> None:
    with pytest.raises(NoSuchBucket):
        prepare(replace(toys, store="s3://nobody-made-this"))


# The page about it


def _page(prepared: Prepared) -> str:
    return data_report_html(prepared.manifest, store_of(prepared.manifest_uri))


def test_the_page_reads_no_more_shards_than_it_shows_images_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 4 * 4 * 6)
    path = a_folder(tmp_path / "many", {"ball": 60, "kite": 60})
    prepared = prepare(
        PrepareSpec(source="folder", source_path=str(path), dataset_name="many", store=str(tmp_path / "s"))
    )
    train = prepared.manifest.splits["train"]
    labels = open_split(prepared.manifest_uri, "train").labels
    last = int(np.flatnonzero(labels == 0)[-1]) // train.shards[0].count
    (tmp_path / "s" / shard_key(train.shards[last])).unlink()
    (tmp_path / "s" / shard_key(train.shards[-1])).unlink()
    assert _page(prepared).count("data:image/png;base64,") == 2


def test_the_page_has_a_row_and_a_picture_per_class(store_uri: str, toys: PrepareSpec) -> None:
    prepared = prepare(replace(toys, store=store_uri))
    page = _page(prepared)
    counts = [prepared.manifest.splits[split].per_class[0] for split in SPLITS]
    assert "<td>ball</td>" + "".join(f"<td>{count}</td>" for count in (*counts, 10)) in page
    assert page.count("data:image/png;base64,") == 2
    assert prepared.dataset_id in page


def test_the_page_needs_nothing_from_elsewhere(toys: PrepareSpec) -> None:
    page = _page(prepare(toys))
    assert "http" not in page
    assert "<script" not in page


def test_names_in_the_page_are_escaped(toys: PrepareSpec) -> None:
    a_folder(_folder(toys), {"<script>alert(1)<": 3})
    (_folder(toys) / "ball" / "<img src=x>.png").touch()
    page = _page(prepare(replace(toys, skip_bad=True)))
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;" in page
    assert "&lt;img src=x&gt;" in page


# Photographs


@pytest.fixture
def photographs(tmp_path: Path) -> PrepareSpec:
    """Sixty pictures of two classes, some upright, some gray, kept as JPEGs with a shorter side of 32."""
    for number in range(60):
        size, mode = ((120, 90), (90, 140))[number % 2], ("RGB", "L")[number % 3 == 0]
        an_image(tmp_path / "photos" / "ab"[number % 2] / f"{number:03d}.jpg", size, mode=mode, seed=number)
    path, store = str(tmp_path / "photos"), str(tmp_path / "store")
    return PrepareSpec(
        source="folder",
        source_path=path,
        dataset_name="photos",
        store=store,
        image_format="jpeg",
        image_size=32,
    )


def test_photographs_are_kept_as_small_jpegs_and_read_as_squares(photographs: PrepareSpec) -> None:
    prepared = prepare(photographs)
    assert prepared.manifest.shape == (32, 32, 3)
    assert {shard.kind for split in prepared.manifest.splits.values() for shard in split.shards} == {"jpeg"}
    train = open_split(prepared.manifest_uri, "train")
    pixels = train.images(range(len(train)))
    np.testing.assert_allclose(prepared.manifest.mean, pixels.mean(axis=(0, 1, 2)) / 255, atol=0.02)
    assert "data:image/png" in _page(prepared)


def test_large_images_become_jpegs_and_small_ones_pixels(photographs: PrepareSpec) -> None:
    found = prepare(replace(photographs, image_format="auto", image_size=0)).manifest
    assert found.source["encoding"] == {"kind": "raw", "shape": [108, 100, 3], "fit": "contain"}
    for number in range(600):
        an_image(_folder(photographs) / "a" / f"large{number}.jpg", (400, 300))
    found = prepare(replace(photographs, image_format="auto", image_size=0)).manifest
    assert found.source["encoding"] == {
        "kind": "jpeg",
        "size": [225, 291],
        "fit": "contain",
        "quality": 90,
        "filter": "bicubic",
    }


# Images of 16 bits


def _deep(spec: PrepareSpec, name: str, brightest: int) -> NDArray[np.uint16]:
    """Write a PNG of 16 bits whose values reach just so far; its pixels."""
    pixels = np.linspace(0, brightest, 24, dtype=np.uint16).reshape(4, 6)
    path = _folder(spec) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def test_the_bits_that_16_bit_images_use_are_those_that_are_kept(
    toys: PrepareSpec, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 12 bits the upper 8 of 16 would be nearly black; a dark image stays dark among brighter ones."""
    bright, dark = _deep(toys, "ball/bright.png", 4095), _deep(toys, "ball/dark.png", 700)
    with caplog.at_level(logging.INFO, "ddpipe"):
        twelve = prepare(toys)
    assert twelve.manifest.source["encoding"]["depth"] == 12
    assert "16-bit images use 12 bits at most" in caplog.text
    content = _content(twelve)
    assert content["ball/bright.png"][1] == (bright >> 4).astype(np.uint8).tobytes()
    assert content["ball/dark.png"][1] == (dark >> 4).astype(np.uint8).tobytes()
    deepest = _deep(toys, "ball/deepest.png", 65535)
    sixteen = prepare(toys)
    assert _content(sixteen)["ball/dark.png"][1] == (dark >> 8).astype(np.uint8).tobytes()
    assert _content(sixteen)["ball/deepest.png"][1] == (deepest >> 8).astype(np.uint8).tobytes()
    assert prepare(toys).reused
    (_folder(toys) / "ball" / "deepest.png").unlink()
    assert prepare(toys).dataset_id == twelve.dataset_id


def test_a_deep_image_that_is_met_late_counts_for_all(
    toys: PrepareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the size is given, some images are measured, and the others only read to be encoded."""
    monkeypatch.setattr(building, "MEASURED", 1)
    spec = replace(toys, image_format="jpeg", image_size=4)
    late = _deep(spec, "kite/late.png", 4095)
    prepared = prepare(spec)
    assert prepared.manifest.source["encoding"]["depth"] == 12
    assert prepared.encoded == 17
    name = "kite/late.png"
    (split,) = (key for key in SPLITS if name in sample_ids(prepared.manifest_uri, key))
    reader = open_split(prepared.manifest_uri, split)
    whole = reader.images([reader.sample_ids.index(name)])[0, :3, :, 0]  # below it, there is white
    assert abs(whole.mean() - (late >> 4).mean()) < 5


# Only what changed


def _reads(spec: PrepareSpec, monkeypatch: pytest.MonkeyPatch) -> tuple[Prepared, list[str]]:
    """Prepare; which files of the source were read."""
    read: list[str] = []
    real = ClassFolders.read

    def reading(self: ClassFolders, sample: Sample) -> bytes:
        read.append(sample.id)
        return real(self, sample)

    with monkeypatch.context() as patch:
        patch.setattr(ClassFolders, "read", reading)
        return prepare(spec), read


def test_only_new_images_are_read_and_encoded(
    photographs: PrepareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _reads(photographs, monkeypatch)[0].encoded == 60
    an_image(_folder(photographs) / "a" / "new.jpg", (200, 100))
    (_folder(photographs) / "b" / "001.jpg").unlink()
    prepared, read = _reads(photographs, monkeypatch)
    assert (prepared.encoded, {*read}) == (1, {"a/new.jpg"})
    assert _reads(photographs, monkeypatch)[1] == []
    fresh = prepare(replace(photographs, store=photographs.store + "-2"))
    assert _content(prepared) == _content(fresh)


def test_a_touched_file_is_read_but_not_encoded(toys: PrepareSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(toys)
    os.utime(_folder(toys) / "ball" / "0001.png", (1, 1))
    again, read = _reads(toys, monkeypatch)
    assert (again.dataset_id, again.encoded, read) == (first.dataset_id, 0, ["ball/0001.png"])
    assert _reads(toys, monkeypatch)[1] == [], "from now on its new time is known"


def test_what_hides_its_change_is_found_when_verifying(toys: PrepareSpec) -> None:
    """Same size, same time: only reading it shows the change."""
    first = prepare(toys)
    path = _folder(toys) / "ball" / "0001.png"
    before, data = path.stat(), path.read_bytes()
    an_image(path, seed=77)
    assert len(path.read_bytes()) == len(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert prepare(toys).reused
    assert prepare(replace(toys, verify=True)).dataset_id != first.dataset_id


@pytest.mark.parametrize("kind", ["raw", "jpeg"])
def test_another_split_moves_images_without_reading_them(
    kind: str, store_uri: str, photographs: PrepareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(photographs, image_format=kind, store=store_uri)
    prepare(spec)
    moved, read = _reads(replace(spec, split_seed=1), monkeypatch)
    assert (moved.encoded, read) == (0, [])
    assert _content(moved) == _content(prepare(replace(spec, split_seed=1, store=store_uri + "-2")))


def test_an_earlier_state_of_the_data_is_its_earlier_version(toys: PrepareSpec) -> None:
    first = prepare(toys)
    path = an_image(_folder(toys) / "ball" / "new.png", seed=5)
    prepare(toys)
    path.unlink()
    again = prepare(toys)
    assert (again.dataset_id, again.reused) == (first.dataset_id, True)


def test_an_interrupted_prepare_resumes(photographs: PrepareSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 10_000)
    real, left = packing.write_entry, [3]

    def dying(store: Store, name: str, entry: Entry) -> None:
        real(store, name, entry)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packing, "write_entry", dying)
        with pytest.raises(KeyboardInterrupt):
            prepare(photographs)
    prepared, read = _reads(photographs, monkeypatch)
    assert len({*read}) == prepared.encoded < 60
    fresh = prepare(replace(photographs, store=photographs.store + "-2"))
    assert prepared.dataset_id == fresh.dataset_id


@pytest.mark.parametrize("place", [".", "store", "deep/store"])
def test_results_inside_the_data_are_rejected(place: str, toys: PrepareSpec) -> None:
    """`cd photos; ddpipe run .`: they would become classes, of the next run if not of this one."""
    with pytest.raises(SourceError, match="results would be written into it"):
        prepare(replace(toys, store=str(_folder(toys) / place)))
    with pytest.raises(SourceError, match="results would be written into it"):
        workflow.prepare(Run.named(str(_folder(toys) / place), "first"), toys)
    assert sorted(path.name for path in _folder(toys).iterdir()) == ["ball", "kite"]


@pytest.mark.parametrize("place", [".store", "../toys-store"])
def test_results_that_are_hidden_or_beside_the_data_are_fine(place: str, toys: PrepareSpec) -> None:
    spec = replace(toys, store=str(_folder(toys) / place))
    assert not prepare(spec).reused
    assert prepare(spec).reused


def test_a_damaged_entry_of_the_index_is_ignored(toys: PrepareSpec) -> None:
    first = prepare(toys)
    store = open_store(toys.store)
    for info in store.list("datasets/toys/encoded/"):
        store.write(info.key, b"nonsense")
    assert prepare(toys).dataset_id == first.dataset_id


def test_the_same_file_in_two_splits_is_a_warning(
    toys: PrepareSpec, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(30):
        shutil.copy(_folder(toys) / "ball" / "0000.png", _folder(toys) / "ball" / f"copy{number}.png")
    prepared = prepare(toys)
    (line,) = [
        line for line in caplog.messages if "equal images are in more than one split: 1, such as" in line
    ]
    assert line.count("ball/") == len(SPLITS), (
        "one image of each split: placeholders have thousands of copies"
    )
    assert "more than once: 1</h2>" in _page(prepared)
    assert "<code>ball/copy7.png</code> (" in _page(prepared)


def test_pictures_that_look_alike_in_two_splits_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(60):
        folder = tmp_path / "pictures" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        a_picture(number % 30).save(folder / f"{number}.jpg", quality=60 + number // 2)
    spec = PrepareSpec(
        source="folder", source_path=str(tmp_path / "pictures"), dataset_name="p", store=str(tmp_path / "s")
    )
    page = _page(prepare(replace(spec, image_format="jpeg", image_size=64)))
    assert "pairs of images that look alike are in more than one split: " in caplog.text
    assert "look alike: 30</h2>" in page
    shown = page.partition("look alike: 30</h2>")[2].partition("</ul>")[0]
    assert shown.count("<img") == 20, "both pictures of each pair that is listed"
    warned = [text.removeprefix("check the data: ") for text in caplog.messages if "split" in text]
    assert warned
    assert all(text in html.unescape(page) for text in warned), "what the console says of the data"


def test_the_page_lists_the_sizes_of_the_files(photographs: PrepareSpec) -> None:
    page = _page(prepare(photographs))
    assert "<td>120 × 90</td><td>30</td>" in page  # noqa: RUF001
    assert "more than once" not in page


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, "Split image by image, with seed 3."),
        (
            {"groups": {"train": 1200, "validation": 10, "test": 12}},
            (
                "Split by group, no group in two splits "
                "(1,200 in train, 10 in validation, 12 in test), with seed 3."
            ),
        ),
        (
            {"given": ["train", "validation"], "kind": "stratified"},
            (
                "The source names the validation images, and no test images: these come out of its images "
                "for training, split image by image, with seed 3; each class has its share to within one; "
                "images of earlier versions kept their split."
            ),
        ),
        ({"given": ["test", "train", "validation"]}, "The source says which split each image is in."),
    ],
)
def test_the_page_says_how_the_split_was_made(rule: dict[str, Any], expected: str) -> None:
    assert how_split(a_manifest(split_rule=rule, seed=3)) == expected


def test_a_grouped_version_counts_the_groups_of_each_split(tmp_path: Path) -> None:
    rows = [f"images/{number}.png,{'ab'[number % 2]},p{number // 4}" for number in range(40)]
    a_folder(tmp_path / "raw", {"images": 40})
    for number, path in enumerate(sorted((tmp_path / "raw/images").iterdir())):
        path.rename(path.with_name(f"{number}.png"))
    (tmp_path / "raw/train.csv").write_text("\n".join(["image,label,patient", *rows]))
    spec = PrepareSpec(
        source="csv",
        source_path=str(tmp_path / "raw"),
        store=str(tmp_path / "store"),
        label_columns="label",
        group_column="patient",
    )
    counts = prepare(spec).manifest.split_rule["groups"]
    assert sum(counts.values()) == 10
    assert all(counts.values())
