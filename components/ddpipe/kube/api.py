"""The Kubernetes API, as few verbs. The only file that imports `kubernetes`.

Inside a pod the credentials are three files, and the client library (1 s, 95 MB) is not even imported; for a
kubeconfig, with its plugins and proxies, it is asked.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import urllib3

from ddpipe.errors import ClusterUnreachable

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A connection whose other end is gone without a word is noticed by the kernel, within about a minute.
_KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]

_MERGE_PATCH = "application/merge-patch+json"
# Kept open; more are opened when more pods' logs are read.
_CONNECTIONS = 64

Query = Mapping[str, str]


class ApiError(Exception):
    """A request that did not do what it should. For this package only: people get a LaunchError."""


class Unanswered(ApiError):
    """No answer: refused, timed out, or cut in the middle."""


class Refused(ApiError):
    """The server's own no.

    Attributes:
        status: HTTP status.
        reason: The machine's word for it: NotFound, AlreadyExists, Expired.
        message: The server's words.
        named: The object that the refusal is about; empty when not even its kind exists.
    """

    def __init__(self, status: int, reason: str, message: str, named: str = "") -> None:
        super().__init__(status, reason, message)
        self.status, self.reason, self.message, self.named = status, reason, message, named

    def __str__(self) -> str:
        """Status and words."""
        return f"HTTP {self.status} {self.message or self.reason}"


class Cluster(Protocol):
    """What launching needs of an API server; every method raises `Unanswered` or `Refused`."""

    namespace: str

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        """Read an object or a list."""

    def create(self, path: str, body: Mapping[str, Any], query: Query | None = None) -> dict[str, Any]:
        """Create an object; what the server made of it."""

    def annotate(self, path: str, uid: str, annotations: Mapping[str, str]) -> None:
        """Give the object these annotations, beside those that it has, if it still has this uid."""

    def delete(self, path: str, uid: str) -> None:
        """Delete the object if it still has this uid, and later what it owns."""

    def lines(self, path: str, query: Query, idle: float) -> Iterator[bytes]:
        """A watch or a log, line by line, until it ends; `Unanswered` after `idle` seconds of silence."""

    def spare(self) -> Cluster:
        """The same cluster over connections of its own."""


@dataclass(frozen=True, slots=True)
class _Credentials:
    """How to reach a server: a pool of connections, and what to send with each request."""

    host: str
    pool: urllib3.PoolManager
    headers: Mapping[str, str]


class ApiServer:
    """A cluster reached over HTTP."""

    def __init__(self, log_in: Callable[[], _Credentials], namespace: str, timeout: float = 10) -> None:
        self.namespace = namespace
        self._log_in = log_in
        self._timeout = timeout
        self._credentials = log_in()

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        """Read an object or a list."""
        return self._json("GET", path, query)

    def create(self, path: str, body: Mapping[str, Any], query: Query | None = None) -> dict[str, Any]:
        """Create an object; what the server made of it."""
        return self._json("POST", path, query, body)

    def annotate(self, path: str, uid: str, annotations: Mapping[str, str]) -> None:
        """Give the object these annotations, beside those that it has, if it still has this uid."""
        self._json("PATCH", path, body={"metadata": {"uid": uid, "annotations": annotations}})

    def delete(self, path: str, uid: str) -> None:
        """Delete the object if it still has this uid, and later what it owns."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        self._json("DELETE", path, body=options)

    def lines(self, path: str, query: Query, idle: float) -> Iterator[bytes]:
        """A watch or a log, line by line, until it ends; `Unanswered` after `idle` seconds of silence."""
        response = self._answer("GET", path, query, read_timeout=idle)
        try:
            yield from _split(response)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unanswered(_plain(error)) from error
        finally:
            response.close()

    def spare(self) -> ApiServer:
        """The same cluster over connections of its own."""
        return ApiServer(self._log_in, self.namespace, self._timeout)

    def _json(
        self, method: str, path: str, query: Query | None = None, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        response = self._answer(method, path, query, body)
        try:
            answer: dict[str, Any] = json.loads(response.read())
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise Unanswered(_plain(error)) from error
        finally:
            response.release_conn()
        return answer

    def _answer(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
        read_timeout: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """The response to one request; a token refused once is read again, as it may have been rotated."""
        response = self._send(method, path, query, body, read_timeout or self._timeout)
        if response.status == HTTPStatus.UNAUTHORIZED:
            response.drain_conn()
            self._log_in_again()
            response = self._send(method, path, query, body, read_timeout or self._timeout)
        if response.status >= 400:  # noqa: PLR2004 - HTTP's own line between yes and no
            raise _refusal(response)
        return response

    def _log_in_again(self) -> None:
        """Read the credentials anew; what is half rotated is read again after the next refusal.

        A file that is just being written gives no token, and a request without one is nobody's: it would be
        forbidden, which nobody tries again, where it is unauthorized.
        """
        try:
            fresh = self._log_in()
        except OSError as error:
            raise Unanswered(f"the credentials cannot be read: {error}") from error
        if fresh.headers or not self._credentials.headers:
            self._credentials = fresh

    def _send(
        self, method: str, path: str, query: Query | None, body: Mapping[str, Any] | None, read_timeout: float
    ) -> urllib3.BaseHTTPResponse:
        credentials = self._credentials
        kind = {"Content-Type": _MERGE_PATCH} if method == "PATCH" else {}
        try:
            return credentials.pool.request(
                method,
                credentials.host + path + (f"?{urlencode(query)}" if query else ""),
                json=body,
                headers={"Accept": "application/json", **kind, **credentials.headers},
                preload_content=False,
                retries=False,
                timeout=urllib3.Timeout(connect=self._timeout, read=read_timeout),
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unanswered(_plain(error)) from error


def connect(kubeconfig: str | None = None) -> ApiServer:
    """The cluster of the kubeconfig, or of the pod that this runs in.

    Args:
        kubeconfig: Its path; by default $KUBECONFIG, else the pod's own account, else ~/.kube/config.

    Raises:
        ClusterUnreachable: There are no credentials.
    """
    # The client library reads the variable once, as it is imported: a notebook may set it later.
    kubeconfig = kubeconfig or os.environ.get("KUBECONFIG")
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and (_ACCOUNT / "token").exists()
    if in_pod and not kubeconfig:
        return ApiServer(_log_in_as_pod, (_ACCOUNT / "namespace").read_text().strip())
    from kubernetes import config  # noqa: PLC0415 - the expensive import

    try:
        _, context = config.list_kube_config_contexts(kubeconfig)
        namespace = context["context"].get("namespace", "default")
        return ApiServer(lambda: _log_in_by_kubeconfig(kubeconfig), namespace)
    except config.ConfigException as error:
        raise ClusterUnreachable(
            what="no cluster is known",
            which=kubeconfig or "~/.kube/config",
            seen=str(error),
            do="Set KUBECONFIG to a kubeconfig, or run inside a pod.",
        ) from error


def _log_in_as_pod() -> _Credentials:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    token = (_ACCOUNT / "token").read_text().strip()
    return _Credentials(
        host=f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}",
        pool=urllib3.PoolManager(
            ca_certs=str(_ACCOUNT / "ca.crt"),
            cert_reqs=ssl.CERT_REQUIRED,
            socket_options=_KEEPALIVE,
            maxsize=_CONNECTIONS,
        ),
        headers={"Authorization": f"Bearer {token}"} if token else {},
    )


def _log_in_by_kubeconfig(path: str | None) -> _Credentials:
    from kubernetes import client, config  # noqa: PLC0415 - the expensive import

    settings = client.Configuration()
    config.load_kube_config(path, client_configuration=settings)
    pool: urllib3.PoolManager = client.rest.RESTClientObject(settings, maxsize=_CONNECTIONS).pool_manager
    pool.connection_pool_kw["socket_options"] = _KEEPALIVE
    token = settings.get_api_key_with_prefix("authorization")
    return _Credentials(settings.host, pool, {"Authorization": token} if token else {})


def _refusal(response: urllib3.BaseHTTPResponse) -> Refused:
    try:
        told = json.loads(response.read())
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        told = {}
    finally:
        response.release_conn()
    named = (told.get("details") or {}).get("name", "")
    return Refused(response.status, told.get("reason", ""), told.get("message", response.reason or ""), named)


def _split(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Whole lines: one that the end of the connection cut is not passed on, it will be read again."""
    rest = b""
    for chunk in response.stream(2**16):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _plain(error: Exception) -> str:
    """The cause in a few words, without urllib3's object addresses."""
    match error:
        case urllib3.exceptions.NameResolutionError():
            return "its name cannot be resolved"
        case urllib3.exceptions.NewConnectionError():
            return "connection refused"
        case urllib3.exceptions.TimeoutError():
            return "no answer in time"
        case urllib3.exceptions.SSLError():
            return f"its certificate is not trusted: {error}"
        case _:
            return "the connection was cut"
