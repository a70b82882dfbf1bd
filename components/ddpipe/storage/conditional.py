"""Compare-and-swap of a small object in a bucket.

    PUT champion.json   If-Match: <ETag that was read>, or If-None-Match: *     the server decides: 200, 412

AWS, MinIO and others answer 412 if the object has changed. Servers of earlier years ignore these headers and
overwrite, among them the MinIO of 2019 that Kubeflow has shipped for long: a probe finds out once per bucket,
and there a lease lets one process at a time compare and write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from uuid import uuid4

from minio import Minio
from minio.error import S3Error

CHECKSUM = "x-amz-meta-sha256"
"""The metadata that holds the SHA-256 of an object's content."""

LOST = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey")
"""Codes of a conditional request that came too late."""


def swap(client: Minio, bucket: str, name: str, expected: bytes | None, data: bytes) -> bool:
    """Replace an object if its content is still `expected`, on a server that `decides`."""
    found, etag = _read(client, bucket, name)
    if found != expected:
        return False
    condition = {"If-None-Match": "*"} if etag is None else {"If-Match": etag}
    if _put(client, bucket, name, data, condition):
        return True
    # The request may have been repeated, as the answer to the one that succeeded was lost.
    return _read(client, bucket, name)[0] == data


@lru_cache
def decides(client: Minio, bucket: str, prefix: str) -> bool:
    """Whether the server obeys both conditions, tried on an object of its own."""
    name = f"{prefix}.conditional-{uuid4().hex}"
    _put(client, bucket, name, b"first", {})
    try:
        conditions = ({"If-None-Match": "*"}, {"If-Match": f'"{"0" * 32}"'})
        return not any(_put(client, bucket, name, b"second", condition) for condition in conditions)
    finally:
        _optional(lambda: client.remove_object(bucket, name))


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


def _put(client: Minio, bucket: str, name: str, data: bytes, condition: dict[str, str]) -> bool:
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


def _optional(delete: Callable[[], object]) -> None:
    """Delete what may stay: who may write need not be allowed to delete."""
    try:
        delete()
    except S3Error as error:
        if error.code != "AccessDenied":
            raise
