"""An HTTP proxy between one launcher and the API server that misbehaves on request.

Faults of the API are made here, so that tests run side by side and disturb nobody else on the cluster.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from ddpipe.jobs.backend import all_backends

# A collection of jobs, or one of them, of any kind.
_JOBS = rf"/({'|'.join(kind.resource.plural for kind in all_backends())})(/|\?|$)"


@dataclass(frozen=True)
class Request:
    """A request on its way: method and path with its query, and when it came, by the monotonic clock."""

    method: str
    path: str
    token: str
    moment: float = field(default_factory=time.monotonic)

    @property
    def creates_job(self) -> bool:
        return self.method == "POST" and self._is_about_jobs and "dryRun" not in self.path

    @property
    def deletes_job(self) -> bool:
        return self.method == "DELETE" and self._is_about_jobs

    @property
    def _is_about_jobs(self) -> bool:
        return bool(re.search(_JOBS, self.path))

    @property
    def is_watch(self) -> bool:
        return "watch=true" in self.path

    @property
    def watches_job(self) -> bool:
        return "metadata.name" in self.path

    @property
    def is_log(self) -> bool:
        return "/log?" in self.path


Which = Callable[[Request], bool]


@dataclass
class Hold:
    """One request that is stopped in its tracks, until it is released or its client is gone."""

    which: Which
    answered: bool
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    drop: bool = False
    taken: bool = False


@dataclass
class Answer:
    """What is answered in place of the server, so many times."""

    which: Which
    status: int
    body: bytes
    left: int


class Proxy:
    """The proxy; `url` is what a kubeconfig names as the server."""

    def __init__(self, upstream: str, ca_file: str | None) -> None:
        self.requests: list[Request] = []
        self._target = urlsplit(upstream)
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._holds: list[Hold] = []
        self._answers: list[Answer] = []
        self._live: set[socket.socket] = set()
        self._streams: set[socket.socket] = set()
        self._going = threading.Event()
        self._going.set()
        self._cut_logs_after: float | None = None
        self._server = self._listen(0)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def hold(self, which: Which, *, answered: bool = False) -> Hold:
        """Stop the next such request before the server sees it, or with `answered` its answer."""
        hold = Hold(which, answered)
        self._holds.append(hold)
        return hold

    def answer(self, which: Which, status: int, message: str, times: int) -> None:
        """Answer the next such requests ourselves."""
        answer = {"kind": "Status", "status": "Failure", "code": status, "message": message}
        self._answers.append(Answer(which, status, json.dumps(answer).encode(), times))

    def answer_with(self, which: Which, body: bytes, times: int) -> None:
        """Answer the next such requests with a body that is not the server's, and status 200."""
        self._answers.append(Answer(which, 200, body, times))

    def show(self, which: Which, found: dict[str, object]) -> None:
        """Answer such requests with an object of our own, from now on."""
        self._answers.append(Answer(which, 200, json.dumps(found).encode(), sys.maxsize))

    def cut_logs_every(self, seconds: float) -> None:
        """Break every log stream after so long."""
        self._cut_logs_after = seconds

    @contextlib.contextmanager
    def flaky(self, share: float, status: int = 429) -> Iterator[None]:
        """Answer this share of all requests with an error; the others reach the server."""
        failure = {"kind": "Status", "status": "Failure", "code": status, "message": "please try again later"}
        body = json.dumps(failure).encode()
        answer = Answer(lambda _: random.random() < share, status, body, sys.maxsize)
        self._answers.append(answer)
        try:
            yield
        finally:
            self._answers.remove(answer)

    def drop_streams(self) -> None:
        """Break all watches and logs that are open now."""
        for stream in list(self._streams):
            _break(stream)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Connections are refused, open ones broken."""
        self._server.shutdown()
        self._server.server_close()
        for live in list(self._live):
            _break(live)
        try:
            yield
        finally:
            self._server = self._listen(self.port)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Nothing moves, while connections stay open and new ones are taken."""
        self._going.clear()
        try:
            yield
        finally:
            self._going.set()

    def close(self) -> None:
        for hold in self._holds:
            hold.drop = True
            hold.released.set()
        self._going.set()
        self._server.shutdown()
        self._server.server_close()
        for live in list(self._live):
            _break(live)

    def _listen(self, port: int) -> ThreadingHTTPServer:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                proxy._live.add(self.connection)

            def finish(self) -> None:
                proxy._live.discard(self.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle()

            def do_GET(self) -> None:
                proxy._serve(self)

            do_POST = do_DELETE = do_PATCH = do_PUT = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 64

        server = Server(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def _serve(self, client: BaseHTTPRequestHandler) -> None:
        body = client.rfile.read(int(client.headers.get("Content-Length", 0)))
        request = Request(client.command, client.path, client.headers.get("Authorization", ""))
        self.requests.append(request)
        self._going.wait()
        hold = self._held(request)
        if hold and not hold.answered and self._stopped(hold):
            client.close_connection = True
            return
        for answer in self._answers:
            if answer.left and answer.which(request):
                answer.left -= 1
                self._refuse(client, answer)
                return
        self._forward(client, request, body, hold)

    def _held(self, request: Request) -> Hold | None:
        for hold in self._holds:
            if not hold.taken and hold.which(request):
                hold.taken = True
                return hold
        return None

    @staticmethod
    def _stopped(hold: Hold) -> bool:
        hold.reached.set()
        hold.released.wait()
        return hold.drop

    @staticmethod
    def _refuse(client: BaseHTTPRequestHandler, answer: Answer) -> None:
        client.send_response(answer.status)
        client.send_header("Content-Type", "application/json")
        client.send_header("Content-Length", str(len(answer.body)))
        client.end_headers()
        client.wfile.write(answer.body)

    def _forward(
        self, client: BaseHTTPRequestHandler, request: Request, body: bytes, hold: Hold | None
    ) -> None:
        names = ("Authorization", "Content-Type", "Accept")
        headers = {name: client.headers[name] for name in names if client.headers[name]}
        with contextlib.closing(HTTPSConnection(self._target.netloc, context=self._tls)) as connection:
            connection.request(request.method, request.path, body or None, headers)
            with connection.getresponse() as answer:
                if hold and self._stopped(hold):
                    client.close_connection = True
                    return
                self._streams.add(client.connection)
                try:
                    self._pass_on(client, request, answer)
                finally:
                    self._streams.discard(client.connection)

    def _pass_on(self, client: BaseHTTPRequestHandler, request: Request, answer: HTTPResponse) -> None:
        client.send_response(answer.status)
        client.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
        client.send_header("Transfer-Encoding", "chunked")
        client.end_headers()
        began = time.monotonic()
        while chunk := answer.read1(2**16):
            self._going.wait()
            if request.is_log and self._cut_logs_after and time.monotonic() - began > self._cut_logs_after:
                # In the middle of a line, as a broken connection does it.
                part = chunk[: len(chunk) // 2]
                client.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if part else b"")
                _break(client.connection)
                return
            client.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self._going.wait()
        client.wfile.write(b"0\r\n\r\n")


def _break(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
