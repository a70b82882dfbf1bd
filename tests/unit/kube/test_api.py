"""The few verbs over HTTP: what is sent, and how each kind of answer is understood."""

from __future__ import annotations

import importlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3
from processes import in_proportion

from ddpipe.errors import ClusterUnreachable
from ddpipe.kube import api as cluster
from ddpipe.kube.api import ApiServer, Refused, Unanswered, connect, whole_lines

HOST = "127.0.0.1"


@dataclass
class Server:
    """A server with prepared answers that keeps what it was asked.

    Attributes:
        answers: Status and body, one per request; the last one is repeated.
        headers: Sent with each answer.
        asked: Method, path, token and body of each request.
        types: Of the last request: the type of its body, and the one that it accepts.
        cut: Whether the connection breaks after this much of a body.
        stalls: Whether nothing comes after it, and the connection stays open.
        over: Set when the test is over.
        closed: Set when a client has closed its connection.
        url: Where it is.
        tokens: What each log-in gives.
    """

    answers: list[tuple[int, bytes]] = field(default_factory=lambda: [(200, b"{}")])
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str, str, Any]] = field(default_factory=list)
    types: tuple[str | None, str | None] = (None, None)
    cut: bool = False
    stalls: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    tokens: list[str] = field(default_factory=lambda: ["first", "second"])

    def reached(self, timeout: float = 60) -> ApiServer:
        """A client of it, which reads its token again whenever it logs in."""
        tokens = iter(self.tokens)

        def log_in() -> cluster._Credentials:
            token = next(tokens)
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return cluster._Credentials(self.url, urllib3.PoolManager(), headers)

        return ApiServer(log_in, "team", timeout)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            token = self.headers.get("Authorization", "")
            server.types = self.headers.get("Content-Type"), self.headers.get("Accept")
            server.asked.append((self.command, self.path, token, json.loads(body) if body else None))
            status, text = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
            self.send_response(status)
            for name, value in server.headers.items():
                self.send_header(name, value)
            whole = not (server.cut or server.stalls)
            if whole:
                self.send_header("Content-Length", str(len(text)))
            else:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(text if whole else b"%x\r\n%s\r\n" % (len(text), text))
            if server.stalls:
                if not self.connection.recv(1):
                    server.closed.set()
                server.over.wait(60)
            self.close_connection = server.cut

        do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer((HOST, 0), Handler) as front:
        front.daemon_threads = True
        server.url = f"http://{HOST}:{front.server_address[1]}"
        threading.Thread(target=front.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.over.set()
        front.shutdown()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as found:
        yield found


def test_an_object_is_read_with_its_query(server: Server) -> None:
    server.answers = [(200, b'{"kind": "Pod"}')]
    assert server.reached().get("/pods", {"labelSelector": "a=1,b=2"}) == {"kind": "Pod"}
    assert server.asked == [("GET", "/pods?labelSelector=a%3D1%2Cb%3D2", "Bearer first", None)]


def test_only_the_object_of_this_uid_is_deleted(server: Server) -> None:
    server.reached().delete("/pods/a", "uid-1")
    body = {"preconditions": {"uid": "uid-1"}, "propagationPolicy": "Background"}
    assert server.asked == [("DELETE", "/pods/a", "Bearer first", body)]


def test_only_the_object_of_this_uid_is_annotated(server: Server) -> None:
    server.reached().annotate("/pods/a", "uid-1", {"note": "1"})
    body = {"metadata": {"uid": "uid-1", "annotations": {"note": "1"}}}
    assert server.asked == [("PATCH", "/pods/a", "Bearer first", body)]
    assert server.types[0] == "application/merge-patch+json"


def test_the_metadata_of_a_list_is_read_alone(server: Server) -> None:
    assert server.reached().get_metadata("/workflows", {"limit": "2"}) == {}
    assert server.asked == [("GET", "/workflows?limit=2", "Bearer first", None)]
    assert "as=PartialObjectMetadataList;" in str(server.types[1])


def test_an_object_is_created_as_it_is(server: Server) -> None:
    server.reached().create("/pods", {"name": "a"}, {"dryRun": "All"})
    assert server.asked == [("POST", "/pods?dryRun=All", "Bearer first", {"name": "a"})]


def test_a_rejected_token_is_read_again_once(server: Server) -> None:
    server.answers = [(401, b"{}"), (200, b'{"kind": "Pod"}')]
    client = server.reached()
    assert client.get("/pods") == {"kind": "Pod"}
    client.get("/pods")
    assert [token for _, _, token, _ in server.asked] == ["Bearer first", "Bearer second", "Bearer second"]


def test_a_token_rejected_twice_is_an_error(server: Server) -> None:
    server.answers = [(401, b'{"reason": "Unauthorized", "message": "expired"}')]
    with pytest.raises(Refused, match="HTTP 401 expired"):
        server.reached().get("/pods")
    assert len(server.asked) == 2


def test_a_half_written_token_is_read_again_later(server: Server) -> None:
    """A request without one would be nobody's, and forbidden for good."""
    server.answers = [(401, b"{}"), (401, b"{}"), (401, b"{}"), (200, b"{}")]
    server.tokens = ["old", "", "new"]
    client = server.reached()
    with pytest.raises(Refused, match="HTTP 401"):
        client.get("/pods")
    client.get("/pods")
    assert [token for _, _, token, _ in server.asked] == ["Bearer old"] * 3 + ["Bearer new"]


def test_a_refusal_has_the_server_s_message(server: Server) -> None:
    status = {"reason": "NotFound", "message": 'pods "a" not found', "details": {"name": "a"}}
    server.answers = [(404, json.dumps(status).encode())]
    with pytest.raises(Refused) as caught:
        server.reached().get("/pods/a")
    error = caught.value
    assert (error.status, error.reason, error.named) == (404, "NotFound", "a")
    assert str(error) == 'HTTP 404 pods "a" not found'


def test_a_bad_request_is_a_refusal(server: Server) -> None:
    server.answers = [(400, b'{"message": "no such field"}')]
    with pytest.raises(Refused, match="HTTP 400 no such field"):
        server.reached().get("/things")


def test_a_proxy_s_error_page_has_its_status(server: Server) -> None:
    server.answers = [(502, b"<html>Bad Gateway</html>")]
    with pytest.raises(Refused, match="HTTP 502 Bad Gateway"):
        server.reached().get("/pods")


@pytest.mark.parametrize("body", [b"no JSON", b"", b"[]", b"null", b"3", b"[" * 100_000])
def test_an_answer_that_is_not_json_is_no_answer(server: Server, body: bytes) -> None:
    server.answers = [(200, body)]
    with pytest.raises(Unanswered):
        server.reached().get("/pods")


def test_an_answer_that_breaks_off_is_no_answer(server: Server) -> None:
    server.answers, server.cut = [(200, b'{"kind":')], True
    with pytest.raises(Unanswered, match="the connection was cut"):
        server.reached().get("/pods")


def test_a_log_comes_in_whole_lines_without_a_cut_one(server: Server) -> None:
    server.answers, server.cut = [(200, b"one\ntwo\nthree and all that is cut away")], True
    lines = server.reached().lines("/log", {"follow": "true"}, 60)
    assert [next(lines), next(lines)] == [b"one", b"two"]
    with pytest.raises(Unanswered, match="the connection was cut"):
        next(lines)


def test_a_stream_that_is_silent_too_long_is_unanswered(server: Server) -> None:
    server.answers, server.stalls = [(200, b"one\ntwo and more")], True
    lines = server.reached().lines("/log", {}, idle=3)
    assert next(lines) == b"one"
    with pytest.raises(Unanswered, match="no answer in time"):
        next(lines)


def test_a_server_that_is_not_there_refuses_connections(server: Server) -> None:
    client = server.reached()
    server.url = "http://127.0.0.1:9"
    gone = server.reached()
    assert client.get("/pods") == {}
    with pytest.raises(Unanswered, match="connection refused"):
        gone.get("/pods")


def test_a_stream_that_is_left_closes_its_connection(server: Server) -> None:
    server.answers, server.stalls = [(200, b"one\ntwo\n")], True
    lines = server.reached().lines("/log", {}, 60)
    assert next(lines) == b"one"
    assert not server.closed.is_set()
    del lines
    assert server.closed.wait(60)


def test_a_last_line_that_has_no_end_is_not_passed_on() -> None:
    assert list(whole_lines([b"one\ntw", b"o\nthr", b"ee"])) == [b"one", b"two"]


def test_a_busy_server_says_how_long_to_wait(server: Server) -> None:
    server.answers = [(429, b'{"message": "busy"}')]
    for text, seconds in {"7": 7, "86400": 60, "Wed, 21 Oct 2026 07:28:00 GMT": 0, "-1": 0}.items():
        server.headers = {"Retry-After": text}
        with pytest.raises(Refused) as caught:
            server.reached().get("/pods")
        assert caught.value.retry_after == seconds


def test_a_patient_client_repeats_one_request_at_a_time(server: Server) -> None:
    """Every second request is answered with 429: each one is sent again, and none of those before it."""
    patient = server.reached().patient(5)
    for number in range(5):
        server.answers = [(429, b"{}"), (200, b'{"ok": true}')]
        assert patient.get(f"/pods/{number}") == {"ok": True}
    assert [path for _, path, *_ in server.asked] == [f"/pods/{number}" for number in range(5) for _ in "ab"]


def test_a_patient_client_gives_up_after_its_budget(server: Server) -> None:
    server.answers = [(503, b'{"message": "overloaded"}')]
    with pytest.raises(ClusterUnreachable, match="HTTP 503 overloaded, for 0 s"):
        server.reached().patient(0.2).delete("/pods/a", "u")
    with pytest.raises(Refused, match="overloaded"):
        server.reached().delete("/pods/a", "u")


def test_what_is_refused_for_good_is_not_repeated(server: Server) -> None:
    server.answers = [(404, b"{}")]
    with pytest.raises(Refused, match="404"):
        server.reached().patient(5).get("/pods/a")
    assert len(server.asked) == 1


def test_a_token_that_one_view_has_read_again_is_used_by_all(server: Server) -> None:
    server.answers = [(401, b"{}"), (200, b"{}")]
    client = server.reached()
    client.patient(5).get("/pods/a")
    client.get("/pods/b")
    assert [token for *_, token, _ in server.asked] == ["Bearer first", "Bearer second", "Bearer second"]


@pytest.mark.parametrize(
    "body", [b'["no", "object"]', b'"text"', b"null", b'{"details": "none"}', b"[" * 9999]
)
def test_an_error_of_any_json_has_its_status(server: Server, body: bytes) -> None:
    server.answers = [(503, body)]
    with pytest.raises(Refused, match="HTTP 503 Service Unavailable"):
        server.reached().get("/pods")


def test_credentials_for_another_server_are_not_used(server: Server) -> None:
    """A kubeconfig may be replaced: objects of the same names elsewhere are not the ones meant."""
    server.answers = [(401, b"{}")]
    client, here = server.reached(), server.url
    server.url = "http://127.0.0.1:9"
    with pytest.raises(Unanswered, match=f"are now for http://127.0.0.1:9, not for {here}"):
        client.get("/pods")


def test_lines_in_small_pieces_take_work_in_proportion() -> None:
    """Four times as long a line in 1 KiB pieces: not sixteen times the time."""

    def seconds(size: int) -> float:
        pieces = [b"x" * 1024] * (size // 1024) + [b"\n"]
        began = time.process_time()
        (line,) = cluster.whole_lines(pieces)
        assert len(line) == size
        return time.process_time() - began

    assert in_proportion(seconds, 2 * 2**20)


def test_a_line_beyond_all_bounds_is_no_answer() -> None:
    with pytest.raises(Unanswered, match="a line of more than 16 MiB"):
        list(cluster.whole_lines(b"x" * 2**16 for _ in range(1000)))


def test_a_spare_connection_logs_in_for_itself(server: Server) -> None:
    client = server.reached()
    client.spare().get("/pods")
    assert server.asked[0][2] == "Bearer second"


def a_kubeconfig(folder: Path, **context: str) -> str:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "me", "user": {"token": "mine"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", **context}}],
    }
    path.write_text(json.dumps(config))
    return str(path)


def test_a_connection_that_nobody_takes_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        # Linux queues one connection more than the backlog.
        with socket.create_connection(address):
            server = Server(url=f"http://127.0.0.1:{address[1]}")
            with pytest.raises(Unanswered, match="no answer in time"):
                server.reached(0.3).get("/version")


@pytest.mark.parametrize(
    ("server", "cause"),
    [
        ("http://127.0.0.1:9", "connection refused"),
        ("http://no-such-host.invalid", "its name cannot be resolved"),
    ],
)
def test_a_wrong_server_in_a_kubeconfig_is_named_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, cause: str
) -> None:
    monkeypatch.setattr(cluster, "_FIRST_ANSWER", 0.2)
    path = Path(a_kubeconfig(tmp_path))
    path.write_text(path.read_text().replace("http://127.0.0.1:9", server))
    with pytest.raises(ClusterUnreachable) as raised:
        connect(str(path)).patient(600).get("/version")
    assert raised.value.which == server
    assert raised.value.seen == f"{cause}, for 0 s"
    assert "kubectl config view" in raised.value.do


def test_a_server_that_has_answered_once_is_waited_for(server: Server) -> None:
    client = server.reached()
    client._first = 0.0
    client.get("/version")
    server.answers = [(503, b"busy"), (200, b"{}")]
    assert client.patient(5).get("/version") == {}


def test_a_server_that_is_busy_at_first_is_waited_for(server: Server) -> None:
    client = server.reached()
    client._first = 0.0
    busy = b'{"kind": "Status", "message": "too many requests"}'
    server.answers = [(429, busy), (429, busy), (200, b"{}")]
    assert client.patient(5).get("/version") == {}


@pytest.mark.parametrize("status", [400, 403, 404])
def test_a_page_is_no_refusal_of_an_api_server(server: Server, status: int) -> None:
    """An object store, or a web server, where a kubeconfig says that a cluster is: it has no jobs."""
    server.answers = [(status, b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>")]
    with pytest.raises(Unanswered, match=f"HTTP {status} with a page, as no API server sends"):
        server.reached().get("/apis/batch/v1")


def test_a_refusal_in_plain_text_is_shown(server: Server) -> None:
    server.answers = [(400, b"Client sent an HTTP request to an HTTPS server.\n")]
    server.headers = {"Content-Type": "text/plain; charset=utf-8"}
    with pytest.raises(Refused, match=r"HTTP 400 Client sent an HTTP request to an HTTPS server\.$"):
        server.reached().get("/version")


def test_a_kubeconfig_says_where_and_who(tmp_path: Path) -> None:
    client = connect(a_kubeconfig(tmp_path, namespace="team-a"))
    assert client.namespace == "team-a"
    assert client._login.credentials.host == "http://127.0.0.1:9"
    assert client._login.credentials.headers == {"Authorization": "Bearer mine"}
    assert connect(a_kubeconfig(tmp_path)).namespace == "default"


def test_a_context_that_is_switched_moves_no_running_client(tmp_path: Path) -> None:
    path = a_kubeconfig(tmp_path)
    client = connect(path)
    config = json.loads(Path(path).read_text())
    config["clusters"].append({"name": "there", "cluster": {"server": "http://127.0.0.1:10"}})
    config["users"][0]["user"] = {"token": "rotated"}
    config["contexts"].append({"name": "there", "context": {"cluster": "there", "user": "me"}})
    config["current-context"] = "there"
    Path(path).write_text(json.dumps(config))
    client._login.again()
    for one in (client, client.spare()):
        assert one._login.credentials.host == "http://127.0.0.1:9"
        assert one._login.credentials.headers == {"Authorization": "Bearer rotated"}
    config["contexts"] = config["contexts"][1:]
    Path(path).write_text(json.dumps(config))
    with pytest.raises(Unanswered, match="the credentials cannot be read"):
        client._login.again()


def test_a_kubeconfig_may_be_named_after_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook, kfp has long been imported."""
    importlib.import_module("kubernetes.config")
    monkeypatch.setenv("KUBECONFIG", a_kubeconfig(tmp_path, namespace="team-a"))
    assert connect().namespace == "team-a"


def test_no_kubeconfig_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachable, match=r"no cluster is configured.*Set KUBECONFIG"):
        connect(str(tmp_path / "nowhere"))


def test_in_a_pod_the_account_s_files_suffice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"token": "of-pod\n", "namespace": "team-b\n", "ca.crt": ""}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cluster, "_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    client = connect()
    assert client.namespace == "team-b"
    assert client._login.credentials.host == "https://[fd00::1]:6443"
    assert client._login.credentials.headers == {"Authorization": "Bearer of-pod"}
    (tmp_path / "token").write_text("rotated")
    assert client.spare()._login.credentials.headers == {"Authorization": "Bearer rotated"}
    (tmp_path / "token").write_text("")
    client._login.again()
    assert client._login.credentials.headers == {"Authorization": "Bearer of-pod"}
    (tmp_path / "token").unlink()
    with pytest.raises(Unanswered, match="the credentials cannot be read"):
        client._login.again()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo log in first >&2; exit 3", "exec: process returned 3. log in first"),
        ("echo no", "failed to decode"),
    ],
)
def test_a_login_plugin_that_fails_is_named_with_its_words(tmp_path: Path, script: str, words: str) -> None:
    """The client library would continue without credentials, and be refused for a lack of rights."""
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(0o755)
    path = Path(a_kubeconfig(tmp_path))
    config = json.loads(path.read_text())
    called = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}
    config["users"][0]["user"] = {"exec": called}
    path.write_text(json.dumps(config))
    with pytest.raises(ClusterUnreachable, match=words) as caught:
        connect(str(path))
    assert str(plugin) in caught.value.seen


@pytest.mark.parametrize("answer", [{"resources": 5}, {"items": {"a": 1}}, {"metadata": "x"}])
def test_an_answer_with_parts_of_another_kind_is_none(server: Server, answer: dict[str, Any]) -> None:
    server.answers = [(200, json.dumps(answer).encode())]
    with pytest.raises(Unanswered, match=f"its {next(iter(answer))} is "):
        server.reached().get("/apis")


def test_ages_are_taken_from_the_server_s_clock(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(cluster, "time", SimpleNamespace(time=lambda: now + 3600))
    client = server.reached()
    client.get("/version")
    assert abs(client.now() - now) < 30
