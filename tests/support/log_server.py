"""A real HTTP server that streams prepared logs in pieces, as a kubelet does behind an API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import urllib3

from ddpipe.kube import api
from ddpipe.kube.api import ApiServer

Answer = Callable[[], Iterable[bytes]]


@dataclass
class LogServer:
    """What is streamed, one answer per request; the last one is repeated.

    Attributes:
        answers: Each gives the pieces of a log; a number in place of an answer is an HTTP error.
        asked: The query of each request.
        cut: Requests, by number, whose connection breaks after the last piece.
        url: Where it is.
    """

    answers: list[Answer | int]
    asked: list[dict[str, str]] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)
    url: str = ""

    def client(self) -> ApiServer:
        """A client of it."""
        return ApiServer(lambda: api._Credentials(self.url, urllib3.PoolManager(), {}), "team")


@contextmanager
def serving(*answers: Answer | int, cut: Iterable[int] = ()) -> Iterator[LogServer]:
    """A running server with these answers."""
    server = LogServer(list(answers), cut=set(cut))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            number = len(server.asked)
            query = parse_qs(urlsplit(self.path).query)
            server.asked.append({name: values[0] for name, values in query.items()})
            answer = server.answers[min(number, len(server.answers) - 1)]
            self.close_connection = True
            if isinstance(answer, int):
                self.send_response(answer)
                self.send_header("Retry-After", "1")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in answer():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if number not in server.cut:
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as front:
        front.daemon_threads = True
        server.url = f"http://127.0.0.1:{front.server_address[1]}"
        threading.Thread(target=front.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        front.shutdown()
