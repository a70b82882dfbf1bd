"""A model behind HTTP: Open Inference Protocol v2, health, metrics, and a page for dropping a picture.

Starlette and uvicorn, not kserve's own ModelServer: that brings 40 packages, pandas and a Kubernetes client
among them, and queues without a bound. So there is no gRPC; KServe itself needs REST only.

Every request that needs work is counted before its body is read. Beyond `queue` of them a client gets 503 and
when to try again, so that memory is bounded and nobody waits without an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import anyio.to_thread
from anyio import CapacityLimiter
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ddpipe.processes.cpus import cpus
from ddpipe.serve import protocol
from ddpipe.serve.model import Model

LARGEST_BODY = 32 * 2**20
"""Bytes of a request."""

SLOWEST_BODY = 60.0
"""Seconds that a client may take to send one."""

RETRY_AFTER = 1
"""Seconds after which a rejected client should try again."""

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: nothing from elsewhere."""


class Server:
    """Answers requests for one model."""

    def __init__(self, model: Model, name: str, queue: int) -> None:
        """Prepare to serve.

        Args:
            model: Answers.
            name: As clients know it.
            queue: Requests that may be under way or waiting.
        """
        self.model, self.name = model, name
        self._queue, self._active = queue, 0
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
            exception_handlers={HTTPException: _error},
        )

    async def _page(self, _request: Request) -> Response:
        text = files("ddpipe.serve").joinpath("page.html").read_text()
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})

    async def _metrics(self, _request: Request) -> Response:
        return PlainTextResponse(generate_latest(self._registry))

    async def _live(self, _request: Request) -> Response:
        return JSONResponse({"live": True, "ready": True})

    async def _ready(self, _request: Request) -> Response:
        return JSONResponse({"name": self.name, "ready": True})

    async def _server_metadata(self, _request: Request) -> Response:
        return JSONResponse({"name": "ddpipe", "version": "2", "extensions": [], "models": [self.name]})

    async def _model_metadata(self, _request: Request) -> Response:
        return JSONResponse(protocol.metadata(self.model.signature, self.name, self.model.version[:12]))

    async def _infer(self, request: Request) -> Response:
        body = await _body(request)
        return JSONResponse(await self._in_thread(self._inferred, body, request.headers.get(protocol.HEADER)))

    def _inferred(self, body: bytes, header: str | None) -> Mapping[str, Any]:
        signature = self.model.signature
        asked = protocol.parsed(body, signature, header)
        predictions = self.model.predict(asked.images)
        self._images.inc(len(predictions))
        return protocol.response(asked, predictions, signature, self.name)

    async def _picture(self, request: Request) -> Response:
        """The content of one image file, as it is."""
        body = await _body(request)
        (answer,) = await self._in_thread(self.model.predict, [body])
        if answer.problem:
            raise HTTPException(400, f"the picture cannot be read: {answer.problem}")
        self._images.inc()
        return JSONResponse(answer.to_dict())

    async def _in_thread(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as typed
        try:
            return await anyio.to_thread.run_sync(function, *arguments, limiter=self._threads)
        except protocol.WrongRequest as error:
            raise HTTPException(400, str(error)) from error

    def _of_model(self, endpoint: Endpoint) -> Endpoint:
        """Only for this model's name and version."""

        async def named(request: Request) -> Response:
            name, version = request.path_params["name"], request.path_params.get("version")
            if name != self.name or version not in {None, self.model.version[:12]}:
                raise HTTPException(404, f"there is no such model: this server has {self.name!r}")
            return await endpoint(request)

        return named

    def _counted(self, endpoint: Endpoint) -> Endpoint:
        """Rejected if too many requests are under way, and measured."""

        async def counted(request: Request) -> Response:
            status, started = 500, time.perf_counter()
            try:
                async with self._admitted():
                    response = await endpoint(request)
                status = response.status_code
            except HTTPException as error:
                status = error.status_code
                raise
            finally:
                self._requests.labels(status).inc()
                self._seconds.observe(time.perf_counter() - started)
            return response

        return counted

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        if self._active >= self._queue:
            raise HTTPException(
                503,
                f"{self._queue} requests are waiting already: try again after {RETRY_AFTER} s",
                {"Retry-After": str(RETRY_AFTER)},
            )
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1


Endpoint = Callable[[Request], Awaitable[Response]]


async def _body(request: Request) -> bytes:
    """The body of a request, of bounded size and time."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(SLOWEST_BODY):
            async for part in request.stream():
                size += len(part)
                if size > LARGEST_BODY:
                    raise HTTPException(413, f"the request is larger than {LARGEST_BODY:,} bytes")
                parts.append(part)
    except TimeoutError as error:
        raise HTTPException(408, f"the request took longer than {SLOWEST_BODY:g} s to arrive") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the client disconnected") from error
    return b"".join(parts)


async def _error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
