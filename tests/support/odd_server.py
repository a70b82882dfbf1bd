"""An HTTP server that gives every request the same answer, byte for byte and as slowly as a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

Answer = Callable[[str], bytes]
"""From the path of a request to the body of its answer."""


@contextmanager
def answering(
    answer: Answer,
    kind: str = "application/json",
    *,
    status: int = 200,
    pause: float = 0.0,
    missing: int = 0,
) -> Iterator[str]:
    """The URL of a server.

    Args:
        answer: Makes the bodies.
        kind: Their Content-Type.
        status: Their status.
        pause: Seconds between two bytes of a body.
        missing: Bytes that the Content-Length promises, and that never come.
    """
    over = Event()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = answer(self.path)
            self.send_response_only(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body) + missing))
            self.end_headers()
            if not pause:
                self.wfile.write(body)
                return
            for number in range(len(body)):
                self.wfile.write(body[number : number + 1])
                self.wfile.flush()
                if over.wait(pause):
                    return

        do_GET = do_POST = do_DELETE = _handle  # noqa: N815 - http.server's names

        def log_message(self, *arguments: object) -> None:
            """Stay quiet."""

    class Front(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *arguments: object) -> None:
            """Stay quiet: the client has given up."""

    with Front(("127.0.0.1", 0), Handler) as front:
        thread = Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{front.server_address[1]}"
        finally:
            over.set()
            front.shutdown()
            thread.join()
