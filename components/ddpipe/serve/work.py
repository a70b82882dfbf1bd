"""Requests for one model that are under way: bounded in number, computed in threads, counted and measured.

The server passes every request through one `Work`. Beyond `queue` of them a request is
rejected at once, so that memory is bounded and nobody waits without an answer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ddpipe.processes.machine import cpus
from ddpipe.serve.model import Given, Model
from ddpipe.serve.prediction import Prediction
from ddpipe.serve.protocol import WrongRequest

LARGEST_BODY = 32 * 2**20
"""Bytes of a request."""

RETRY_AFTER = 1
"""Seconds after which a rejected client should try again."""

P = ParamSpec("P")
T = TypeVar("T")


class Refused(Exception):
    """A request without an answer.

    Attributes:
        status: HTTP's status code.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Work:
    """What is under way for one model.

    Attributes:
        model: Answers.
        name: As clients know it.
        queue: Requests that may be under way or waiting.
    """

    def __init__(self, model: Model, name: str, queue: int) -> None:
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
            raise Refused(404, f"there is no such model: this server has {self.name!r}")

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """A request: counted with its status, and measured."""
        status, started = 500, time.perf_counter()
        try:
            if self._active >= self.queue:
                raise Refused(  # noqa: TRY301 - counted below
                    503, f"{self.queue} requests are waiting already: try again after {RETRY_AFTER} s"
                )
            self._active += 1
            try:
                yield
            finally:
                self._active -= 1
            status = 200
        except Refused as refused:
            status = refused.status
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
        except WrongRequest as error:
            raise Refused(400, str(error)) from error

    def predicted(self, images: Iterable[Given]) -> list[Prediction]:
        """The model's answers, counted.

        Args:
            images: Contents of files, or pixels of the model's own shape.
        """
        found = self.model.predict(images)
        self._images.inc(sum(not one.problem for one in found))
        return found
