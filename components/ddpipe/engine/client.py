"""`kfp.Client`, ready to use: logged in, with checked answers, bounds of time and memory, and our errors."""

from __future__ import annotations

import json
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO
from queue import Empty, Queue
from threading import Thread
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import kfp
from kfp.client import ServiceAccountTokenVolumeCredentials
from kfp_server_api.api_client import ApiClient
from kfp_server_api.exceptions import ApiException
from kfp_server_api.rest import RESTClientObject
from urllib3 import HTTPResponse, Retry
from urllib3.exceptions import HTTPError

from ddpipe.engine.answers import NotAsDescribed, check, parsed
from ddpipe.engine.endpoint import Endpoint, EndpointOptions
from ddpipe.engine.refusals import no_json, not_described, refused, unanswered
from ddpipe.errors import ParameterError

PATIENCE = (5, 60)
"""Seconds to connect, and between two bytes of an answer: the generated client waits forever."""

ANSWER_SECONDS = 120.0
"""Seconds for a request and its whole answer, with retries."""

LISTING_SECONDS = 300.0
"""Seconds for all pages of a list."""

MOST_BYTES = 32 * 2**20
"""Limit of an answer."""

ONE_USER = "kubeflow"
"""The namespace of runs on a single-user server."""

_PAGE, _MOST_PAGES = 100, 1000
_PIECE = 2**16
_HEADER = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
T = TypeVar("T")
_RETRIES = Retry(
    total=2,
    connect=0,
    read=0,
    backoff_factor=0.2,
    status_forcelist=(429, 502, 503, 504),
    allowed_methods=("GET",),
    raise_on_status=False,
    respect_retry_after_header=False,
)


@dataclass(frozen=True, slots=True)
class Engine:
    """A pipeline server that has answered.

    Attributes:
        client: Its client.
        endpoint: Its address.
        namespace: Namespace of the runs; None on a single-user server.
        version: Its version; empty if it does not report one.
    """

    client: Client
    endpoint: Endpoint
    namespace: str | None
    version: str

    def link(self, run_id: str) -> str:
        """The web page of a run."""
        return f"{self.endpoint.shown}/#/runs/details/{run_id}"


class Client(kfp.Client):  # type: ignore[misc]  # untyped
    """kfp's client, over a transport of ours."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - kfp's own
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about old servers, which `doctor` reports
            super().__init__(**settings)
        self._existing_config.retries = _RETRIES
        api = self._run_api.api_client  # all parts of kfp's client share it
        api.__class__ = _CheckedApi  # kfp makes it, and has no parameter for its class
        api.rest_client = self._transport = _Transport(self._existing_config)

    def _load_context_setting_or_default(self) -> None:
        """Read no file of other tools; with a namespace, the constructor does not ask the server."""
        self._context_setting = {"namespace": "not known yet"}

    def set_user_namespace(self, namespace: str) -> None:
        """Choose the namespace, for this object only."""
        self._context_setting["namespace"] = namespace

    def health(self) -> tuple[bool, str]:
        """Whether the server has many users, and its version."""
        answer = self._healthz_api.healthz_service_get_healthz(_preload_content=False)
        which = _which("GET", str(answer.geturl()))
        try:
            found = parsed(answer.data)
            many, version = found.get("multi_user"), found.get("tag_name")
            check(many, "bool", "multi_user")
            check(version, "str", "tag_name")
        except NotAsDescribed as error:
            raise not_described(which, error) from error
        return bool(many), str(version or "")

    def text(self, path: str, query: Mapping[str, str], last: int = MOST_BYTES) -> str:
        """The answer to a GET request that the API's description lacks."""
        self._transport.last = last
        try:
            answer = self._run_api.api_client.call_api(
                path,
                "GET",
                query_params=list(query.items()),
                auth_settings=["Bearer"],
                _preload_content=False,
            )
        finally:
            self._transport.last = None
        return str(answer.data.decode(errors="replace"))


class _CheckedApi(ApiClient):  # type: ignore[misc]  # untyped
    """Answers that fit the API's description, or an error of ours."""

    def deserialize(self, response: Any, response_type: str) -> Any:  # noqa: ANN401 - kfp's models
        """Check an answer, then make a model of it."""
        try:
            check(parsed(response.data.encode()), response_type)
            return super().deserialize(response, response_type)
        except (ApiException, ValueError, TypeError) as error:
            which = _which("", str(response.urllib3_response.geturl()))
            raise not_described(which, error) from error


class _Transport(RESTClientObject):  # type: ignore[misc]  # untyped
    """Requests that end in bounded time and memory, with an answer or an error of ours.

    Attributes:
        last: Bytes at the end of an answer that are kept; None for all of it, which must not be too long.
    """

    last: int | None = None

    def __init__(self, configuration: Any) -> None:  # noqa: ANN401 - kfp's
        super().__init__(configuration)
        self.pool_manager: Any = _BoundedPool(self.pool_manager, lambda: self.last)

    def request(self, method: str, url: str, *given: Any, **settings: Any) -> Any:  # noqa: ANN401
        """Send a request, and wait for its answer."""
        settings["_request_timeout"] = settings.get("_request_timeout") or PATIENCE
        which = _which(method, url)
        _check_headers(settings.get("headers") or {})
        try:
            answer = _within(
                ANSWER_SECONDS,
                which,
                lambda: super(_Transport, self).request(method, url, *given, **settings),
            )
        except ApiException as error:
            raise refused(which, error.status, (error.body or b"").decode(errors="replace")) from None
        except HTTPError as error:
            raise unanswered(which, error) from None
        response = getattr(answer, "urllib3_response", answer)
        if "text/html" in response.headers.get("Content-Type", ""):
            raise no_json(which, str(response.geturl() or url))
        if settings.get("_preload_content", True):
            try:
                parsed(response.data)
            except NotAsDescribed as error:
                raise not_described(which, error) from error
        return answer


@dataclass(frozen=True, slots=True)
class _BoundedPool:
    """Connections whose answers are read here, in pieces, with a limit of their length.

    Attributes:
        pool: The connections.
        last: How many bytes at the end to keep; None for all of them.
    """

    pool: Any
    last: Callable[[], int | None]

    def request(self, method: str, url: str, **settings: Any) -> HTTPResponse:  # noqa: ANN401 - urllib3's
        """Send a request, and read its whole answer."""
        response = self.pool.request(method, url, **{**settings, "preload_content": False})
        kept, last = bytearray(), self.last()
        for piece in response.stream(_PIECE):
            kept += piece
            if last is not None and len(kept) > 2 * last:
                del kept[:-last]
            elif last is None and len(kept) > MOST_BYTES:
                response.close()
                raise HTTPError(f"the answer is longer than {MOST_BYTES // 2**20} MB")
        response.release_conn()
        content = bytes(kept if last is None else kept[-last:])
        # The described API speaks UTF-8; another charset here is a mistake that the client would believe.
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        return HTTPResponse(
            body=BytesIO(content),
            headers={**response.headers, "Content-Type": kind},
            status=response.status,
            reason=response.reason,
            request_url=response.geturl() or url,
        )


def _within(seconds: float, which: str, act: Callable[[], T]) -> T:
    """The result of `act`, or an error after so many seconds.

    The time limit of a connection starts again with every byte, so a server that sends one per second would
    never reach it. The thread that reads it is left behind, and ends with the process.
    """
    results: Queue[tuple[T | None, BaseException | None]] = Queue(1)

    def run() -> None:
        try:
            results.put((act(), None))
        except BaseException as error:  # noqa: BLE001 - raised again below
            results.put((None, error))

    Thread(target=run, daemon=True, name="request").start()
    try:
        result, error = results.get(timeout=seconds)
    except Empty:
        raise unanswered(which, TimeoutError(f"the answer was not complete after {seconds:g} s")) from None
    if error:
        raise error
    return cast("T", result)


def _check_headers(headers: Mapping[str, str]) -> None:
    """Reject tokens and cookies that cannot be sent, without showing them."""
    wrong = [name for name, value in headers.items() if not _HEADER.fullmatch(str(value))]
    if wrong:
        raise ParameterError(
            what=EndpointOptions.what,
            which=f"the header {wrong[0]}",
            seen="it has line breaks or other characters that a header cannot have",
            do="Correct KFP_TOKEN or --token-file (Authorization), KFP_COOKIES or --cookies-file (Cookie).",
        )


def _which(method: str, url: str) -> str:
    """A request for messages, without user, password and query."""
    address = urlsplit(url)
    return f"{method} {address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}".strip()


def connect(endpoint: Endpoint) -> Engine:
    """Reach a pipeline server."""
    mounted = ServiceAccountTokenVolumeCredentials(endpoint.token_file) if endpoint.token_file else None
    client = Client(
        host=endpoint.url,
        existing_token=endpoint.token or None,
        cookies=endpoint.cookies or None,
        ssl_ca_cert=endpoint.ca_file or None,
        credentials=mounted,
    )
    many, version = client.health()
    if many and not endpoint.namespace:
        raise ParameterError(
            what=EndpointOptions.what,
            which="--namespace",
            seen=f"{endpoint.shown} is a multi-user server, and no namespace is given",
            do="Give yours (the Kubeflow UI shows it at the top of the page), or set KFP_NAMESPACE.",
        )
    namespace = endpoint.namespace if many else None
    client.set_user_namespace(namespace or "")
    return Engine(client, endpoint, namespace, version)


def every(page: Callable[..., Any], field: str, **query: Any) -> Iterator[Any]:  # noqa: ANN401 - kfp's models
    """All items of a list, page by page."""
    token, until = "", time.monotonic() + LISTING_SECONDS
    for _ in range(_MOST_PAGES):
        answer = page(page_size=_PAGE, page_token=token, **query)
        yield from getattr(answer, field) or ()
        token, before = answer.next_page_token, token
        if not token:
            return
        if token == before or time.monotonic() > until:
            break
    raise not_described(f"the list of {field}", NotAsDescribed("its pages do not end"))


def named(name: str) -> str:
    """The filter for objects with this display name."""
    predicate = {"operation": "EQUALS", "key": "display_name", "stringValue": name}
    return json.dumps({"predicates": [predicate]})


@contextmanager
def silent() -> Iterator[None]:
    """Keep kfp's client from logging and from printing links on standard output, where results belong."""
    logging.disable(logging.INFO)
    try:
        with redirect_stdout(StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
