"""Dataset versions: their identity, and what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from samples import a_manifest, a_split

from ddpipe.data.manifest import (
    SCHEMA,
    ColumnRef,
    DatasetManifest,
    ShardRef,
    load_manifest,
    manifest_key,
    printable,
    store_of,
)
from ddpipe.errors import DatasetError, DdpipeError, NoSuchObject
from ddpipe.storage import open_store

GOLDEN = Path(__file__).parents[2] / "golden" / "manifest.json"


def _published(store_uri: str, text: str, dataset_id: str) -> str:
    store = open_store(store_uri)
    store.write(manifest_key("toys", dataset_id), text.encode())
    return f"{store.uri}/{manifest_key('toys', dataset_id)}"


def _changed(**changes: Any) -> str:
    return json.dumps(json.loads(a_manifest().to_json()) | changes)


def test_the_format_on_disk_is_the_golden_one() -> None:
    """A change here needs a new schema number: no version may be misread."""
    assert a_manifest().to_json() == GOLDEN.read_text().strip()


def test_reading_gives_back_what_was_written() -> None:
    manifest = a_manifest()
    assert DatasetManifest.from_json(manifest.to_json()) == manifest


def test_a_multilabel_manifest_is_read_back() -> None:
    split = a_split(2, labels=[[0, 1], [1, 1]])
    manifest = a_manifest(task="multilabel", splits=dict.fromkeys(a_manifest().splits, split))
    assert DatasetManifest.from_json(manifest.to_json()) == manifest


def test_the_id_is_the_hash_of_the_file_and_of_nothing_else(tmp_path: Path) -> None:
    manifest = a_manifest()
    uri = _published(str(tmp_path), manifest.to_json(), manifest.dataset_id)
    assert hashlib.sha256(Path(uri).read_bytes()).hexdigest() == manifest.dataset_id
    assert a_manifest().dataset_id == manifest.dataset_id
    assert a_manifest(seed=1).dataset_id != manifest.dataset_id


def test_an_image_may_have_as_many_values_as_the_limit_says() -> None:
    largest = (2**29, 1, 1)
    assert DatasetManifest.from_json(a_manifest(shape=largest).to_json()).shape == largest


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "../../x"}, "name is '../../x'"),
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"mean": [10**400]}, "OverflowError"),
        ({"mean": [float("nan")]}, r"mean\[0\] is nan, not float"),
        ({"std": [-1.0]}, "below 0"),
        ({"shape": [10**6, 10**6, 1]}, "no image has so many values"),
        ({"shape": [2**29 + 1, 1, 1]}, "no image has so many values"),
        ({"name": ["toys"]}, r"name is \[.*, not str"),
        ({"classes": ["ball", "\u202egnp.kite"]}, r"class '\\\\u202egnp.kite' has control characters"),
        ({"classes": ["ball", "ki\x1b[2Jte"]}, "has control characters"),
        ({"classes": ["ball", "\ud800"]}, r"class '\\\\ud800' has control characters"),
        ({"classes": ["ball", 7]}, r"classes\[1\] is 7, not str"),
        ({"shape": ["4", 6, 1]}, "malformed"),
        ({"mean": [None]}, "malformed"),
        ({"source": 1}, "malformed"),
    ],
)
def test_a_manifest_from_elsewhere_is_checked(changes: dict[str, Any], reason: str) -> None:
    """Its name becomes a path, its classes are shown."""
    with pytest.raises(DatasetError, match=reason):
        DatasetManifest.from_json(_changed(**changes))


@pytest.mark.parametrize("changes", [{"count": "6"}, {"count": 0}, {"bytes": None}, {"sha256": 0}])
def test_numbers_of_a_shard_are_numbers(changes: dict[str, Any]) -> None:
    fields = json.loads(a_manifest().to_json())
    fields["splits"]["train"]["shards"][0] |= changes
    with pytest.raises(DatasetError, match="malformed"):
        DatasetManifest.from_json(json.dumps(fields))


def test_a_published_version_is_loaded_with_its_store(store_uri: str) -> None:
    manifest = a_manifest()
    uri = _published(store_uri, manifest.to_json(), manifest.dataset_id)
    assert load_manifest(uri) == manifest
    assert store_of(uri).uri == open_store(store_uri).uri


def test_a_manifest_anywhere_else_is_loaded_without_a_store(tmp_path: Path) -> None:
    path = tmp_path / "copy.json"
    path.write_text(a_manifest().to_json())
    assert load_manifest(str(path)) == a_manifest()
    with pytest.raises(DatasetError, match=r"copy\.json.*Give <store>/datasets/"):
        store_of(str(path))


def test_a_manifest_that_was_changed_is_refused(tmp_path: Path) -> None:
    uri = _published(str(tmp_path), _changed(seed=7), a_manifest().dataset_id)
    with pytest.raises(DatasetError, match="changed after it was published") as caught:
        load_manifest(uri)
    assert caught.value.which == uri


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoSuchObject, match=r"manifest\.json"):
        load_manifest(str(tmp_path / "datasets/toys/0/manifest.json"))


def test_an_older_schema_says_what_to_do() -> None:
    """Even though its fields are not ours."""
    with pytest.raises(DatasetError, match=r"schema 1, this ddpipe .*again with this ddpipe"):
        DatasetManifest.from_json(json.dumps({"schema": SCHEMA - 1, "unheard": "of"}))
    with pytest.raises(DatasetError, match=r"its schema is \{\}"):
        DatasetManifest.from_json('{"schema": {}}')


@pytest.mark.parametrize("text", ["", "[]", "3", '"schema"', "{}", "not json", b"\xff\x00"])
def test_what_is_no_manifest_is_refused(text: str | bytes) -> None:
    with pytest.raises(DatasetError, match=r"s3://data/manifest\.json: .*not a dataset manifest"):
        DatasetManifest.from_json(text, "s3://data/manifest.json")


def _split(**changes: Any) -> dict[str, Any]:
    splits = json.loads(a_manifest().to_json())["splits"]
    return splits | {"test": splits["test"] | changes}


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"shape": [4, 6]}, "shape"),
        ({"shape": [0, 6, 1]}, "shape"),
        ({"shape": None}, "malformed"),
        ({"mean": [0.1, 0.2]}, "per channel"),
        ({"std": [0.1, 0.2]}, "per channel"),
        ({"std": []}, "per channel"),
        ({"splits": {}}, "splits"),
        ({"splits": [1]}, "malformed"),
        ({"surprise": 1}, "surprise"),
        ({"task": "ranking"}, "task"),
        ({"dtype": "float32"}, "dtype"),
        ({"splits": _split(per_class=[2])}, "counts"),
        ({"splits": _split(per_class=[1, 2])}, "counts"),
        ({"splits": _split(per_class=[3, -1])}, "counts"),
        ({"splits": _split(per_class=["1", 1])}, "malformed"),
        ({"splits": _split(labels=[0, 1])}, "malformed"),
        ({"splits": _split(sample_ids={"sha256": "0" * 64})}, "malformed"),
        ({"splits": _split(sample_ids={"sha256": "../" * 20, "bytes": 1})}, "not a SHA-256"),
        ({"splits": _split(shards=[])}, "0 labels"),
        (
            {
                "splits": _split(
                    shards=[{"sha256": "../../etc/passwd", "bytes": 1, "count": 2, "kind": "raw"}]
                )
            },
            "not a SHA-256",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(changes: dict[str, Any], seen: str) -> None:
    with pytest.raises(DatasetError, match=seen):
        DatasetManifest.from_json(_changed(**changes))


@pytest.mark.parametrize(
    "changes",
    [{"splits": _split(per_class=[0, 2])}, {"std": [0.0]}, {"schema": 3}],
    ids=["a class without images", "images of one gray", "whole images"],
)
def test_what_is_rare_is_no_contradiction(changes: dict[str, Any]) -> None:
    manifest = DatasetManifest.from_json(_changed(**changes))
    assert json.loads(manifest.to_json()) == json.loads(_changed(**changes))


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("{", "it is not a dataset manifest: Expecting property name"),
        ('{"schema": 1}', "it has schema 1, this ddpipe reads 2 and 3"),
        ('{"schema": 4}', "its schema is 4, this ddpipe reads 3"),
        (_changed(mean=[None]), "a field is missing, unknown or malformed"),
        (_changed(dtype="int8"), "dtype is 'int8', not 'uint8'"),
    ],
)
def test_an_error_names_the_file(text: str, seen: str, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(text)
    with pytest.raises(DdpipeError) as caught:
        load_manifest(str(path))
    assert caught.value.which == str(path)
    assert seen in caught.value.seen


def test_text_without_a_file_is_called_manifest() -> None:
    with pytest.raises(DatasetError) as caught:
        DatasetManifest.from_json("")
    assert caught.value.which == "manifest"


def test_all_contradictions_are_listed() -> None:
    with pytest.raises(DatasetError, match=r"(?s)shape.*counts") as caught:
        DatasetManifest.from_json(_changed(shape=[0, 0, 0], splits=_split(per_class=[9, 9])))
    assert "2 problems" in caught.value.seen


def test_a_shard_is_named_by_its_content() -> None:
    assert ShardRef("a" * 64, 1, 1) == ShardRef("a" * 64, 1, 1, "raw")


@pytest.mark.parametrize(("size", "count"), [(-1, 1), (1, 0), (1, -1)])
def test_a_shard_has_images_and_a_size(size: int, count: int) -> None:
    assert ShardRef("a" * 64, 0, 1).count == 1
    with pytest.raises(ValueError, match=f"{count} images in {size} bytes"):
        ShardRef("a" * 64, size, count)


def test_a_shard_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind 'zip'"):
        ShardRef("a" * 64, 1, 1, "zip")


@pytest.mark.parametrize(("sha256", "size"), [("a" * 64, -1), ("a" * 63, 1), ("A" * 64, 1)])
def test_a_column_has_a_hash_and_a_size(sha256: str, size: int) -> None:
    assert ColumnRef("a" * 64, 0).bytes == 0
    with pytest.raises(ValueError, match="is not a SHA-256"):
        ColumnRef(sha256, size)


@pytest.mark.parametrize(
    ("skipped", "source", "left_out"),
    [
        ((), {"kind": "folder"}, {}),
        ((), {"left_out": {"rows": 3}}, {"rows": 3}),
        (("a", "b"), {"left_out": {"rows": 3}}, {"rows": 3, "unreadable images": 2}),
    ],
)
def test_what_the_version_lacks_is_counted_by_its_reason(
    skipped: tuple[str, ...], source: dict[str, Any], left_out: dict[str, int]
) -> None:
    assert a_manifest(skipped=skipped, source=source).left_out == left_out


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("kit\u00e9 1", None),
        ("no\u00a0break", None),
        ("a\tb\x7f", "a\\tb\\x7f"),
        ("\u202egnp", "\\u202egnp"),
        ("half \ud800 of", "half \\ud800 of"),
        ("latin \udce9", "latin \\xe9"),
        ("end\udfff", "end\\udfff"),
    ],
)
def test_what_cannot_be_printed_of_a_name_is_escaped(name: str, shown: str | None) -> None:
    """Bytes that are no UTF-8 as bytes, half a character as its code."""
    assert printable(name) == shown
