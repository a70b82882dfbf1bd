"""Stores: what holds for every kind of store, then what can go wrong with each."""

from __future__ import annotations

import errno
import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from processes import free_port
from s3_server import BUCKET, Proxy, Server

from ddpipe.errors import (
    CorruptObject,
    NoAccess,
    NoSuchBucket,
    NoSuchObject,
    NotWritable,
    ParameterError,
    StoreError,
    Unreachable,
)
from ddpipe.storage import Store, connection, exists, open_store, read_uri, split_uri, write_uri
from ddpipe.storage.connection import AWS, KUBEFLOW, Connection
from ddpipe.storage.files import PARTIAL, FileStore, replacing
from ddpipe.storage.s3 import CHECKSUM, PART_BYTES

DAY = timedelta(days=1)

# What every store does


def test_what_was_written_is_read(store_uri: str) -> None:
    store = open_store(store_uri)
    store.write("a/b.bin", b"first")
    store.write("a/b.bin", b"second")
    store.write("empty", b"")
    assert store.read("a/b.bin") == b"second"
    assert store.read("empty") == b""
    assert read_uri(f"{store.uri}/a/b.bin") == b"second"


def test_an_object_is_written_and_found_by_its_uri(store_uri: str) -> None:
    uri = f"{store_uri}/a/b.bin"
    assert not exists(uri)
    write_uri(uri, b"first")
    assert read_uri(uri) == b"first"
    assert exists(uri)
    assert exists(f"{store_uri}/a/")
    assert not exists(f"{store_uri}/b/")


def test_a_range_is_exactly_as_long_as_asked(store_uri: str) -> None:
    store = open_store(store_uri)
    store.write("a", b"0123456789")
    assert store.read_range("a", 3, 4) == b"3456"
    assert store.read_range("a", 3, 0) == b""
    with pytest.raises(CorruptObject):
        store.read_range("a", 8, 4)
    with pytest.raises(CorruptObject):
        store.read_range("a", 20, 4)


def test_files_of_many_parts_come_back_as_they_went(store_uri: str, tmp_path: Path) -> None:
    store = open_store(store_uri)
    content = os.urandom(2 * PART_BYTES + 17)
    (tmp_path / "up").write_bytes(content)
    store.upload(tmp_path / "up", "deep/er/file")
    store.download("deep/er/file", tmp_path / "new" / "down")
    assert (tmp_path / "new" / "down").read_bytes() == content


def test_a_listing_is_sorted_and_relative(store_uri: str) -> None:
    store = open_store(store_uri)
    for key in ("b/x", "a/y", "a/x/1", "ab"):
        store.write(key, key.encode())
    assert [info.key for info in store.list()] == ["a/x/1", "a/y", "ab", "b/x"]
    assert [info.key for info in store.list("a")] == ["a/x/1", "a/y", "ab"]
    assert [info.key for info in store.child("a").list()] == ["x/1", "y"]
    assert [info.size for info in store.list("b")] == [3]
    assert list(store.list("none/")) == []


def test_an_etag_changes_with_the_content(store_uri: str) -> None:
    store = open_store(store_uri)
    store.write("a", b"1")
    [before] = store.list()
    store.write("a", b"22")
    [after] = store.list()
    assert before.etag != after.etag
    assert before.modified <= after.modified


def test_deleting_twice_is_no_error(store_uri: str) -> None:
    store = open_store(store_uri)
    store.write("a", b"")
    assert store.exists("a")
    store.delete("a")
    store.delete("a")
    assert not store.exists("a")


def test_a_missing_object_is_named(store_uri: str, tmp_path: Path) -> None:
    store = open_store(store_uri)
    for attempt in (
        lambda: store.read("no/such"),
        lambda: store.read_range("no/such", 0, 1),
        lambda: store.download("no/such", tmp_path / "down"),
    ):
        with pytest.raises(NoSuchObject, match="no/such"):
            attempt()
    assert not (tmp_path / "down").exists()


def test_a_folder_is_no_missing_file(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    with pytest.raises(NoSuchObject, match="weights: it is a folder, not a file"):
        open_store(str(tmp_path)).read("weights")


def test_a_writable_store_stays_empty_when_checked(store_uri: str) -> None:
    store = open_store(store_uri)
    store.check_writable()
    assert list(store.list()) == []


def test_a_store_that_is_not_there_yet_is_writable_again_and_again(store_uri: str) -> None:
    store = open_store(f"{store_uri}/not/there/yet")
    store.check_writable()
    store.check_writable()
    assert list(store.list()) == []


def test_only_a_folder_has_local_paths(store_uri: str) -> None:
    store = open_store(store_uri)
    store.write("a", b"here")
    path = store.local_path("a")
    assert path is None if store.uri.startswith("s3:") else path and path.read_bytes() == b"here"


# URIs


@pytest.mark.parametrize(
    ("uri", "canonical"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("minio://bucket", "s3://bucket"),
        ("file:///data/store/", "/data/store"),
        ("/data//x/../store", "/data/store"),
    ],
)
def test_a_store_has_one_canonical_uri(uri: str, canonical: str, s3: Server) -> None:
    assert open_store(uri).uri == canonical


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("store").uri == str(tmp_path / "store")
    store, name = split_uri("file.json")
    assert (store.uri, name) == (str(tmp_path), "file.json")


@pytest.mark.parametrize(
    ("uri", "folder", "name"),
    [
        ("/data/file", "/data", "file"),
        ("/data/folder/", "/data", "folder"),
        ("/file", "/", "file"),
        ("s3://bucket/file", "s3://bucket", "file"),
        ("s3://bucket/a/b", "s3://bucket/a", "b"),
    ],
)
def test_an_objects_uri_is_its_folder_and_its_name(uri: str, folder: str, name: str, s3: Server) -> None:
    store, found = split_uri(uri)
    assert (store.uri, found) == (folder, name)


@pytest.mark.parametrize(
    ("uri", "seen"),
    [
        ("", "it is empty"),
        ("gs://bucket/x", "gs:// is not known"),
        ("s3://", "bucket"),
        ("s3:///x", "bucket"),
        ("s3://No_Bucket/x", "No_Bucket"),
    ],
)
def test_a_uri_that_cannot_be_one_is_refused(uri: str, seen: str, s3: Server) -> None:
    with pytest.raises(ParameterError) as caught:
        open_store(uri)
    assert caught.value.which.startswith(uri)
    assert seen in caught.value.seen


@pytest.mark.parametrize("answer", ["1", "true", "YES", "True"])
def test_the_environment_sets_encryption_and_region(answer: str) -> None:
    environment = {"S3_ENDPOINT": "minio:9000/", "S3_SECURE": answer, "AWS_REGION": "eu-central-1"}
    connection = Connection.from_environment(environment)
    assert (connection.endpoint, connection.region) == ("https://minio:9000", "eu-central-1")


@pytest.mark.parametrize("change", [{"S3_ENDPOINT": "http://host/with/path"}, {"S3_RETRIES": "many"}])
def test_a_bad_setting_is_refused(
    change: dict[str, str], s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ParameterError):
        open_store("s3://bucket")


@pytest.mark.parametrize(
    ("environment", "endpoint"),
    [
        ({}, AWS),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, KUBEFLOW),
        ({"S3_ENDPOINT": "minio:9000", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "http://minio:9000"),
        ({"S3_ENDPOINT": "minio:9000", "S3_SECURE": "true"}, "https://minio:9000"),
        ({"S3_ENDPOINT": "https://minio/"}, "https://minio"),
    ],
)
def test_the_environment_names_the_server(environment: dict[str, str], endpoint: str) -> None:
    assert Connection.from_environment(environment).endpoint == endpoint


def test_what_the_environment_does_not_say_has_its_default() -> None:
    connection = Connection.from_environment({})
    assert (connection.retries, connection.region) == (5, None)
    assert Connection.from_environment({"S3_RETRIES": "0"}).retries == 0
    unencrypted = {"S3_ENDPOINT": "minio:9000", "S3_SECURE": "no"}
    assert Connection.from_environment(unencrypted).endpoint == "http://minio:9000"


def test_secrets_are_not_shown_with_a_connection() -> None:
    environment = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hush"}
    assert "hush" not in repr(Connection.from_environment(environment))


# What can go wrong with a folder


def test_what_may_not_be_read_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root may read everything, the system is made to say no."""
    store = open_store(str(tmp_path))
    store.write("a", b"")

    def refusing(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refusing)
    with pytest.raises(NoAccess, match="/a: Permission denied"):
        store.read("a")


def test_a_folder_is_no_object(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write("folder/a", b"")
    assert not store.exists("folder")
    for key in ("folder", "folder/a/b"):
        with pytest.raises(NoSuchObject):
            store.read(key)


def test_a_file_that_goes_while_a_folder_is_listed_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, walk = open_store(str(tmp_path)), os.walk
    for key in ("a", "b", "c"):
        store.write(key, b"")

    def meddled(*arguments: Any, **options: Any) -> Iterator[Any]:
        yield from walk(*arguments, **options)
        (tmp_path / "b").unlink()

    monkeypatch.setattr(os, "walk", meddled)
    assert [info.key for info in store.list()] == ["a", "c"]


def test_a_home_folder_may_be_named_by_its_sign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("~/store").uri == str(tmp_path / "store")


def test_times_are_in_utc(store_uri: str) -> None:
    store = open_store(store_uri)
    store.write("a", b"")
    (info,) = store.list()
    assert info.modified.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - info.modified) < timedelta(minutes=1)


def test_a_killed_writer_leaves_nothing_to_see(tmp_path: Path) -> None:
    """Between the first byte and the rename there is only a hidden file."""
    script = (
        "import os, signal, sys; from pathlib import Path; from ddpipe.storage.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as partial:\n"
        "    partial.write_bytes(b'half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    store = FileStore(tmp_path)
    store.write("a", b"old")
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], check=False)
    assert any(path.name.startswith(PARTIAL) for path in tmp_path.iterdir())
    assert [info.key for info in store.list()] == ["a"]
    assert store.read("a") == b"old"


KILLED = """
import os, signal, sys
from pathlib import Path
from ddpipe.storage import open_store, s3
from ddpipe.storage.files import shutil

def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

put = s3.Minio._upload_part
s3.Minio._upload_part = lambda *given, **named: put(*given, **named) and killed()
shutil.copyfileobj = lambda source, target: (target.write(source.read(7)), target.flush(), killed())
open_store(sys.argv[1]).upload(Path(sys.argv[2]), "run/checkpoint")
"""


def test_what_a_killed_writer_left_is_deleted_once_it_is_old(store_uri: str, two_parts: Path) -> None:
    store = open_store(store_uri)
    store.write("run/whole", b"whole")
    assert store.swap("run/champion", None, b"first"), "its lock stays"
    killed = subprocess.run([sys.executable, "-c", KILLED, store_uri, str(two_parts)], check=False)
    assert killed.returncode == -signal.SIGKILL
    # moto says of each upload that it began in 2010.
    old = datetime(2010, 1, 1, tzinfo=UTC) if store_uri.startswith("s3:") else datetime.now(UTC) - DAY
    assert store.unfinished(old, delete=True) == (), "its writer may live"
    now = datetime.now(UTC) + DAY
    store.write("run/lease-here.1.2", b"")
    assert store.unfinished(now, delete=True) == (), "a living process has the run"
    store.delete("run/lease-here.1.2")
    [listed] = store.unfinished(now, delete=False)
    assert listed.key.startswith("run/")
    assert listed.size > 0
    assert store.child("run").unfinished(now, delete=True)[0].size == listed.size
    assert store.unfinished(now, delete=True) == ()
    assert [info.key for info in store.list()] == ["run/champion", "run/whole"]
    assert store.swap("run/champion", b"first", b"second")


def test_a_server_that_does_not_list_uploads_has_none(proxy: Proxy) -> None:
    store = open_store(f"s3://{BUCKET}")
    store.check_writable()
    proxy.faults.extend(["", "AccessDenied"])
    assert store.unfinished(datetime.now(UTC), delete=True) == ()
    assert "uploads" in proxy.requests[-1]


def test_a_file_and_its_name_are_on_the_disk_once_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a power failure leaves the old content or the new one: the new one once the call is done."""
    seen: list[tuple[str, bytes]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        now = (tmp_path / "a").read_bytes() if (tmp_path / "a").exists() else b""
        seen.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, now))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    FileStore(tmp_path).write("a", b"new")
    (content, before), (folder, after) = seen
    assert (content.startswith(PARTIAL), before) == (True, b"")
    assert (folder, after) == (tmp_path.name, b"new")


def test_a_failed_writer_cleans_up(tmp_path: Path) -> None:
    """Here the file that it handed out was never written."""
    with pytest.raises(NotWritable), replacing(tmp_path / "a"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_store_below_a_file_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotWritable, match="file"):
        open_store(str(tmp_path / "file" / "store")).check_writable()


def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root may read everything, the system is made to say no."""
    store, scandir = open_store(str(tmp_path)), os.scandir
    store.write("closed/file", b"")

    def refusing(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(NoAccess, match="closed: Permission denied"):
        list(store.list())


def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotWritable, match="file/below") as caught:
        open_store(str(tmp_path)).delete("file/below")
    assert "Not a directory" in caught.value.seen


def test_a_read_only_store_is_not_writable() -> None:
    with pytest.raises(NotWritable):
        open_store("/proc/self/store").check_writable()


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files fails a write in its middle, as a full disk does."""
    script = (
        "import resource, sys; from ddpipe.errors import NotWritable; from ddpipe.storage import open_store\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: open_store(sys.argv[1]).write('a', bytes(5000))\n"
        "except NotWritable as error: sys.exit(error.exit_code)"
    )
    outcome = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert outcome.returncode == NotWritable.exit_code
    assert list(tmp_path.iterdir()) == []


# What can go wrong with a bucket


def _every_method(store: Store, tmp_path: Path) -> dict[str, Callable[[], object]]:
    (tmp_path / "up").touch()
    return {
        "read": lambda: store.read("a"),
        "read_range": lambda: store.read_range("a", 0, 1),
        "write": lambda: store.write("a", b""),
        "upload": lambda: store.upload(tmp_path / "up", "a"),
        "download": lambda: store.download("a", tmp_path / "down"),
        "exists": lambda: store.exists("a"),
        "list": lambda: list(store.list()),
        "delete": lambda: store.delete("a"),
        "check_writable": store.check_writable,
    }


METHODS = ["read", "read_range", "write", "upload", "download", "exists", "list", "delete", "check_writable"]


@pytest.mark.parametrize("method", METHODS)
def test_a_missing_bucket_is_reported_and_not_created(method: str, s3: Server, tmp_path: Path) -> None:
    store = open_store("s3://nobody-made-this/x")
    with pytest.raises(NoSuchBucket, match="nobody-made-this"):
        _every_method(store, tmp_path)[method]()
    assert not s3.client.bucket_exists("nobody-made-this")


def test_missing_bucket_of_a_known_region_is_reported(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks for its region first, and the answer about an object does not name the bucket."""
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    store = open_store("s3://nobody-made-this/x")
    with pytest.raises(NoSuchBucket, match="nobody-made-this"):
        store.exists("a")


@pytest.mark.parametrize("method", METHODS)
def test_wrong_credentials_are_reported(method: str, s3: Server, tmp_path: Path) -> None:
    store = open_store(f"s3://{BUCKET}/x")
    with s3.denying_everyone(), pytest.raises(NoAccess, match="AWS_ACCESS_KEY_ID"):
        _every_method(store, tmp_path)[method]()


def test_an_unreachable_server_is_reported_within_the_retry_time(
    s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unreachable, match="Connection refused"):
        open_store(f"s3://{BUCKET}").read("a")


def test_a_burst_of_errors_is_ridden_out(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_RETRIES", "3")
    store = open_store(f"s3://{BUCKET}")
    store.write("a", b"content")
    proxy.faults.extend([503, 429])
    assert store.read("a") == b"content"


def test_a_server_cannot_make_us_wait_as_long_as_it_likes(proxy: Proxy) -> None:
    """With its refusal the proxy asks for a thousand seconds."""
    store = open_store(f"s3://{BUCKET}")
    store.write("a", b"content")
    proxy.faults.append(503)
    assert store.read("a") == b"content"


def test_who_may_write_need_not_be_allowed_to_delete(proxy: Proxy) -> None:
    store = open_store(f"s3://{BUCKET}")
    store.check_writable()
    proxy.faults.extend(["", "AccessDenied"])
    store.check_writable()
    assert proxy.requests[-1].startswith("DELETE")
    proxy.faults.append("AccessDenied")
    with pytest.raises(NoAccess):
        store.check_writable()


def test_a_server_that_keeps_failing_is_reported(proxy: Proxy) -> None:
    store = open_store(f"s3://{BUCKET}")
    proxy.faults.extend([500] * 9)
    with pytest.raises(Unreachable, match="500"):
        store.read("a")


def test_an_unknown_refusal_is_reported(proxy: Proxy) -> None:
    proxy.faults.append("InvalidObjectState")
    with pytest.raises(StoreError, match="InvalidObjectState: injected") as caught:
        open_store(f"s3://{BUCKET}").read("a")
    assert type(caught.value) is StoreError
    assert caught.value.which.startswith(f"s3://{BUCKET}/a at ")


def test_a_server_that_is_not_s3_is_reported(proxy: Proxy) -> None:
    store = open_store(f"s3://{BUCKET}")
    proxy.faults.extend([404] * 9)
    with pytest.raises(Unreachable, match="404"):
        store.read("a")


def test_a_download_resumes_where_the_connection_broke(proxy: Proxy, tmp_path: Path) -> None:
    store, content = open_store(f"s3://{BUCKET}"), os.urandom(3 * 2**20)
    store.write("a", content)
    proxy.requests.clear()
    proxy.faults.append("cut")
    store.download("a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == content
    assert len(proxy.requests) == 2


def test_an_object_replaced_during_a_download_is_not_mixed(proxy: Proxy, s3: Server, tmp_path: Path) -> None:
    """Both without a checksum, as other tools write them."""
    old, new = bytes(3 * 2**20), b"1" * (3 * 2**20)
    s3.client.put_object(BUCKET, "a", BytesIO(old), len(old))
    store = open_store(f"s3://{BUCKET}")
    assert store.read("a") == old
    proxy.faults.extend(["cut", lambda: s3.client.put_object(BUCKET, "a", BytesIO(new), len(new))])
    with pytest.raises(CorruptObject):
        store.download("a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    assert store.read("a") == new


def test_short_outages_of_a_long_download_do_not_add_up(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks after 20 and after 30 MB; one break may be retried."""
    monkeypatch.setenv("S3_RETRIES", "1")
    monkeypatch.setattr(connection, "BACKOFF", 0)
    store = open_store(f"s3://{BUCKET}")
    store.write("a", bytes(40 * 2**20))
    proxy.faults.extend(["cut"] * 2)
    assert len(store.read("a")) == 40 * 2**20
    proxy.faults.extend(["cut"] * 3)
    with pytest.raises(Unreachable):
        store.read("a")


def test_between_two_breaks_of_a_connection_the_wait_doubles(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_RETRIES", "3")
    store, pauses = open_store(f"s3://{BUCKET}"), list[float]()
    store.write("a", os.urandom(3 * 2**20))
    monkeypatch.setattr("ddpipe.storage.s3.time.sleep", pauses.append)
    proxy.faults.extend(["cut"] * 3)
    assert len(store.read("a")) == 3 * 2**20
    assert pauses == [0.5, 1, 2]


def test_a_download_that_keeps_breaking_leaves_nothing(proxy: Proxy, tmp_path: Path) -> None:
    store = open_store(f"s3://{BUCKET}")
    store.write("a", os.urandom(2**20))
    proxy.faults.extend(["cut"] * 9)
    with pytest.raises(Unreachable):
        store.download("a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def two_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that goes up in two parts."""
    monkeypatch.setenv("S3_RETRIES", "3")
    (tmp_path / "up").write_bytes(os.urandom(PART_BYTES + 1))
    return tmp_path / "up"


def test_multipart_uploads_ride_out_errors_too(proxy: Proxy, two_parts: Path) -> None:
    store = open_store(f"s3://{BUCKET}")
    store.check_writable()
    proxy.faults.extend([503, 503, "", 503])
    store.upload(two_parts, "a")
    assert store.read("a") == two_parts.read_bytes()


def test_an_object_changed_on_the_way_is_corrupt(proxy: Proxy, tmp_path: Path) -> None:
    store = open_store(f"s3://{BUCKET}")
    store.write("a", b"content")
    proxy.faults.append("flip")
    with pytest.raises(CorruptObject, match="SHA-256"):
        store.read("a")
    proxy.faults.append("flip")
    with pytest.raises(CorruptObject, match="SHA-256"):
        store.download("a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_an_object_changed_in_the_store_is_corrupt(s3: Server) -> None:
    s3.client.put_object(BUCKET, "a", BytesIO(b"other"), 5, metadata={CHECKSUM: "0" * 64})
    with pytest.raises(CorruptObject, match="s3://datasets/a"):
        open_store(f"s3://{BUCKET}").read("a")


def test_an_object_of_another_tool_is_read_without_a_checksum(s3: Server) -> None:
    s3.client.put_object(BUCKET, "a", BytesIO(b"other"), 5)
    assert open_store(f"s3://{BUCKET}").read("a") == b"other"


def test_what_another_tool_packed_is_read_as_it_is_stored(s3: Server) -> None:
    data = gzip.compress(b"content")
    s3.client.put_object(BUCKET, "a", BytesIO(data), len(data), metadata={"Content-Encoding": "gzip"})
    assert open_store(f"s3://{BUCKET}").read("a") == data


def test_an_upload_whose_last_answer_got_lost_is_done(proxy: Proxy, two_parts: Path) -> None:
    """The request is repeated, and the server knows no such upload any more."""
    store = open_store(f"s3://{BUCKET}")
    store.check_writable()
    proxy.faults.extend(["", "", "", "cut", "NoSuchUpload"])
    store.upload(two_parts, "a")
    ends = [request for request in proxy.requests if request.startswith("POST") and "uploadId" in request]
    assert len(ends) == 2
    assert store.read("a") == two_parts.read_bytes()


def test_an_upload_that_another_process_ended_is_reported(proxy: Proxy, two_parts: Path) -> None:
    store = open_store(f"s3://{BUCKET}")
    store.write("a", b"old")
    proxy.faults.extend(["", "", "", "NoSuchUpload"])
    with pytest.raises(StoreError, match="NoSuchUpload"):
        store.upload(two_parts, "a")
    assert store.read("a") == b"old"


def test_every_error_says_which_object_and_what_to_do(s3: Server) -> None:
    with pytest.raises(StoreError) as caught:
        open_store("s3://nobody-made-this/x").read("key")
    assert caught.value.which.startswith("s3://nobody-made-this/x/key at http://127.0.0.1:")
    assert caught.value.do
