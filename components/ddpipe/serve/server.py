"""A model behind HTTP: Open Inference Protocol v2, health, metrics, and a page for dropping a picture.

Starlette and uvicorn, not kserve's own ModelServer: that brings 40 packages, pandas and a Kubernetes client
among them, and queues without a bound. Requests that need work are counted before their body is read.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ddpipe.processes.machine import cpus
from ddpipe.serve import protocol
from ddpipe.serve.predictor import Given, Prediction, Predictor

LARGEST_BODY = 32 * 2**20
"""Bytes of a request."""

RETRY_AFTER = 1
"""Seconds after which a rejected client should try again."""

SLOWEST_BODY = 60.0
"""Seconds that a client may take to send one."""

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: nothing from elsewhere."""

P = ParamSpec("P")
T = TypeVar("T")


class Answer(JSONResponse):
    """JSON in ASCII: a client's name for its request may hold what UTF-8 cannot, such as half a surrogate."""

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - JSON
        """The body."""
        return json.dumps(content, allow_nan=False).encode()


class Rejected(Exception):
    """A request without an answer, and HTTP's status code for it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Requests:
    """Those for one model that are under way: bounded in number, computed in threads, counted and measured.

    Beyond `queue` of them a request is rejected at once, so that memory is bounded and nobody waits in
    vain.
    """

    def __init__(self, model: Predictor, name: str, queue: int) -> None:
        self.model, self.name, self.queue = model, name, queue
        self._active = 0
        self._threads = CapacityLimiter(cpus())
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "ddpipe_requests", "Requests for predictions.", ["status"], registry=self._registry
        )
        self._images = Counter("ddpipe_images", "Images that were answered.", registry=self._registry)
        self._seconds = Histogram(
            "ddpipe_request_seconds", "From a request's header to its answer.", registry=self._registry
        )
        waiting = Gauge("ddpipe_requests_active", "Requests under way or waiting.", registry=self._registry)
        waiting.set_function(lambda: self._active)

    @property
    def version(self) -> str:
        """Of the model, as clients know it."""
        return self.model.version[:12]

    def metrics(self) -> bytes:
        """What was counted, as Prometheus reads it."""
        return generate_latest(self._registry)

    def check(self, name: str, version: str = "") -> None:
        """Refuse a request for another model."""
        if name != self.name or version not in {"", self.version}:
            raise Rejected(404, f"there is no such model: this server has {self.name!r}")

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """A request: counted with its status, and measured."""
        status, started = 500, time.perf_counter()
        try:
            if self._active >= self.queue:
                raise Rejected(  # noqa: TRY301 - counted below
                    503, f"{self.queue} requests are waiting already: try again after {RETRY_AFTER} s"
                )
            self._active += 1
            try:
                yield
            finally:
                self._active -= 1
            status = 200
        except Rejected as rejected:
            status = rejected.status
            raise
        finally:
            self._requests.labels(status).inc()
            self._seconds.observe(time.perf_counter() - started)

    async def computed(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What a function gives, in one of a few threads."""
        try:
            return await anyio.to_thread.run_sync(
                lambda: function(*arguments, **named), limiter=self._threads
            )
        except protocol.WrongRequest as error:
            raise Rejected(400, str(error)) from error

    def predicted(self, images: Iterable[Given]) -> list[Prediction]:
        """The model's answers, counted."""
        found = self.model.predict(list(images))
        self._images.inc(sum(not one.problem for one in found))
        return found


class Server:
    """Answers requests for one model over HTTP."""

    def __init__(self, model: Predictor, name: str, queue: int) -> None:
        self._work = Requests(model, name, queue)

    def app(self) -> Starlette:
        """The ASGI application."""
        model = "/v2/models/{name}"
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/metrics", self._metrics),
                Route("/predict", self._counted(self._picture), methods=["POST"]),
                Route("/v2", self._server_metadata),
                Route("/v2/health/live", self._live),
                Route("/v2/health/ready", self._live),
                *(
                    route
                    for path in (model, f"{model}/versions/{{version}}")
                    for route in (
                        Route(path, self._of_model(self._model_metadata)),
                        Route(f"{path}/ready", self._of_model(self._ready)),
                        Route(f"{path}/infer", self._of_model(self._counted(self._infer)), methods=["POST"]),
                    )
                ),
            ],
            exception_handlers={HTTPException: _error, Rejected: _rejected},
        )

    async def _page(self, _request: Request) -> Response:
        text = files("ddpipe.serve").joinpath("page.html").read_text()
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})

    async def _metrics(self, _request: Request) -> Response:
        return PlainTextResponse(self._work.metrics())

    async def _live(self, _request: Request) -> Response:
        return Answer({"live": True, "ready": True})

    async def _ready(self, _request: Request) -> Response:
        return Answer({"name": self._work.name, "ready": True})

    async def _server_metadata(self, _request: Request) -> Response:
        return Answer(protocol.server_metadata(self._work.name))

    async def _model_metadata(self, _request: Request) -> Response:
        work = self._work
        return Answer(protocol.metadata(work.model.signature, work.name, work.version))

    async def _infer(self, request: Request) -> Response:
        body, header = await _body(request), request.headers.get(protocol.HEADER)
        return Answer(await self._work.computed(self._inferred, body, header))

    def _inferred(self, body: bytes, header: str | None) -> Any:  # noqa: ANN401 - JSON
        work = self._work
        asked = protocol.parsed(body, work.model.signature, header)
        return protocol.response(asked, work.predicted(asked.images), work.model.signature, work.name)

    async def _picture(self, request: Request) -> Response:
        """The content of one image file, as it is."""
        (answer,) = await self._work.computed(self._work.predicted, [await _body(request)])
        if answer.problem:
            raise Rejected(400, f"the picture cannot be read: {answer.problem}")
        return Answer(answer.to_dict())

    def _of_model(self, endpoint: Endpoint) -> Endpoint:
        """Only for this model's name and version."""

        async def named(request: Request) -> Response:
            self._work.check(request.path_params["name"], request.path_params.get("version", ""))
            return await endpoint(request)

        return named

    def _counted(self, endpoint: Endpoint) -> Endpoint:
        """Rejected if too many requests are under way, and measured."""

        async def counted(request: Request) -> Response:
            async with self._work.admitted():
                return await endpoint(request)

        return counted


Endpoint = Callable[[Request], Awaitable[Response]]


async def _body(request: Request) -> bytes:
    """The body of a request, of bounded size and time."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(SLOWEST_BODY):
            async for part in request.stream():
                size += len(part)
                if size > LARGEST_BODY:
                    raise Rejected(413, f"the request is larger than {LARGEST_BODY:,} bytes")
                parts.append(part)
    except TimeoutError as error:
        raise Rejected(408, f"the request took longer than {SLOWEST_BODY:g} s to arrive") from error
    except ClientDisconnect as error:
        raise Rejected(400, "the client disconnected") from error
    return b"".join(parts)


async def _rejected(_request: Request, error: Exception) -> Response:
    if not isinstance(error, Rejected):
        raise error
    headers = {"Retry-After": str(RETRY_AFTER)} if error.status == 503 else None  # noqa: PLR2004 - HTTP's number
    return Answer({"error": str(error)}, error.status, headers)


async def _error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return Answer({"error": error.detail}, error.status_code, error.headers)
