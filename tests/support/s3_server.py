"""A real S3 server process for tests (moto), and a proxy in front of it that misbehaves on request."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from minio import Minio

BUCKET = "datasets"
HOST = "127.0.0.1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "testing-secret"}


@dataclass
class Server:
    """An S3 server with one bucket, `BUCKET`."""

    endpoint: str

    @property
    def client(self) -> Minio:
        host = self.endpoint.removeprefix("http://")
        return Minio(host, *CREDENTIALS.values(), secure=False, region="us-east-1")

    def reset(self) -> None:
        """Only the empty bucket is left."""
        self._post("reset")
        self.client.make_bucket(BUCKET)

    @contextmanager
    def denying_everyone(self) -> Iterator[None]:
        """Meanwhile, no credentials are accepted."""
        self._post("reset-auth", b"0")
        yield
        self._post("reset-auth", b"inf")

    def _post(self, command: str, data: bytes = b"") -> None:
        url = f"{self.endpoint}/moto-api/{command}"
        request = urllib.request.Request(url, data, {"Content-Type": "text/plain"})  # noqa: S310
        urllib.request.urlopen(request).close()  # noqa: S310


_SERVE = """
import sys
from threading import Lock
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
moto, one_at_a_time = DomainDispatcherApplication(create_backend_app), Lock()

def app(request, start):
    # A thread of moto looks at a condition, and another may write before it does: both would win.
    if {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"} & request.keys():
        with one_at_a_time:
            return moto(request, start)
    return moto(request, start)

server = make_server(sys.argv[1], 0, app, threaded=True, request_handler=MotoRequestHandler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def running(host: str = HOST) -> Iterator[Server]:
    """Start one that listens on this address of this machine, and end it."""
    # Pods call it by a service's name, whose first part it would take for a bucket.
    environment = {**os.environ, "S3_IGNORE_SUBDOMAIN_BUCKETNAME": "true"}
    command = [sys.executable, "-c", _SERVE, host]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as process:
        assert process.stdout
        try:
            # The port is bound before it is known here: nobody else gets it, and requests may come at once.
            port = process.stdout.readline().strip()
            assert port, "the S3 server ended at once"
            yield Server(f"http://{HOST}:{port}")
        finally:
            process.kill()


@dataclass
class Proxy:
    """Stands before a server; each request takes the next fault.

    Attributes:
        endpoint: URL of the proxy.
        faults: An HTTP status to answer with, asking for a long wait; the code of an S3 error; "cut" (break
            off in the middle of the answer); "flip" (change the answer's first byte); something to do before
            the request is passed on; or "" for none.
        requests: What was asked so far.
        signers: The access key that signed each of these requests; empty for an unsigned one.
    """

    endpoint: str
    faults: deque[int | str | Callable[[], object]] = field(default_factory=deque)
    requests: list[str] = field(default_factory=list)
    signers: list[str] = field(default_factory=list)


@contextmanager
def proxying(server: Server) -> Iterator[Proxy]:
    upstream = server.endpoint.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            proxy.requests.append(f"{self.command} {self.path}")
            _, _, credential = self.headers.get("Authorization", "").partition("Credential=")
            proxy.signers.append(credential.partition("/")[0])
            fault = proxy.faults.popleft() if proxy.faults else ""
            if isinstance(fault, int):
                self._answer(fault, {"Retry-After": "1000"}, b"")
                return
            if callable(fault):
                fault()
            elif fault not in {"", "cut", "flip"}:
                content = f"<Error><Code>{fault}</Code><Message>injected</Message></Error>".encode()
                self._answer(403, {"Content-Type": "application/xml"}, content)
                return
            connection = http.client.HTTPConnection(upstream)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            response = connection.getresponse()
            content = response.read()
            connection.close()
            if fault == "flip":
                content = bytes([content[0] ^ 1]) + content[1:]
            self._answer(response.status, dict(response.headers), content, cut=fault == "cut")

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815 - http.server's names

        def _answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in {"content-length", "connection", "transfer-encoding"}:
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if cut else content)
            self.close_connection = cut

        def log_message(self, *arguments: object) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer((HOST, 0), Handler) as front:
        front.daemon_threads = True
        proxy = Proxy(f"http://{HOST}:{front.server_address[1]}")
        thread = Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            front.shutdown()
            thread.join()
