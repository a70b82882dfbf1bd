"""The S3 server: its address, the credentials for it, its client, and its errors as ours.

The environment names the server:

    S3_ENDPOINT            host:port or URL; default: inside Kubernetes Kubeflow's MinIO, elsewhere AWS
    S3_SECURE              "true" for https where the endpoint names no scheme
    AWS_REGION             of the bucket, where it cannot be asked for
    S3_RETRIES             how often a failed request is tried again; default: 5, about 15 s

Credentials are the first of these that is there:

    S3_CREDENTIALS_DIR                        a mounted secret with the files accesskey and secretkey
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY  with AWS_SESSION_TOKEN where needed
    MINIO_ACCESS_KEY, MINIO_SECRET_KEY
    ~/.aws/credentials                        or AWS_SHARED_CREDENTIALS_FILE; AWS_PROFILE chooses from it
    AWS_WEB_IDENTITY_TOKEN_FILE               with AWS_ROLE_ARN: a service account's role (IRSA); the token is
                                              exchanged at AWS_ENDPOINT_URL_STS, by default AWS's
    AWS_CONTAINER_CREDENTIALS_FULL_URI        or …_RELATIVE_URI: the role of an EKS pod or an ECS task
    the instance's role                       on AWS only; or from AWS_EC2_METADATA_SERVICE_ENDPOINT

Roles are renewed before they expire, and files are read again for each request, so that a rotated secret
needs no restart. With none of these, requests to a server other than AWS are not signed: its public buckets
can be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree.ElementTree import ParseError

import certifi
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.credentials.providers import (
    AWSConfigProvider,
    EnvAWSProvider,
    EnvMinioProvider,
    IamAwsProvider,
    Provider,
)
from minio.error import MinioException, S3Error
from urllib3 import PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError

from ddpipe.errors import (
    CorruptObject,
    NoAccess,
    NoSuchBucket,
    NoSuchObject,
    NotWritable,
    StoreError,
    Unreachable,
)
from ddpipe.storage.base import KUBEFLOW_ENDPOINT

AWS = "https://s3.amazonaws.com"
KUBEFLOW = f"http://{KUBEFLOW_ENDPOINT}"

BACKOFF = 0.5  # seconds; the n-th repetition of a request waits for 2^(n-1) times this, the first for nothing
_AWS = re.compile(r"\.amazonaws\.com(\.cn)?$")  # AWS's own endpoints
_QUERY = re.compile(r"\?\S*")  # of an address in a message: the one that asks for a role holds the token

_ROLES = {
    "AWS_WEB_IDENTITY_TOKEN_FILE": "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "",
}
"""Variables that announce a role, and those that name another server for its credentials."""

_MEANINGS: Mapping[type[StoreError], tuple[set[str], str, str]] = {
    NoSuchBucket: (
        {"NoSuchBucket"},
        "the bucket does not exist",
        "Check the bucket's name and S3_ENDPOINT; ddpipe never creates a bucket.",
    ),
    NoAccess: (
        {
            "AccessDenied",
            "AuthorizationHeaderMalformed",
            "ExpiredToken",
            "InvalidAccessKeyId",
            "InvalidToken",
            "RequestTimeTooSkewed",
            "SignatureDoesNotMatch",
        },
        "the object store denies access",
        "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or S3_CREDENTIALS_DIR) and the bucket's policy.",
    ),
    NoSuchObject: (
        {"NoSuchKey"},
        "an object is missing",
        "Check the path; if the step that writes it failed, run that again.",
    ),
    NotWritable: (
        {"MethodNotAllowed", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"},
        "the store cannot be written to",
        "Free some space on the server, or choose another store.",
    ),
    CorruptObject: (
        {"BadDigest", "InvalidRange", "PreconditionFailed", "XAmzContentSHA256Mismatch"},
        "an object is damaged or has changed",
        "Run again; if that does not help, delete the object and run the step that wrote it.",
    ),
}


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


@lru_cache
def client_of(connection: Connection) -> Minio:
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


def identity(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Everything in an environment that determines the credentials."""
    return tuple(
        (name, value)
        for name, value in sorted(environment.items())
        if name.startswith(("AWS_", "MINIO_")) or name in {"S3_CREDENTIALS_DIR", "HOME"}
    )


def provider(endpoint: str) -> Provider | None:
    """The provider of this process's credentials; None if requests are not signed."""
    if folder := os.environ.get("S3_CREDENTIALS_DIR"):
        secret = MountedSecret(Path(folder))
        secret.retrieve()
        return secret
    kept: tuple[Provider, ...] = (EnvAWSProvider(), EnvMinioProvider(), AWSConfigProvider())
    for one in kept:
        with suppress(ValueError):
            one.retrieve()
            return one
    named = [name for name in _ROLES if name in os.environ]
    if not named and not _AWS.search(endpoint):
        return None
    elsewhere = _ROLES[named[0]] if named else "AWS_EC2_METADATA_SERVICE_ENDPOINT"
    return Role(named[0] if named else "the instance's role", os.environ.get(elsewhere))


class MountedSecret(Provider):
    """A Kubernetes secret as files; the kubelet replaces them when the secret changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def retrieve(self) -> Credentials:
        """What the files hold now."""
        return Credentials(self._file("accesskey"), self._file("secretkey"))

    def _file(self, name: str) -> str:
        path = self._folder / name
        try:
            content = path.read_text().strip()
        except OSError as error:
            raise self._unusable(path, error.strerror or str(error)) from error
        if not content:
            raise self._unusable(path, "it is empty")
        return content

    def _unusable(self, path: Path, seen: str) -> NoAccess:
        return NoAccess(
            what="the credentials of the object store cannot be read",
            which=str(path),
            seen=seen,
            do="Mount a secret with the keys accesskey and secretkey at $S3_CREDENTIALS_DIR.",
        )


class Role(Provider):
    """A role with temporary credentials from a server."""

    def __init__(self, name: str, server: str | None) -> None:
        self._name = name
        retries = Retry(2, backoff_factor=0.2, status_forcelist=(500, 502, 503, 504), allowed_methods=None)
        pool = PoolManager(timeout=Timeout(connect=2, read=5), retries=retries)
        self._provider = IamAwsProvider(custom_endpoint=server, http_client=pool)

    def retrieve(self) -> Credentials:
        """Valid credentials; renewed shortly before they expire."""
        try:
            return self._provider.retrieve()
        except (ValueError, KeyError, OSError, ParseError, HTTPError) as error:
            raise NoAccess(
                what="no credentials for the object store were found",
                which=self._name,
                seen=_QUERY.sub("", str(error)),
                do="Give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, mount a secret at $S3_CREDENTIALS_DIR, "
                "or correct the role.",
            ) from error


@contextmanager
def translated(connection: Connection, place: str) -> Iterator[None]:
    """The client's errors as ours."""
    try:
        yield
    except S3Error as error:
        raise error_of(error.code or "", place, f"{error.code}: {error.message}") from error
    except (MinioException, HTTPError) as error:
        raise Unreachable(
            what="the object store does not answer",
            which=place,
            seen=f"no valid answer in up to {connection.retries + 1} tries: {_root_cause(error)}",
            do="Check S3_ENDPOINT, the network and the server, and run again.",
        ) from error


def error_of(code: str, which: str, seen: str) -> StoreError:
    """Our error for one of an S3 server."""
    for kind, (codes, what, do) in _MEANINGS.items():
        if code in codes:
            return kind(what=what, which=which, seen=seen, do=do)
    return StoreError(
        what="the object store rejected the request", which=which, seen=seen, do="See the server's log."
    )


def _root_cause(error: BaseException) -> str:
    """What was wrong in the first place: the client wraps it several times."""
    reason = getattr(error, "reason", None) or error.__cause__
    return _root_cause(reason) if isinstance(reason, BaseException) else str(error)
