"""A stand-in for Kubeflow Model Registry: what registering needs of its REST API v1alpha3, in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

ROOT = "/api/model_registry/v1alpha3/"
PARENTS = {"model_version": "registeredModelId", "model_artifact": "modelVersionId"}


class Registry:
    """What is registered, by kind and ID.

    Attributes:
        failures: Answers, as status and body, that come before real ones.
        requests: Methods and paths so far.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {
            "registered_model": {},
            "model_version": {},
            "model_artifact": {},
        }
        self.failures: list[tuple[int, str]] = []
        self.requests: list[str] = []
        self.url = ""

    def all(self, kind: str) -> list[dict[str, Any]]:
        return list(self.objects[kind].values())

    def answer(self, method: str, target: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and content for a request."""
        parsed = urlparse(target)
        kind, *rest = parsed.path.removeprefix(ROOT).split("/")
        if method == "GET":
            wanted = {name: values[0] for name, values in parse_qs(parsed.query).items()}
            found = [one for one in self.all(kind) if self._matches(kind, one, wanted)]
            return (200, found[0]) if found else (404, {"code": "", "message": "not found"})
        kind = kind.removesuffix("s")
        match method, rest:
            case "POST", [parent, "artifacts"]:
                made = {**body, "modelVersionId": parent}
                return 200, self._put("model_artifact", made, body.get("id"))
            case "POST", []:
                return 201, self._put(kind, body, None)
            case "PATCH", [known]:
                return 200, self._put(kind, {**self.objects[kind][known], **body}, known)
        return 404, {"message": "404 page not found"}

    @staticmethod
    def _matches(kind: str, one: dict[str, Any], wanted: dict[str, str]) -> bool:
        parent = wanted.get("parentResourceId")
        return one["name"] == wanted.get("name") and (parent is None or one[PARENTS[kind]] == parent)

    def _put(self, kind: str, body: dict[str, Any], known: str | None) -> dict[str, Any]:
        number = known or str(sum(map(len, self.objects.values())) + 1)
        self.objects[kind][number] = {"state": "LIVE", **body, "id": number}
        return self.objects[kind][number]


@contextmanager
def a_registry() -> Iterator[Registry]:
    """A running registry, with nothing in it."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            registry.requests.append(f"{self.command} {urlparse(self.path).path.removeprefix(ROOT)}")
            if registry.failures:
                status, text = registry.failures.pop(0)
            else:
                status, content = registry.answer(self.command, self.path, body)
                text = json.dumps(content)
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if text.startswith("{") else "text/html")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - as the base class finds them

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
