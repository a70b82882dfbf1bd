"""Objects in a bucket of any S3 server, through the MinIO client.

The environment names the server; for credentials see credentials.py:

    S3_ENDPOINT            host:port or URL; default: inside Kubernetes Kubeflow's MinIO, elsewhere AWS
    S3_SECURE              "true" for https where the endpoint names no scheme
    AWS_REGION             of the bucket, where it cannot be asked for
    S3_RETRIES             how often a failed request is tried again; default: 5, about 15 s

What another tool stored with the Content-Encoding gzip is unpacked when it is read whole; sizes and ranges
are of what is stored.

Content is verified both ways. Each request of an upload carries a hash of its body, which the server checks,
and the object keeps the SHA-256 of the whole as metadata, which every download of the whole checks.
"""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import certifi
from minio import Minio
from minio.error import MinioException, S3Error
from minio.helpers import check_bucket_name
from urllib3 import PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError

from ddpipe.errors import (
    CorruptObject,
    NoAccess,
    ParameterError,
    Unreachable,
)
from ddpipe.storage import conditional
from ddpipe.storage.base import KUBEFLOW_ENDPOINT, ObjectInfo
from ddpipe.storage.conditional import CHECKSUM
from ddpipe.storage.credentials import identity, provider
from ddpipe.storage.downloads import BACKOFF, Breaks, Unpacker
from ddpipe.storage.files import replacing
from ddpipe.storage.lease import lease
from ddpipe.storage.s3_errors import error_of, root_cause

AWS = "https://s3.amazonaws.com"
KUBEFLOW = f"http://{KUBEFLOW_ENDPOINT}"

PART_BYTES = 16 * 2**20
"""Larger objects go up in parts of this size, three at a time."""

PIECE_BYTES = 2**20
"""How much of a download is held in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Which server, and who asks."""

    endpoint: str
    identity: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    region: str | None = None
    retries: int = 5

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Connection:
        """See the head of this file."""
        default = KUBEFLOW if "KUBERNETES_SERVICE_HOST" in environment else AWS
        endpoint = environment.get("S3_ENDPOINT") or default
        if "://" not in endpoint:
            secure = environment.get("S3_SECURE", "").lower() in {"1", "true", "yes"}
            endpoint = f"{'https' if secure else 'http'}://{endpoint}"
        return cls(
            endpoint=endpoint.rstrip("/"),
            identity=identity(environment),
            region=environment.get("AWS_REGION"),
            retries=int(environment.get("S3_RETRIES", "5")),
        )


def open_bucket(bucket: str, prefix: str) -> S3Store:
    """The store below a prefix of a bucket, on the server that the environment names."""
    try:
        check_bucket_name(bucket, strict=True)
        connection = Connection.from_environment(os.environ)
        client = _client(connection)
    except ValueError as error:
        raise ParameterError(
            what="the store cannot be opened",
            which=f"s3://{bucket}/{prefix}",
            seen=str(error),
            do="Give s3://bucket/prefix, and the server as S3_ENDPOINT=http://host:port.",
        ) from error
    return S3Store(client, connection, bucket, prefix)


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
        """Replace an object if it is still `expected`; see conditional.py."""
        with self._translated(key):
            if conditional.decides(self._client, self._bucket, self._prefix):
                return conditional.swap(self._client, self._bucket, self._name(key), expected, data)
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
        digest, done, packed = hashlib.sha256(), 0, None
        breaks = Breaks(self._connection.retries)
        unchanged: dict[str, str | list[str] | tuple[str]] = {}
        while True:
            response = self._client.get_object(
                self._bucket, self._name(key), start + done, length and length - done, dict(unchanged)
            )
            unchanged = {"If-Match": response.headers["ETag"]}
            end = done + int(response.headers["Content-Length"])
            if (
                not packed
                and not (start or length)
                and "gzip" in response.headers.get("Content-Encoding", "")
            ):
                packed = Unpacker()
            try:
                for piece in response.stream(PIECE_BYTES, decode_content=False):
                    digest.update(piece)
                    done += len(piece)
                    yield packed.unpacked(piece) if packed else piece
            except zlib.error as error:
                raise self._corrupt(key, f"its Content-Encoding is gzip, but {error}") from error
            except HTTPError:
                if not breaks.may_resume(done):
                    raise
            finally:
                response.close()
                response.release_conn()
            if done == end:
                break
        if packed and not packed.is_whole:
            raise self._corrupt(key, "its Content-Encoding is gzip, but it is cut off")
        expected = response.headers.get(CHECKSUM)
        if expected and not (start or length) and digest.hexdigest() != expected:
            raise self._corrupt(key, f"its SHA-256 is {digest.hexdigest()}, it was uploaded with {expected}")

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        """The client's errors as ours."""
        try:
            yield
        except S3Error as error:
            raise error_of(error.code or "", self._place(key), f"{error.code}: {error.message}") from error
        except (MinioException, HTTPError) as error:
            raise Unreachable(
                what="the object store does not answer",
                which=self._place(key),
                seen=f"no valid answer in up to {self._connection.retries + 1} tries: {root_cause(error)}",
                do="Check S3_ENDPOINT, the network and the server, and run again.",
            ) from error

    def _corrupt(self, key: str, seen: str) -> CorruptObject:
        return CorruptObject(
            what="an object is corrupt",
            which=self._place(key),
            seen=seen,
            do="Delete it and run the step again that wrote it.",
        )


@lru_cache
def _client(connection: Connection) -> Minio:
    """One client, and so one pool of connections, per server and user."""
    url = urlsplit(connection.endpoint)
    pool = PoolManager(
        maxsize=16,
        timeout=Timeout(connect=5, read=30),
        ca_certs=os.environ.get("SSL_CERT_FILE") or certifi.where(),
        retries=Retry(
            connection.retries,
            backoff_factor=BACKOFF,
            backoff_jitter=BACKOFF / 2,
            status_forcelist=(429, 500, 502, 503, 504),
            allowed_methods=None,  # also POST: it only begins and ends multipart uploads here
            respect_retry_after_header=False,  # a server must not make us wait without bound
        ),
    )
    return Minio(
        url.netloc + url.path,
        credentials=provider(connection.endpoint),
        region=connection.region,
        secure=url.scheme == "https",
        http_client=pool,
    )
