"""Encoding by helpers: the version is the one of a single process, even if helpers are lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from s3_server import BUCKET
from samples import a_folder, a_picture

from ddpipe.data import shards
from ddpipe.data.catalogue import SCRATCH, clean_up
from ddpipe.errors import CorruptObject, ParameterError, PreflightFailed, SourceError
from ddpipe.jobs import ALONE
from ddpipe.prepare.planning import Stored
from ddpipe.prepare.prepare import Prepared, prepare
from ddpipe.prepare.sharing import SHARES, Helped, Helpers, encode_share
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.sources.folder import ClassFolders
from ddpipe.sources.sample import Sample
from ddpipe.steps import EncodeOptions
from ddpipe.storage import open_store

Run = Callable[[str, str, int], None]


def in_turn(uri: str, sha256: str, count: int) -> None:
    """All helpers, one after the other."""
    for number in range(count):
        encode_share(uri, sha256, number)


def only(numbers: Iterable[int]) -> Run:
    """Some of them: the others are lost before they begin."""
    return lambda uri, sha256, _count: [encode_share(uri, sha256, number) for number in numbers] and None


def never(_uri: str, _sha256: str, _count: int) -> None:
    raise AssertionError("there is nothing to encode")


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrepareSpec:
    """Twenty photographs of two classes, of which a shard holds three or so."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 20_000)
    for number in range(20):
        folder = tmp_path / "photographs" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        a_picture(number).save(folder / f"{number:02d}.jpg", quality=95)
    return PrepareSpec(
        source="folder",
        source_path=str(tmp_path / "photographs"),
        dataset_name="photographs",
        store=str(tmp_path / "store"),
        image_size=128,
    )


def alone(spec: PrepareSpec, tmp_path: Path) -> Prepared:
    """What one process makes, in a store of its own."""
    return prepare(replace(spec, store=str(tmp_path / "alone")))


def objects(uri: str) -> set[str]:
    return {info.key for info in open_store(uri).list() if not info.key.startswith(".")}


def test_version_and_store_are_those_of_one_process(photographs: PrepareSpec, tmp_path: Path) -> None:
    expected = alone(photographs, tmp_path)
    assert len(expected.manifest.splits["train"].shards) > 3
    prepared = prepare(photographs, Helpers(3, in_turn))
    assert prepared.manifest == expected.manifest
    assert prepared.encoded == expected.encoded == 20
    assert objects(photographs.store) == objects(str(tmp_path / "alone"))


def test_digits_have_the_version_that_they_always_had(tmp_path: Path) -> None:
    spec = PrepareSpec(source="digits", store=str(tmp_path / "store"))
    prepared = prepare(spec, Helpers(4, in_turn))
    assert prepared.dataset_id == alone(spec, tmp_path).dataset_id


@pytest.mark.usefixtures("s3")
def test_helpers_of_a_bucket_make_the_same_version(photographs: PrepareSpec, tmp_path: Path) -> None:
    expected = alone(photographs, tmp_path)
    prepared = prepare(replace(photographs, store=f"s3://{BUCKET}/data"), Helpers(3, in_turn))
    assert prepared.dataset_id == expected.dataset_id
    assert not list(open_store(f"s3://{BUCKET}/data").list(SCRATCH))


@pytest.mark.parametrize("numbers", [[], [0], [2, 0]])
def test_shares_of_lost_helpers_are_encoded_in_the_end(
    numbers: list[int], photographs: PrepareSpec, tmp_path: Path
) -> None:
    prepared = prepare(photographs, Helpers(3, only(numbers)))
    assert prepared.dataset_id == alone(photographs, tmp_path).dataset_id


def test_the_publisher_reads_no_image_that_helpers_encoded(
    photographs: PrepareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, original = [], ClassFolders.read

    def counted(source: ClassFolders, sample: Sample) -> bytes:
        read.append(sample.id)
        return original(source, sample)

    def helped(uri: str, sha256: str, count: int) -> None:
        in_turn(uri, sha256, count)
        read.clear()

    monkeypatch.setattr(ClassFolders, "read", counted)
    prepare(photographs, Helpers(3, helped))
    assert read == []


def test_a_helper_that_starts_again_encodes_what_is_left(photographs: PrepareSpec) -> None:
    """It is killed after some shards: what it stored is not encoded again."""
    found = []

    def twice(uri: str, sha256: str, count: int) -> None:
        found.extend(encode_share(uri, sha256, number) for number in range(count))
        entries = sorted(open_store(uri).list("datasets/"), key=lambda info: info.key)
        open_store(uri).delete(entries[0].key)  # the last shard that it had written
        found.append(sum(encode_share(uri, sha256, number) for number in range(count)))

    prepare(photographs, Helpers(2, twice))
    assert found[:2] == [10, 10]
    assert 0 < found[2] < 10


def test_a_retry_finds_what_the_attempt_before_encoded(photographs: PrepareSpec, tmp_path: Path) -> None:
    """The first job fails after one share; no version is published."""
    encoded = []

    def failing(uri: str, sha256: str, _count: int) -> None:
        encoded.append(encode_share(uri, sha256, 0))
        raise PreflightFailed(what="no", which="job", seen="a pod failed", do="see")

    def continuing(uri: str, sha256: str, count: int) -> None:
        encoded.extend(encode_share(uri, sha256, number) for number in range(count))

    with pytest.raises(PreflightFailed):
        prepare(photographs, Helpers(2, failing))
    assert not [key for key in objects(photographs.store) if key.endswith("manifest.json")]
    assert prepare(photographs, Helpers(2, continuing)).dataset_id == alone(photographs, tmp_path).dataset_id
    assert encoded == [10, 0, 10]


def test_of_two_prepares_at_once_the_slower_one_encodes_what_is_removed(
    photographs: PrepareSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found the same assignment; the faster one has published and removed it."""
    encoded = Helped.encoded

    def removed(helped: Helped, *given: Any) -> list[Stored]:
        found = encoded(helped, *given)
        helped.clear()
        return found

    monkeypatch.setattr(Helped, "encoded", removed)
    prepared = prepare(photographs, Helpers(3, in_turn))
    assert prepared.dataset_id == alone(photographs, tmp_path).dataset_id


def test_unchanged_data_needs_no_helper(photographs: PrepareSpec) -> None:
    prepare(photographs)
    assert prepare(photographs, Helpers(3, never)).reused


def test_more_helpers_than_images_are_not_started(tmp_path: Path) -> None:
    path = a_folder(tmp_path / "toys", {"ball": 3, "kite": 3})
    spec = PrepareSpec(source="folder", source_path=str(path), store=str(tmp_path / "store"))
    counts = []
    prepare(spec, Helpers(50, lambda *given: counts.append(given[2])))
    assert counts == [6]


def test_unreadable_images_are_rejected_as_by_one_process(photographs: PrepareSpec, tmp_path: Path) -> None:
    (Path(photographs.source_path) / "cat" / "01.jpg").write_bytes(b"no image")
    with pytest.raises(SourceError, match=r"01\.jpg"):
        prepare(photographs, Helpers(3, in_turn))
    skipping = replace(photographs, skip_bad=True)
    prepared = prepare(skipping, Helpers(3, in_turn))
    assert prepared.skipped == ["cat/01.jpg"]
    assert prepared.dataset_id == alone(skipping, tmp_path).dataset_id


def test_deeper_images_that_a_helper_finds_change_all(tmp_path: Path) -> None:
    """Only the last images use more than twelve of their sixteen bits: all are encoded again."""
    for number in range(40):
        folder = tmp_path / "deep" / ("a" if number % 2 else "b")
        folder.mkdir(parents=True, exist_ok=True)
        most = 2**16 - 1 if number > 36 else 2**12 - 1
        pixels = np.random.default_rng(number).integers(0, most, (128, 128), np.uint16)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    spec = PrepareSpec(
        source="folder",
        source_path=str(tmp_path / "deep"),
        dataset_name="deep",
        store=str(tmp_path / "store"),
        image_size=112,
    )
    prepared = prepare(spec, Helpers(3, in_turn))
    assert prepared.dataset_id == alone(spec, tmp_path).dataset_id
    assert not [key for key in objects(spec.store) if key.startswith(SCRATCH)]


def test_an_assignment_that_somebody_changed_is_refused(photographs: PrepareSpec) -> None:
    """It names files to read and code to read them with."""

    def changed(uri: str, sha256: str, _count: int) -> None:
        store = open_store(uri)
        store.write(SHARES.seal, store.read(SHARES.seal).replace(b'"folder"', b'"webdataset"'))
        encode_share(uri, sha256, 0)

    with pytest.raises(CorruptObject, match="not the assignment"):
        prepare(photographs, Helpers(2, changed))


def test_processes_encode_their_shares(photographs: PrepareSpec, tmp_path: Path) -> None:
    """As pods of a job: the number of each is in its environment."""

    def processes(uri: str, sha256: str, count: int) -> None:
        command = [sys.executable, "-m", "ddpipe.prepare.sharing", uri, sha256]
        for number in range(count):
            subprocess.run(command, env={**os.environ, "RANK": str(number)}, check=True)

    prepared = prepare(photographs, Helpers(2, processes))
    assert prepared.dataset_id == alone(photographs, tmp_path).dataset_id


def test_what_was_never_published_is_cleaned_up_some_day(photographs: PrepareSpec) -> None:
    def failing(uri: str, sha256: str, _count: int) -> None:
        encode_share(uri, sha256, 0)
        raise PreflightFailed(what="no", which="job", seen="a pod failed", do="see")

    with pytest.raises(PreflightFailed):
        prepare(photographs, Helpers(2, failing))
    store, now = open_store(photographs.store), datetime.now(UTC)
    clean_up(store, timedelta(hours=24), now)
    assert list(store.list(SCRATCH))
    clean_up(store, timedelta(hours=24), now + timedelta(hours=25))
    assert not list(store.list(SCRATCH))


def test_wrong_options_of_the_job_are_rejected_where_there_is_one() -> None:
    with pytest.raises(ParameterError, match="`image` is empty"):
        EncodeOptions(encode_nodes=2).validated()
    with pytest.raises(ParameterError, match="`cpu` is 'many'"):
        EncodeOptions(encode_nodes=2, image="mine", cpu="many").validated()
    assert EncodeOptions(cpu="many").validated()


def test_a_lost_pod_of_the_job_is_replaced_alone() -> None:
    job = EncodeOptions(encode_nodes=8, image="mine", cpu="4").job
    assert (job.nodes, job.restart, job.cpu, job.image) == (8, "ExitCode", "4", "mine")
    assert (job.backend, job.gpus) == (ALONE, 0)
