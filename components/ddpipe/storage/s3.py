"""Objects in a bucket of any S3 server, through the MinIO client.

The server, its credentials and its errors are in connection.py.

Compare-and-swap of a small object:

    PUT champion.json   If-Match: <ETag that was read>, or If-None-Match: *     the server decides: 200, 412

AWS, MinIO and others answer 412 if the object has changed. Servers of earlier years ignore these headers and
overwrite, among them the MinIO of 2019 that Kubeflow has shipped for long: a probe finds out once per bucket,
and there a lease lets one process at a time compare and write.

Content is verified both ways. Each request of an upload carries a hash of its body, which the server checks,
and the object keeps the SHA-256 of the whole as metadata, which every download of the whole checks.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from minio import Minio
from minio.error import S3Error
from minio.helpers import check_bucket_name
from urllib3.exceptions import HTTPError

from ddpipe.errors import CorruptObject, NoAccess, ParameterError
from ddpipe.storage import connection
from ddpipe.storage.base import ObjectInfo, held_folders
from ddpipe.storage.connection import Connection, client_of, error_of, translated
from ddpipe.storage.files import replacing
from ddpipe.storage.lease import lease

CHECKSUM = "x-amz-meta-sha256"  # the metadata that holds the SHA-256 of an object's content
LOST = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey")  # a condition that came too late
PROGRESS = 8 * 2**20  # bytes after which earlier breaks of a download are forgotten
PART_BYTES = 16 * 2**20  # larger objects go up in parts of this size, three at a time
PIECE_BYTES = 2**20  # how much of a download is held in memory


def open_bucket(bucket: str, prefix: str) -> S3Store:
    """The store below a prefix of a bucket, on the server that the environment names."""
    try:
        check_bucket_name(bucket, strict=True)
        server = Connection.from_environment(os.environ)
        client = client_of(server)
    except ValueError as error:
        raise ParameterError(
            what="the store cannot be opened",
            which=f"s3://{bucket}/{prefix}",
            seen=str(error),
            do="Give s3://bucket/prefix, and the server as S3_ENDPOINT=http://host:port.",
        ) from error
    return S3Store(client, server, bucket, prefix)


class S3Store:
    """Everything below one prefix of a bucket. The bucket is never created."""

    def __init__(self, client: Minio, connection: Connection, bucket: str, prefix: str) -> None:
        self._client, self._connection, self._bucket = client, connection, bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    @property
    def uri(self) -> str:
        """s3://bucket/prefix."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def read(self, key: str) -> bytes:
        """The whole object."""
        with self._translated(key):
            return b"".join(self._pieces(key))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object; see `Store.read_range`."""
        if not length:
            return b""
        with self._translated(key):
            data = b"".join(self._pieces(key, start, length))
        if len(data) < length:
            raise self._corrupt(key, f"{len(data)} of {length} bytes from offset {start}")
        return data

    def write(self, key: str, data: bytes) -> None:
        """Create or replace an object."""
        self._put(key, io.BytesIO(data), len(data), hashlib.sha256(data).hexdigest())

    def swap(self, key: str, expected: bytes | None, data: bytes) -> bool:
        """Replace an object if it is still `expected`; see the head of this file."""
        address = (self._client, self._bucket, self._name(key))
        with self._translated(key):
            if decides(self._client, self._bucket, self._prefix):
                found, etag = _read(*address)
                if found != expected:
                    return False
                condition = {"If-None-Match": "*"} if etag is None else {"If-Match": etag}
                # The request may have been repeated, as the answer to the one that succeeded was lost.
                return _put_if(*address, data, condition) or _read(*address)[0] == data
        with suppress(ParameterError), lease(self.child(f"{key}.lease/")):  # another process has it: lost
            if (self.read(key) if self.exists(key) else None) == expected:
                self.write(key, data)
                return True
        return False

    def upload(self, path: Path, key: str) -> None:
        """Create or replace an object with a file's content."""
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
            file.seek(0)
            self._put(key, file, size, checksum)

    def download(self, key: str, path: Path) -> None:
        """Put an object's verified content into a file, atomically."""
        with self._translated(key), replacing(path) as partial, partial.open("wb") as file:
            for piece in self._pieces(key):
                file.write(piece)

    def exists(self, key: str) -> bool:
        """Whether there is an object with this key."""
        with self._translated(key):
            try:
                self._client.stat_object(self._bucket, self._name(key))
            except S3Error as error:
                if error.code != "NoSuchKey":
                    raise
            else:
                return True
            # The answer about one object has no body that could say that the whole bucket is missing.
            if self._client.bucket_exists(self._bucket):
                return False
        raise error_of("NoSuchBucket", self._place(key), f"there is no bucket {self._bucket}")

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose keys start with `prefix`, in the order of their keys."""
        with self._translated(prefix):
            for item in self._client.list_objects(self._bucket, self._name(prefix), recursive=True):
                yield ObjectInfo(
                    key=str(item.object_name).removeprefix(self._prefix),
                    size=item.size or 0,
                    etag=item.etag or "",
                    modified=item.last_modified or datetime.fromtimestamp(0, UTC),
                )

    def delete(self, key: str) -> None:
        """Remove an object; no error if there is none."""
        with self._translated(key):
            self._client.remove_object(self._bucket, self._name(key))

    def unfinished(self, before: datetime, *, delete: bool) -> tuple[ObjectInfo, ...]:
        """Uploads in parts, a thousand at a time; none on a server that does not list them."""
        client, bucket, found = self._client, self._bucket, []
        held = held_folders(self.list())
        with self._translated(""):
            try:  # the client's public methods have none of these requests
                for one in client._list_multipart_uploads(bucket, prefix=self._prefix or None).uploads:  # noqa: SLF001
                    name, upload, begun = str(one.object_name), str(one.upload_id), one.initiated_time
                    key = name.removeprefix(self._prefix)
                    if begun and begun < before and not key.startswith(held):
                        parts = client._list_parts(bucket, name, upload).parts  # noqa: SLF001
                        found.append(ObjectInfo(key, sum(part.size or 0 for part in parts), upload, begun))
                        if delete:
                            client._abort_multipart_upload(bucket, name, upload)  # noqa: SLF001
            except S3Error as error:
                # The last means that another clean-up, or the end of the upload, was faster.
                if error.code not in {"AccessDenied", "NotImplemented", "MethodNotAllowed", "NoSuchUpload"}:
                    raise
        return tuple(found)

    def child(self, prefix: str) -> S3Store:
        """The store of everything below `prefix`."""
        return S3Store(self._client, self._connection, self._bucket, self._prefix + prefix)

    def check_writable(self) -> None:
        """Write and remove a small object."""
        self.write(".writable", b"")
        with suppress(NoAccess):  # who may write need not be allowed to delete
            self.delete(".writable")

    def local_path(self, key: str) -> None:
        """Nowhere: it has to be fetched."""

    def _name(self, key: str) -> str:
        return self._prefix + key

    def _place(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._name(key)} at {self._connection.endpoint}"

    def _put(self, key: str, stream: BinaryIO, size: int, checksum: str) -> None:
        with self._translated(key):
            try:
                self._client.put_object(
                    self._bucket,
                    self._name(key),
                    stream,
                    size,
                    metadata={CHECKSUM: checksum},
                    part_size=PART_BYTES,
                )
            except S3Error as error:
                # The end of a multipart upload was repeated, as its answer got lost: there is none any more.
                if error.code != "NoSuchUpload" or self._checksum(key) != checksum:
                    raise

    def _checksum(self, key: str) -> str | None:
        """What an object was uploaded with, if there is one."""
        try:
            metadata = self._client.stat_object(self._bucket, self._name(key)).metadata
        except S3Error:
            return None
        return metadata.get(CHECKSUM) if metadata else None

    def _pieces(self, key: str, start: int = 0, length: int = 0) -> Iterator[bytes]:
        """An object's bytes, or `length` from `start`; resumed where a connection breaks."""
        digest, done = hashlib.sha256(), 0
        breaks, since = 0, 0  # of the connection, since so many bytes
        unchanged: dict[str, str | list[str] | tuple[str]] = {}
        while True:
            response = self._client.get_object(
                self._bucket, self._name(key), start + done, length and length - done, dict(unchanged)
            )
            unchanged = {"If-Match": response.headers["ETag"]}
            end = done + int(response.headers["Content-Length"])
            try:
                # As it is stored, without decoding: sizes, ranges and hashes are of that.
                for piece in response.stream(PIECE_BYTES, decode_content=False):
                    digest.update(piece)
                    done += len(piece)
                    yield piece
            except HTTPError:
                breaks, since = (1, done) if done - since >= PROGRESS else (breaks + 1, since)
                if breaks > self._connection.retries:
                    raise
                time.sleep(connection.BACKOFF * 2 ** (breaks - 1))
            finally:
                response.close()
                response.release_conn()
            if done == end:
                break
        expected = response.headers.get(CHECKSUM)
        if expected and not (start or length) and digest.hexdigest() != expected:
            raise self._corrupt(key, f"its SHA-256 is {digest.hexdigest()}, it was uploaded with {expected}")

    def _translated(self, key: str) -> AbstractContextManager[None]:
        return translated(self._connection, self._place(key))

    def _corrupt(self, key: str, seen: str) -> CorruptObject:
        return CorruptObject(
            what="an object is corrupt",
            which=self._place(key),
            seen=seen,
            do="Delete it and run the step again that wrote it.",
        )


@lru_cache
def decides(client: Minio, bucket: str, prefix: str) -> bool:
    """Whether the server obeys both conditions, tried on an object of its own."""
    name = f"{prefix}.conditional-{uuid4().hex}"
    _put_if(client, bucket, name, b"first", {})
    try:
        conditions = ({"If-None-Match": "*"}, {"If-Match": f'"{"0" * 32}"'})
        return not any(_put_if(client, bucket, name, b"second", condition) for condition in conditions)
    finally:
        try:
            client.remove_object(bucket, name)
        except S3Error as error:
            if error.code != "AccessDenied":  # who may write need not be allowed to delete
                raise


def _read(client: Minio, bucket: str, name: str) -> tuple[bytes | None, str | None]:
    """An object's content and ETag; None if there is none."""
    try:
        response = client.get_object(bucket, name)
    except S3Error as error:
        if error.code != "NoSuchKey":
            raise
        return None, None
    try:
        return response.read(), response.headers["ETag"]
    finally:
        response.close()
        response.release_conn()


def _put_if(client: Minio, bucket: str, name: str, data: bytes, condition: dict[str, str]) -> bool:
    """Write an object under a condition; False if the server says that it does not hold."""
    headers: dict[str, str | list[str] | tuple[str]] = {CHECKSUM: hashlib.sha256(data).hexdigest()}
    headers.update(condition)
    try:
        # The client's public method takes no conditions.
        client._put_object(bucket, name, data, headers)  # noqa: SLF001
    except S3Error as error:
        if not condition or error.code not in LOST:
            raise
        return False
    return True
