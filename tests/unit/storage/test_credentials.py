"""Who asks the object store: keys, mounted secrets and roles, each renewed in a run that outlives it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest
from s3_server import BUCKET, HOST, Proxy

from ddpipe.errors import NoAccess, StoreError
from ddpipe.storage import open_store
from ddpipe.storage.connection import AWS, Connection, MountedSecret, provider

URI = f"s3://{BUCKET}/x"


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials of the person at this machine."""
    for name in os.environ:
        if name.startswith(("AWS_", "MINIO_", "S3_CREDENTIALS")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def bucket(proxy: Proxy, nobody: None, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """The S3 server behind its proxy, which notes who asks; nobody has credentials for it yet."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    return proxy


def _signers(bucket: Proxy, requests: int = 1) -> list[str]:
    """The access keys by which so many requests are signed."""
    store = open_store(URI)
    store.write("a", b"content")
    bucket.signers.clear()
    for _ in range(requests):
        assert store.read("a") == b"content"
    return bucket.signers


@dataclass
class Roles:
    """A server that gives temporary credentials as AWS's STS, its containers and its instances do.

    Attributes:
        endpoint: Its URL.
        lifetime: Of the credentials that it gives.
        asked: What it was asked for.
        broken: Answer with an error.
    """

    endpoint: str = ""
    lifetime: timedelta = timedelta(hours=1)
    asked: list[tuple[str, str]] = field(default_factory=list)
    broken: bool = False

    def given(self) -> dict[str, str]:
        """The next credentials."""
        number = sum("token" not in path for path, _ in self.asked)
        expiration = (datetime.now(UTC) + self.lifetime).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "AccessKeyId": f"role-{number}",
            "SecretAccessKey": "secret",
            "Token": "token",
            "Expiration": expiration,
        }


@contextmanager
def _serving(roles: Roles) -> Iterator[Roles]:
    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            roles.asked.append((self.path, self.headers.get("Authorization", "")))
            query, path = parse_qs(urlsplit(self.path).query), urlsplit(self.path).path
            if roles.broken:
                self.send_response(403)
                self.end_headers()
                return
            if "WebIdentityToken" in query:
                fields = roles.given() | {"SessionToken": "token"}
                content = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
                inner = f"<Credentials>{content}</Credentials>"
                name = "AssumeRoleWithWebIdentity"
                space = "https://sts.amazonaws.com/doc/2011-06-15/"
                answer = (
                    f'<{name}Response xmlns="{space}"><{name}Result>{inner}</{name}Result></{name}Response>'
                )
            elif path.endswith("/api/token"):
                answer = "metadata-token"
            elif path.endswith("security-credentials/"):
                answer = "the-role"
            else:
                answer = json.dumps(roles.given())
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer.encode())

        do_GET = do_POST = do_PUT = _handle  # noqa: N815 - http.server's names

        def log_message(self, *arguments: object) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        roles.endpoint = f"http://{HOST}:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield roles
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def roles() -> Iterator[Roles]:
    with _serving(Roles()) as roles:
        yield roles


@pytest.fixture(params=["web identity", "container"])
def role(
    request: pytest.FixtureRequest, roles: Roles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Roles:
    """A role as a pod of EKS has it, by either of its two ways."""
    (tmp_path / "token").write_text("who-i-am")
    if request.param == "web identity":
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/training")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", roles.endpoint)
    else:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{roles.endpoint}/v1/credentials")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "who-i-am")
    return roles


# Keys


@pytest.mark.parametrize(
    "names", ["AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY", "MINIO_ACCESS_KEY MINIO_SECRET_KEY"]
)
def test_keys_come_from_the_environment(names: str, bucket: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(names.split(), ("me", "mine"), strict=True):
        monkeypatch.setenv(name, value)
    assert _signers(bucket) == ["me"]


def test_keys_come_from_a_profile_and_are_read_again_when_it_changes(bucket: Proxy, tmp_path: Path) -> None:
    path = tmp_path / ".aws" / "credentials"
    path.parent.mkdir()
    path.write_text("[default]\naws_access_key_id = first\naws_secret_access_key = x\n")
    store = open_store(URI)
    store.write("a", b"")
    path.write_text("[default]\naws_access_key_id = second\naws_secret_access_key = x\n")
    store.read("a")
    assert (bucket.signers[0], bucket.signers[-1]) == ("first", "second")


def test_a_rotated_secret_is_used_without_a_restart(
    bucket: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it comes before any other credentials."""
    monkeypatch.setenv("S3_CREDENTIALS_DIR", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    (tmp_path / "accesskey").write_text("first\n")
    (tmp_path / "secretkey").write_text("mine\n")
    store = open_store(URI)
    store.write("a", b"")
    (tmp_path / "accesskey").write_text("second\n")
    store.read("a")
    assert (bucket.signers[0], bucket.signers[-1]) == ("first", "second")
    found = MountedSecret(tmp_path).retrieve()
    assert (found.access_key, found.secret_key) == ("second", "mine")


@pytest.mark.parametrize("name", ["accesskey", "secretkey"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_secret_without_one_of_its_keys_is_named(
    name: str, empty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("accesskey", "secretkey"):
        (tmp_path / key).write_text("x")
    (tmp_path / name).write_text("\n") if empty else (tmp_path / name).unlink()
    monkeypatch.setenv("S3_CREDENTIALS_DIR", str(tmp_path))
    with pytest.raises(NoAccess) as caught:
        open_store(URI)
    assert caught.value.which == str(tmp_path / name)
    assert caught.value.seen == ("it is empty" if empty else "No such file or directory")


def test_without_credentials_requests_are_not_signed(bucket: Proxy) -> None:
    with pytest.raises(StoreError):
        open_store(URI).read("a")
    assert set(bucket.signers) == {""}


def test_no_secret_shows_where_a_connection_is_shown() -> None:
    connection = Connection.from_environment({"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hidden"})
    assert connection.identity
    assert "hidden" not in repr(connection)


@pytest.mark.parametrize("name", ["AWS_PROFILE", "MINIO_ACCESS_KEY", "S3_CREDENTIALS_DIR", "HOME"])
def test_each_variable_of_an_identity_makes_another_connection(name: str) -> None:
    assert Connection.from_environment({name: "a"}) != Connection.from_environment({name: "b"})


def test_another_identity_is_another_connection() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "1"}
    before, after = (Connection.from_environment(keys | {"AWS_SESSION_TOKEN": token}) for token in "ab")
    assert before != after
    assert before == Connection.from_environment(keys | {"AWS_SESSION_TOKEN": "a", "LANG": "C"})


# Roles


def test_a_role_is_asked_for_once_while_its_credentials_are_valid(role: Roles, bucket: Proxy) -> None:
    assert set(_signers(bucket, requests=3)) == {"role-1"}
    [(path, authorization)] = role.asked
    assert "who-i-am" in path + authorization


def test_a_role_is_renewed_before_it_expires(role: Roles, bucket: Proxy) -> None:
    role.lifetime = timedelta(seconds=5)  # the client wants at least ten
    signers = _signers(bucket, requests=3)
    assert signers == sorted(set(signers)), "each request has credentials of its own"
    assert len(signers) == 3


def test_a_refused_role_is_reported_with_its_variable(role: Roles, bucket: Proxy) -> None:
    role.broken = True
    with pytest.raises(NoAccess) as refused:
        open_store(URI).read("a")
    assert refused.value.which in {"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"}
    assert "403" in refused.value.seen
    assert "who-i-am" not in refused.value.seen


def test_an_instance_of_aws_has_its_own_role(roles: Roles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", roles.endpoint)
    for endpoint in (AWS, "https://s3.eu-central-1.amazonaws.com"):
        found = provider(endpoint)
        assert found
        assert found.retrieve().access_key.startswith("role-")
    assert provider("http://minio:9000") is None, "elsewhere no instance is asked"


def test_without_credentials_all_ways_to_give_them_are_listed(
    roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles.broken = True
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", roles.endpoint)
    monkeypatch.setenv("S3_ENDPOINT", AWS)
    with pytest.raises(NoAccess, match=r"the instance's role.*AWS_ACCESS_KEY_ID"):
        open_store(URI).read("a")
