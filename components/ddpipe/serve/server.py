"""A model behind HTTP: Open Inference Protocol v2, health, metrics, and a page for dropping a picture.

Starlette and uvicorn, not kserve's own ModelServer: that brings 40 packages, pandas and a Kubernetes client
among them, and queues without a bound.

What a stranger can make the server hold is bounded:

    connections     fewer than file descriptors; one without a whole header goes after 10 s, or for a new one
    bodies          in number of bytes each and together, at a minimal rate; only whole ones count as requests
    JSON            in number of values (protocol.py); one body is parsed at a time
    pixels          of an image, and of all that are decoded at a time (predictor.py)
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from threading import Lock, get_ident
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from ddpipe.errors import DdpipeError
from ddpipe.model.session import LONGEST
from ddpipe.processes.machine import cpus
from ddpipe.serve import protocol
from ddpipe.serve.predictor import MOST_PIXELS, Given, Prediction, Predictor, pixels_of

LARGEST_BODY = 32 * 2**20  # bytes of a request
RETRY_AFTER = 1  # seconds after which a rejected client should try again
MOST_BYTES = 3 * LARGEST_BODY  # of all requests that are in memory
# Seconds that a client may take to send a body, and those for every so many bytes of it.
SLOWEST_BODY, SLOWEST_RATE = 10.0, 2**19
SLOWEST_HEADER = 10.0  # seconds that a connection may be open without a whole header
MOST_CONNECTIONS, SPARE_DESCRIPTORS = 1000, 64

# What the page may load: nothing from elsewhere.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
T = TypeVar("T")


class Answer(JSONResponse):
    """JSON in ASCII: a client's name for its request may hold what UTF-8 cannot, such as half a surrogate."""

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - JSON
        """The body."""
        return json.dumps(content, allow_nan=False).encode()


def _busy(text: str) -> HTTPException:
    return HTTPException(503, f"{text}: try again after {RETRY_AFTER} s", {"Retry-After": str(RETRY_AFTER)})


class HttpConnection(H11Protocol):
    """A client: it is let go if it does not send a whole header in time, or if others need its place."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Wait for a header, in place of who waits longest if all places are taken."""
        super().connection_made(transport)
        self.waits_since: float | None = None
        self._wait()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(self.connections) > min(MOST_CONNECTIONS, descriptors - SPARE_DESCRIPTORS):
            waiting = [one for one in self.connections if isinstance(one, HttpConnection) and one.waits_since]
            min(waiting, key=lambda one: one.waits_since or 0.0).let_go()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; the time for the next header begins with its first part."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.waits_since = None
        elif self.waits_since is None:
            self._wait()

    def _wait(self) -> None:
        self.waits_since = since = self.loop.time()
        self.loop.call_later(SLOWEST_HEADER, lambda: self.let_go() if self.waits_since == since else None)

    def let_go(self) -> None:
        """Close it; it waits no more, so that the next client at this moment takes the place of another."""
        self.waits_since = None
        self.transport.abort()


class Server:
    """Answers requests for one model, in threads; beyond `queue` of them, one is rejected at once."""

    def __init__(self, model: Predictor, name: str, queue: int) -> None:
        self.model, self.name, self.queue = model, name, queue
        self._active = self._bytes = 0
        self._began: dict[int, float] = {}
        self._parsing = Lock()
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

    def _check(self, request: Request) -> None:
        """Refuse a request for another model, or another version of it."""
        name, version = request.path_params["name"], request.path_params.get("version", "")
        if name != self.name or version not in {"", self.version}:
            raise HTTPException(404, f"there is no such model: this server has {self.name!r}")

    @asynccontextmanager
    async def _admitted(self, request: Request) -> AsyncIterator[bytearray]:
        """The body of a request, which is counted with its status, and measured."""
        status, started, body = 500, time.perf_counter(), bytearray()
        try:
            await self._receive(request, body)
            if self._active >= self.queue:
                raise _busy(f"{self.queue} requests are waiting already")
            self._active += 1
            try:
                yield body
            finally:
                self._active -= 1
            status = 200
        except HTTPException as rejected:
            status = rejected.status_code
            raise
        finally:
            self._bytes -= len(body)
            body.clear()  # now, and not when the last frame that knows it is gone
            self._requests.labels(status).inc()
            self._seconds.observe(time.perf_counter() - started)

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Read a body, of bounded size and time."""
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(started + SLOWEST_BODY) as limit:
                async for part in request.stream():
                    body += part
                    self._bytes += len(part)
                    if len(body) > LARGEST_BODY:
                        raise HTTPException(413, f"the request is larger than {LARGEST_BODY:,} bytes")
                    if self._bytes > MOST_BYTES:
                        raise _busy("too many large requests are waiting")
                    limit.reschedule(started + SLOWEST_BODY + len(body) / SLOWEST_RATE)
        except TimeoutError as error:
            raise HTTPException(408, "the request arrived too slowly") from error
        except ClientDisconnect as error:
            raise HTTPException(400, "the client disconnected") from error

    async def _computed(self, function: Callable[[], T]) -> T:
        """What a function gives, in one of a few threads."""
        # Of an exception only the words cross: with its frames, which hold the request, it would be a cycle.

        def timed() -> tuple[T | None, tuple[int, str] | None]:
            self._began[get_ident()] = time.monotonic()
            try:
                return function(), None
            except protocol.WrongRequest as error:
                return None, (error.status, str(error))
            except DdpipeError as error:
                return None, (500, str(error))
            finally:
                del self._began[get_ident()]

        found, refused = await anyio.to_thread.run_sync(timed, limiter=self._threads)
        if refused:
            raise HTTPException(*refused)
        return found  # type: ignore[return-value]  # it was not refused

    def _predicted(self, images: Iterable[Given]) -> list[Prediction]:
        """The model's answers, counted."""
        given = list(images)
        for at, image in enumerate(given):
            if isinstance(image, bytes) and (pixels := pixels_of(image)) > MOST_PIXELS:
                raise protocol.TooLarge(f"image {at} has {pixels:,} pixels, more than {MOST_PIXELS:,}")
        found = self.model.predict(given)
        self._images.inc(sum(not one.problem for one in found))
        return found

    def app(self) -> Starlette:
        """The ASGI application."""
        model = "/v2/models/{name}"
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/metrics", self._metrics),
                Route("/predict", self._picture, methods=["POST"]),
                Route("/v2", self._server_metadata),
                Route("/v2/health/live", self._live),
                Route("/v2/health/ready", self._live),
                *(
                    route
                    for path in (model, f"{model}/versions/{{version}}")
                    for route in (
                        Route(path, self._model_metadata),
                        Route(f"{path}/ready", self._ready),
                        Route(f"{path}/infer", self._infer, methods=["POST"]),
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
        # If a thread computes for longer than an answer may take, only a new process ends that.
        works = all(time.monotonic() - since <= 2 * LONGEST for since in [*self._began.values()])
        return Answer({"live": works, "ready": works}, 200 if works else 503)

    async def _ready(self, request: Request) -> Response:
        self._check(request)
        return Answer({"name": self.name, "ready": True})

    async def _server_metadata(self, _request: Request) -> Response:
        return Answer({"name": "ddpipe", "version": "2", "extensions": [], "models": [self.name]})

    async def _model_metadata(self, request: Request) -> Response:
        self._check(request)
        return Answer(protocol.metadata(self.model.signature, self.name, self.version))

    async def _infer(self, request: Request) -> Response:
        header = request.headers.get(protocol.HEADER)
        self._check(request)

        def inferred() -> Mapping[str, Any]:
            with self._parsing:
                asked = protocol.parsed(body, self.model.signature, header)
            return protocol.response(asked, self._predicted(asked.images), self.model.signature, self.name)

        async with self._admitted(request) as body:
            return Answer(await self._computed(inferred))

    async def _picture(self, request: Request) -> Response:
        """The content of one image file, as it is."""
        async with self._admitted(request) as body:
            (answer,) = await self._computed(lambda: self._predicted([bytes(body)]))
            if answer.problem:
                raise HTTPException(400, f"the picture cannot be read: {answer.problem}")
            return Answer(answer.to_dict())


async def _error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return Answer({"error": error.detail}, error.status_code, error.headers)
