"""Credentials for the object store, and how they stay fresh in a long run.

The first of these that is there:

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
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from xml.etree.ElementTree import ParseError

from minio.credentials.credentials import Credentials
from minio.credentials.providers import (
    AWSConfigProvider,
    EnvAWSProvider,
    EnvMinioProvider,
    IamAwsProvider,
    Provider,
)
from urllib3 import PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError

from ddpipe.errors import NoAccess

_AWS = re.compile(r"\.amazonaws\.com(\.cn)?$")
"""AWS's own endpoints."""

_QUERY = re.compile(r"\?\S*")
"""Of an address in a message: the one that asks for a role holds the token."""

_ROLES = {
    "AWS_WEB_IDENTITY_TOKEN_FILE": "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "",
}
"""Variables that announce a role, and those that name another server for its credentials."""


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
