"""The Kubernetes API as a few verbs. The only file that imports `kubernetes`.

Inside a pod the credentials are three files, and the client library (1 s, 95 MB) is not even imported. It is
imported to read a kubeconfig, with its plugins and proxies. What each verb promises is in kube/cluster.py.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

from ddpipe.errors import ClusterUnreachable, InputError, LaunchError
from ddpipe.kube.cluster import ApiError, Cluster, Query, Refused, Unanswered, whole_lines
from ddpipe.kube.retrying import given_up, with_retries

__all__ = ["ApiError", "ApiServer", "Cluster", "Query", "Refused", "Unanswered", "connect", "whole_lines"]

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The kernel notices a connection whose other end has vanished, within about a minute.
_KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]

# What is read of answers: a server that is none, or a broken proxy, may answer anything.
_PARTS = {"metadata": dict, "spec": dict, "status": dict, "items": list, "resources": list}
_MERGE_PATCH = "application/merge-patch+json"
_JSON = "application/json"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# Kept open for reuse; more are opened while more logs are read.
_CONNECTIONS = 64
_LONGEST_REFUSAL, _SHOWN, _MOST_WORDS = 2**20, 200, 1000
# Anything else is what a proxy in front of an API server sends while that is away or busy.
_ODD = {HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}
_LONGEST_ANSWER = 2**28
# A server that asks for more patience is asked again all the same: budgets are counted in minutes.
_LONGEST_RETRY_AFTER = 60.0
# A server of a kubeconfig that has never answered is more often a wrong one than one that is away.
_FIRST_ANSWER = 5.0


@dataclass(frozen=True, slots=True)
class _Credentials:
    """How to reach a server: a pool of connections, and what to send with each request."""

    host: str
    pool: urllib3.PoolManager
    headers: Mapping[str, str]


class _Login:
    """The credentials at present, shared by all views of one client."""

    def __init__(self, log_in: Callable[[], _Credentials]) -> None:
        self.log_in, self.credentials = log_in, log_in()
        self.ahead = 0.0  # seconds that this machine's clock is ahead of the server's
        self.has_answered = False

    def again(self) -> None:
        """Read the credentials again; a half-written token is read once more after the next refusal."""
        # While a token file is being written it is empty, and a request without a token is anonymous: it
        # would be answered with 403, which is final, in place of 401, which is retried. And a kubeconfig may
        # have been replaced by another cluster's, where objects of the same names are not the ones meant.
        try:
            read = self.log_in()
        except OSError as error:
            raise Unanswered(f"the credentials cannot be read: {error}") from error
        if read.host != self.credentials.host:
            raise Unanswered(f"the credentials are now for {read.host}, not for {self.credentials.host}")
        if read.headers or not self.credentials.headers:
            self.credentials = read


@dataclass(frozen=True, slots=True)
class _Request:
    """What is sent, apart from the credentials."""

    method: str
    path: str
    query: Query | None = None
    body: Mapping[str, Any] | None = None
    accept: str = _JSON


class ApiServer:
    """A `Cluster` reached over HTTP; what each verb promises is said there."""

    def __init__(
        self, log_in: Callable[[], _Credentials], namespace: str, timeout: float = 10, first: float = math.inf
    ) -> None:
        self.namespace = namespace
        self._timeout, self._budget, self._first = timeout, 0.0, first
        self._login = _Login(log_in)

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        return self._json(_Request("GET", path, query))

    def get_metadata(self, path: str, query: Query | None = None) -> dict[str, Any]:
        return self._json(_Request("GET", path, query, accept=_METADATA_LIST))

    def create(self, path: str, body: Mapping[str, Any], query: Query | None = None) -> dict[str, Any]:
        return self._json(_Request("POST", path, query, body))

    def annotate(self, path: str, uid: str, annotations: Mapping[str, str]) -> None:
        self._json(_Request("PATCH", path, body={"metadata": {"uid": uid, "annotations": annotations}}))

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._json(_Request("PUT", path, body=body))

    def delete(self, path: str, uid: str) -> None:
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        self._json(_Request("DELETE", path, body=options))

    def lines(self, path: str, query: Query, idle: float) -> Iterator[bytes]:
        return whole_lines(self.pieces(path, query, idle))

    def pieces(self, path: str, query: Query, idle: float) -> Iterator[bytes]:
        response = self._answer(_Request("GET", path, query), idle)
        try:
            yield from response.stream(2**16)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unanswered(_plain(error)) from error
        finally:
            response.close()

    def patient(self, seconds: float) -> ApiServer:
        same = copy.copy(self)
        same._budget = seconds  # noqa: SLF001 - our own
        return same

    def now(self) -> float:
        return time.time() - self._login.ahead

    def spare(self) -> ApiServer:
        return ApiServer(self._login.log_in, self.namespace, self._timeout, self._first)

    def _json(self, request: _Request) -> dict[str, Any]:
        if not self._budget:
            return self._once(request)
        return with_retries(
            lambda: self._once(request),
            lambda: self._budget if self._login.has_answered else min(self._budget, self._first),
            self._given_up,
        )

    def _given_up(self, error: ApiError, budget: float) -> LaunchError:
        if self._login.has_answered or isinstance(error, Refused) or math.isinf(self._first):
            return given_up(error, budget)
        return ClusterUnreachable(
            what="no cluster answers where the kubeconfig says",
            which=self._login.credentials.host,
            seen=f"{error}, for {budget:.0f} s",
            do="Correct the server (kubectl config view --minify), or let this machine reach it: VPN, proxy.",
        )

    def _once(self, request: _Request) -> dict[str, Any]:
        response = self._answer(request, self._timeout)
        try:
            content = response.read(_LONGEST_ANSWER)
            answer = json.loads(content)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unanswered(_plain(error)) from error
        except (ValueError, RecursionError) as error:
            raise Unanswered(f"it is not JSON, or longer than {_LONGEST_ANSWER} bytes") from error
        finally:
            response.release_conn()
        if not isinstance(answer, dict):
            raise Unanswered(f"it is {type(answer).__name__}, not an object of Kubernetes")
        for name, kind in _PARTS.items():
            if name == "status" and answer.get("kind") == "Status":
                continue  # the answer to an eviction, or a deletion: its status is Success
            if not isinstance(answer.get(name) or kind(), kind):
                raise Unanswered(f"its {name} is {type(answer[name]).__name__}, not {kind.__name__}")
        self._login.has_answered = True
        return answer

    def _answer(self, request: _Request, read_timeout: float) -> urllib3.BaseHTTPResponse:
        """The response to one request; after a 401 the token is read again, as it may have been rotated."""
        response = self._send(request, read_timeout)
        if response.status == HTTPStatus.UNAUTHORIZED:
            response.drain_conn()
            self._login.again()
            response = self._send(request, read_timeout)
        with suppress(KeyError, ValueError):
            self._login.ahead = time.time() - parsedate_to_datetime(response.headers["Date"]).timestamp()
        if response.status >= 400:  # noqa: PLR2004 - HTTP's limit between success and error
            error = _refusal(response)
            # Not with a 401: a token that is wrong from the start will not be rotated in a minute.
            self._login.has_answered |= isinstance(error, Refused) and error.status != HTTPStatus.UNAUTHORIZED
            raise error
        return response

    def _send(self, request: _Request, read_timeout: float) -> urllib3.BaseHTTPResponse:
        credentials = self._login.credentials
        query = f"?{urlencode(request.query)}" if request.query else ""
        kind = {"Content-Type": _MERGE_PATCH} if request.method == "PATCH" else {}
        try:
            return credentials.pool.request(
                request.method,
                credentials.host + request.path + query,
                json=request.body,
                headers={"Accept": request.accept, **kind, **credentials.headers},
                preload_content=False,
                retries=False,
                timeout=urllib3.Timeout(connect=self._timeout, read=read_timeout),
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unanswered(_plain(error)) from error


def connect(kubeconfig: str | None = None) -> ApiServer:
    """The cluster of the kubeconfig's present context, or of the pod that this process runs in."""
    # The client library reads the variable once, on import: a notebook may set it later.
    kubeconfig = kubeconfig or os.environ.get("KUBECONFIG")
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and (_ACCOUNT / "token").exists()
    if in_pod and not kubeconfig:
        return ApiServer(_log_in_as_pod, (_ACCOUNT / "namespace").read_text().strip())
    import yaml  # noqa: PLC0415 - as below
    from kubernetes import config  # noqa: PLC0415 - the expensive import

    try:
        _, current = config.list_kube_config_contexts(kubeconfig)
        # By its name from now on: `kubectl config use-context` must not move a running launcher elsewhere.
        name, namespace = current["name"], current["context"].get("namespace", "default")
        return ApiServer(lambda: _log_in_by_kubeconfig(kubeconfig, name), namespace, first=_FIRST_ANSWER)
    except (TypeError, AttributeError, KeyError, ValueError, yaml.YAMLError) as error:
        raise InputError(
            what="the kubeconfig cannot be read",
            which=kubeconfig or "~/.kube/config",
            seen=f"{type(error).__name__}: {' '.join(str(error).split())}",
            do="Correct the file, or set KUBECONFIG to another one: kubectl config view",
        ) from error
    except (config.ConfigException, OSError) as error:
        what, do = "no cluster is configured", "Set KUBECONFIG to a kubeconfig, or run inside a pod."
        if isinstance(error, _PluginFailed):
            what = "the login plugin of the kubeconfig failed"
            do = "Run it by itself, and log in as it asks; then try again."
        which = kubeconfig or "~/.kube/config"
        raise ClusterUnreachable(what=what, which=which, seen=str(error), do=do) from error


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


def _log_in_by_kubeconfig(path: str | None, context: str) -> _Credentials:
    from kubernetes import client, config  # noqa: PLC0415 - the expensive import

    # The library logs a plugin's error, swallows it, and continues without credentials.
    settings, words = client.Configuration(), BufferingHandler(_MOST_WORDS)
    words.setLevel(logging.ERROR)
    logging.getLogger().addHandler(words)
    try:
        config.load_kube_config(path, context, client_configuration=settings)
    except config.ConfigException as error:
        raise OSError(str(error)) from error
    finally:
        logging.getLogger().removeHandler(words)
    pool: urllib3.PoolManager = client.rest.RESTClientObject(settings, maxsize=_CONNECTIONS).pool_manager
    pool.connection_pool_kw["socket_options"] = _KEEPALIVE
    token = settings.get_api_key_with_prefix("authorization")
    if words.buffer and not token and not settings.cert_file:
        found = config.kube_config.KubeConfigMerger(path or config.KUBE_CONFIG_DEFAULT_LOCATION).config
        user = found["contexts"].get_with_name(context)["context"]["user"]
        plugin = found["users"].get_with_name(user)["user"]["exec"]["command"]
        raise _PluginFailed(f"{plugin}: {'; '.join(record.getMessage() for record in words.buffer)}")
    return _Credentials(settings.host, pool, {"Authorization": token} if token else {})


class _PluginFailed(OSError):
    """A program that the kubeconfig names for the login gave no credentials."""


def _refusal(response: urllib3.BaseHTTPResponse) -> ApiError:
    body, status = b"", {}
    with suppress(urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError):
        body = response.read(_LONGEST_REFUSAL)
        status = json.loads(body)
    response.release_conn()
    if body.lstrip().startswith(b"<") and response.status in _ODD:
        return Unanswered(f"HTTP {response.status} with a page, as no API server sends")
    # A proxy's error may be JSON, too, but no Status object.
    status = status if isinstance(status, dict) else {}
    details = status.get("details")
    named = details.get("name", "") if isinstance(details, dict) else ""
    is_plain = response.headers.get("Content-Type", "").startswith("text/plain")
    words = body[:_SHOWN].decode(errors="replace").strip() if is_plain else ""
    message = status.get("message", words or response.reason or "")
    # In seconds: API servers never send a date.
    after = response.headers.get("Retry-After", "")
    pause = min(float(after), _LONGEST_RETRY_AFTER) if after.isdecimal() else 0.0
    return Refused(response.status, str(status.get("reason", "")), str(message), str(named), pause)


def _plain(error: Exception) -> str:
    """The cause in a few words, without urllib3's object addresses."""
    match error:
        case urllib3.exceptions.NameResolutionError():
            return "its name cannot be resolved"
        case urllib3.exceptions.NewConnectionError():
            return "connection refused"
        case urllib3.exceptions.TimeoutError():
            return "no answer in time"
        case urllib3.exceptions.SSLError() if "WRONG_VERSION" in str(error):
            return "it does not speak TLS; is its address http://, or behind a proxy?"
        case urllib3.exceptions.SSLError():
            return f"its certificate is not trusted: {error}"
        case _:
            return "the connection was cut"
