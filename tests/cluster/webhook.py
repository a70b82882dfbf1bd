"""A mutating webhook, as those are that inject sidecars: it changes the pods of one namespace."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from certificates import a_certificate
from place import IMAGE, Place, delete, eventually

from ddpipe.kube.api import Refused

Change = Callable[[dict[str, Any]], object]
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_HOST = os.environ.get("POD_HOST", "127.0.0.1")
"""This machine's address as the API server reaches it."""


@contextlib.contextmanager
def changing_pods(place: Place, change: Change) -> Iterator[None]:
    """Let `change` change each pod that is created in the namespace."""
    called = threading.Event()

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = review["request"]
            change(request["object"])
            called.set()
            parts = (
                {"op": "replace", "path": f"/{part}", "value": request["object"][part]} for part in _PARTS
            )
            patch = base64.b64encode(json.dumps(list(parts)).encode()).decode()
            answer = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
            body = json.dumps({**review, "response": answer}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    certificate = a_certificate(place.kubeconfig.parent / "webhook.pem", _HOST)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with ThreadingHTTPServer((_HOST, 0), Webhook) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://{_HOST}:{server.server_address[1]}"
        authority = certificate.read_text().partition("-----BEGIN PRIVATE")[0]
        try:
            with webhook_for_pods(place, url, base64.b64encode(authority.encode()).decode()):
                eventually(lambda: _try(place) or called.is_set(), bool)
                if not called.is_set():
                    pytest.skip("the API server does not reach this machine: set POD_HOST")
                yield
        finally:
            server.shutdown()


_PARTS = ("metadata", "spec")


@contextlib.contextmanager
def webhook_for_pods(place: Place, url: str, authority: str | None = None) -> Iterator[None]:
    """Have the API server ask a webhook about the pods of the namespace."""
    name = f"{place.namespace}.ddpipe.dev"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": name,
        "clientConfig": {"url": url, **({"caBundle": authority} if authority else {})},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 5,
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    place.admin.create(_CONFIGURATIONS, {**kind, "metadata": {"name": name}, "webhooks": [hook]})
    try:
        yield
    finally:
        delete(place.admin, f"{_CONFIGURATIONS}/{name}")


def _try(place: Place) -> str:
    """The refusal of a pod that is created for show; empty if there is none."""
    container = {"name": "main", "image": IMAGE}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [container]}}
    try:
        place.admin.create(f"/api/v1/namespaces/{place.namespace}/pods", pod, {"dryRun": "All"})
    except Refused as error:
        return error.message if "webhook" in error.message else ""
    return ""


def is_asked(place: Place) -> bool:
    """Whether a webhook that does not answer keeps pods from being created by now."""
    return "webhook" in _try(place)
