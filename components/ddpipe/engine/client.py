"""The REST API of a pipeline server: checked answers, bounds of time and memory, and our errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import certifi
from urllib3 import BaseHTTPResponse, PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError

from ddpipe.engine.answers import (
    ANY,
    HEALTH,
    TEXT,
    NotAsDescribed,
    Shape,
    fitted,
    no_json,
    not_described,
    parsed,
    refused,
    unanswered,
)
from ddpipe.engine.endpoint import Endpoint, EndpointOptions
from ddpipe.errors import ParameterError

PATIENCE = (5, 60)  # seconds to connect, and between two bytes of an answer
ANSWER_SECONDS = 120.0  # seconds for a request and its whole answer, with retries
LISTING_SECONDS = 300.0  # seconds for all pages of a list
MOST_BYTES = 32 * 2**20  # limit of an answer
ONE_USER = "kubeflow"  # the namespace of runs on a single-user server
_API = "/apis/v2beta1/"
_PAGE, _MOST_PAGES = 100, 1000
_PIECE = 2**16
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
    """A pipeline server that has answered; without a namespace it has a single user."""

    client: Client
    endpoint: Endpoint
    namespace: str | None
    version: str

    def link(self, run_id: str) -> str:
        """The web page of a run."""
        return f"{self.endpoint.shown}/#/runs/details/{run_id}"


@dataclass(frozen=True, slots=True)
class Client:
    """Requests to a server; each ends in bounded time and memory, with an answer or an error of ours."""

    endpoint: Endpoint
    pool: PoolManager

    def ask(
        self,
        method: str,
        path: str,
        shape: Shape = ANY,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - of the shape
        """The answer to a request of the API, as a value of this shape; None is left out of the request."""
        content = None if body is None else json.dumps(_given(body))
        headers = {} if body is None else {"Content-Type": "application/json"}
        return self._read(method, _API + path, shape, query, body=content, headers=headers)

    def upload(self, path: Path, shape: Shape, **query: str) -> Any:  # noqa: ANN401 - of the shape
        """The same for the upload of a version of a pipeline."""
        fields = {"uploadfile": (path.name, path.read_bytes(), "application/octet-stream")}
        return self._read("POST", f"{_API}pipelines/upload_version", shape, query, fields=fields)

    def every(self, path: str, field: str, shape: Shape, **query: Any) -> Iterator[Any]:  # noqa: ANN401
        """All items of a list, page by page."""
        token, until = "", time.monotonic() + LISTING_SECONDS
        for _ in range(_MOST_PAGES):
            page = {"page_size": _PAGE, "page_token": token or None, **query}
            answer = self.ask("GET", path, {field: [shape], "next_page_token": TEXT}, query=page)
            yield from getattr(answer, field) or ()
            token, before = answer.next_page_token or "", token
            if not token:
                return
            if token == before or time.monotonic() > until:
                break
        raise not_described(f"the list of {field}", NotAsDescribed("its pages do not end"))

    def find(self, path: str, field: str, shape: Shape, name: str, **query: Any) -> Any:  # noqa: ANN401
        """The item of a list with this display name; None if there is none."""
        listed = self.every(path, field, shape, filter=named(name), **query)
        return next((item for item in listed if item.display_name == name), None)

    def text(self, path: str, query: Mapping[str, str], last: int = MOST_BYTES) -> str:
        """The end of the answer to a GET request that the API's description lacks."""
        return self._answer("GET", path, query, last=last).decode(errors="replace")

    def _read(
        self,
        method: str,
        path: str,
        shape: Shape,
        query: Mapping[str, Any] | None,
        **content: Any,  # noqa: ANN401 - urllib3's
    ) -> Any:  # noqa: ANN401 - of the shape
        answer = self._answer(method, path, query, **content)
        try:
            return fitted(parsed(answer), shape)
        except NotAsDescribed as error:
            raise not_described(f"{method} {self.endpoint.shown}{path}", error) from error

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        *,
        last: int | None = None,
        headers: Mapping[str, str] | None = None,
        **content: Any,  # noqa: ANN401 - urllib3's
    ) -> bytes:
        """The whole answer, or its last bytes."""
        url = self.endpoint.url + path
        which = f"{method} {self.endpoint.shown}{path}"
        address = f"{url}?{urlencode(_given(query))}" if query else url
        sent = {**self.endpoint.headers(), **(headers or {})}
        try:
            response = self.pool.request(
                method, address, headers=sent, timeout=Timeout(*PATIENCE), preload_content=False, **content
            )
            answer = _content(response, last)
        except HTTPError as error:
            raise unanswered(which, error) from None
        if not 200 <= response.status < 300:  # noqa: PLR2004 - the statuses of success
            raise refused(which, response.status, answer.decode(errors="replace"))
        if "text/html" in response.headers.get("Content-Type", ""):
            raise no_json(which, response.geturl() or url)
        return answer


def _content(response: BaseHTTPResponse, last: int | None) -> bytes:
    """The body, or its last bytes, within bounds of time and memory."""
    kept, until = bytearray(), time.monotonic() + ANSWER_SECONDS
    # What has come: the connection's own time limit starts again with every byte.
    while piece := response.read1(_PIECE):
        kept += piece
        problem = (
            f"the answer was not complete after {ANSWER_SECONDS:g} s" if time.monotonic() > until else ""
        )
        if last is None and len(kept) > MOST_BYTES:
            problem = f"the answer is longer than {MOST_BYTES // 2**20} MB"
        if problem:
            response.close()
            raise HTTPError(problem)
        if last is not None and len(kept) > 2 * last:
            del kept[:-last]
    response.release_conn()
    return bytes(kept if last is None else kept[-last:])


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def named(name: str) -> str:
    """The filter for objects with this display name."""
    predicate = {"operation": "EQUALS", "key": "display_name", "stringValue": name}
    return json.dumps({"predicates": [predicate]})


def quoted(identity: str) -> str:
    """An ID that a user has typed, as a part of a path."""
    return quote(identity, safe="")


def connect(endpoint: Endpoint) -> Engine:
    """Reach a pipeline server."""
    pool = PoolManager(retries=_RETRIES, ca_certs=endpoint.ca_file or certifi.where())
    client = Client(endpoint, pool)
    health = client.ask("GET", "healthz", HEALTH)
    if health.multi_user and not endpoint.namespace:
        raise ParameterError(
            what=EndpointOptions.what,
            which="--namespace",
            seen=f"{endpoint.shown} is a multi-user server, and no namespace is given",
            do="Give yours (the Kubeflow UI shows it at the top of the page), or set KFP_NAMESPACE.",
        )
    return Engine(client, endpoint, endpoint.namespace if health.multi_user else None, health.tag_name or "")
