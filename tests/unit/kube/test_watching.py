"""Pictures of objects, kept up to date by watches."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event
from time import monotonic

import pytest
from fake_api import FakeApiServer, Request
from launch_samples import PODS, a_job, a_pod, a_server

from ddpipe.kube import watching
from ddpipe.kube.api import ApiError, Query, Refused, Unanswered
from ddpipe.kube.resources import Object
from ddpipe.kube.retrying import is_transient
from ddpipe.kube.watching import Message, Picture, Trouble, WatchSource, start

SOURCE = WatchSource(name="pods", path=PODS, select={"labelSelector": f"ddpipe.dev/job={a_job().name}"})


@contextmanager
def watched(server: FakeApiServer, source: WatchSource = SOURCE) -> Iterator[SimpleQueue[Message]]:
    messages: SimpleQueue[Message] = SimpleQueue()
    stop = Event()
    start(server, source, messages.put, stop)
    yield messages
    stop.set()


def names(message: Message) -> set[str]:
    assert isinstance(message, Picture), message
    return {item["metadata"]["name"].partition("-worker-")[2] for item in message.objects.values()}


def a_watch(request: Request) -> bool:
    return "watch" in request.query


def watches(server: FakeApiServer) -> list[str]:
    return [request.query["resourceVersion"] for request in server.asked if a_watch(request)]


def pod(rank: int) -> dict[str, object]:
    return a_pod(a_job(), f"worker-{rank}")


def test_every_change_gives_a_picture() -> None:
    server = a_server(None, pod(0))
    with watched(server) as messages:
        assert names(messages.get(timeout=60)) == {"0"}
        server.put(PODS, pod(1))
        assert names(messages.get(timeout=60)) == {"0", "1"}
        server.put(PODS, {"metadata": {"name": "somebody-else"}})
        server.drop(f"{PODS}/{a_job().name}-worker-0")
        last = messages.get(timeout=60)
        assert names(last) == {"1"}
        assert isinstance(last, Picture)
        assert last.gone is not None
        assert last.gone["metadata"]["uid"] == "worker-0-uid"


def test_an_open_watch_does_not_keep_its_process_alive() -> None:
    with watched(a_server(None, pod(0))) as messages:
        messages.get(timeout=60)
        running = [thread for thread in threading.enumerate() if thread.name == "watch pods"]
        assert running
        assert all(thread.daemon for thread in running)


def test_a_cut_watch_sees_what_it_missed() -> None:
    server = a_server(None, pod(0))
    with watched(server) as messages:
        assert names(messages.get(timeout=60)) == {"0"}
        server.awaited(a_watch)
        server.fail(a_watch, Unanswered("cut"), times=1)
        server.put(PODS, pod(1))
        assert isinstance(messages.get(timeout=60), Trouble)
        assert names(messages.get(timeout=60)) == {"0", "1"}


def test_an_expired_watch_is_listed_again_without_trouble() -> None:
    server = a_server(None, pod(0))
    with watched(server) as messages:
        assert names(messages.get(timeout=60)) == {"0"}
        server.awaited(a_watch)
        server.put(PODS, {"metadata": {"name": "somebody-else"}})
        server.forget()
        assert names(messages.get(timeout=60)) == {"0"}


def test_a_watch_that_ends_by_itself_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_SHORTEST_WATCH", 0)
    server = a_server(None, pod(0))
    listed = server.get(PODS)["metadata"]["resourceVersion"]
    with watched(server) as messages:
        messages.get(timeout=60)
        server.awaited(lambda request: a_watch(request) and request.query["resourceVersion"] == listed)
        server.end_watches()
        server.put(PODS, pod(1))
        assert names(messages.get(timeout=60)) == {"0", "1"}
        latest = server.get(PODS)["metadata"]["resourceVersion"]
        server.end_watches()
        server.awaited(lambda request: a_watch(request) and request.query["resourceVersion"] == latest)
        marked = server.bookmark(PODS)
        server.end_watches()
        server.awaited(lambda request: a_watch(request) and request.query["resourceVersion"] == marked)
    assert sum(request.path == PODS and request.method == "GET" for request in server.asked) == 3


def test_a_watch_that_ends_at_once_is_trouble_not_a_loop() -> None:
    server = a_server(None, pod(0))
    with watched(server) as messages:
        messages.get(timeout=60)
        server.awaited(a_watch)
        server.end_watches()
        trouble = messages.get(timeout=60)
    assert isinstance(trouble, Trouble)
    assert "ended as soon as it began" in str(trouble.error)


@pytest.mark.parametrize(("bookmarked", "seconds", "idle"), [(True, 3300, 100), (False, 1800, 1900)])
def test_silence_means_nothing_where_no_bookmark_comes(bookmarked: bool, seconds: int, idle: int) -> None:
    server = a_server(None, pod(0))
    silences: list[float] = []
    lines = server.lines

    def noted(path: str, query: Query, silence: float) -> Iterator[bytes]:
        silences.append(silence)
        return lines(path, query, silence)

    server.lines = noted  # type: ignore[method-assign]
    with watched(server, WatchSource(name="pods", path=PODS, select={}, bookmarked=bookmarked)):
        query = server.awaited(a_watch).query
    assert (query["timeoutSeconds"], query["allowWatchBookmarks"]) == (str(seconds), "true")
    assert silences[0] == idle


def test_an_error_in_a_watch_is_trouble() -> None:
    server = a_server(None, pod(0))
    error = {"type": "ERROR", "object": {"code": 500, "message": "etcdserver: no leader"}}
    server.lines = lambda *_: iter([json.dumps(error).encode()])  # type: ignore[method-assign]
    with watched(server) as messages:
        messages.get(timeout=60)
        trouble = messages.get(timeout=60)
    assert isinstance(trouble, Trouble)
    assert str(trouble.error) == "HTTP 500 etcdserver: no leader"


def test_an_optional_source_that_is_away_is_retried() -> None:
    server = a_server(None, pod(0))
    server.fail(lambda request: request.path == PODS, Unanswered("cut"), times=1)
    with watched(server, WatchSource(name="pods", path=PODS, select={}, optional=True)) as messages:
        assert isinstance(messages.get(timeout=60), Trouble)
        assert names(messages.get(timeout=60)) == {"0"}


def test_an_optional_source_that_is_forbidden_is_left() -> None:
    server = a_server(None, pod(0))
    server.fail(lambda request: request.path == PODS, Refused(403, "Forbidden", "no"), times=1)
    optional = WatchSource(name="pods", path=PODS, select={}, optional=True)
    with watched(server, optional) as messages:
        server.awaited(lambda request: request.path == PODS)
        assert messages.empty()
    assert watches(server) == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "ADDED", "object": {"metadata": {}}}',
        b'{"type": "ERROR", "object": 3}',
        b"<html>503</html>",
        b'"text"',
        b"[]",
        b"{}",
        b'{"type": "ADDED"}',
        b"[" * 9999,
    ],
)
def test_a_line_that_is_no_event_is_trouble_not_the_end(line: bytes) -> None:
    """A proxy's page with status 200 once ended the thread, and the launcher waited forever."""
    server = a_server(None, pod(0))
    answers = [iter([line])]
    lines = server.lines
    server.lines = lambda *query: answers.pop() if answers else lines(*query)  # type: ignore[method-assign]
    with watched(server) as messages:
        assert names(messages.get(timeout=60)) == {"0"}
        trouble = messages.get(timeout=60)
        assert isinstance(trouble, Trouble)
        assert is_transient(trouble.error)
        assert names(messages.get(timeout=60)) == {"0"}
        server.put(PODS, pod(1))
        assert names(messages.get(timeout=60)) == {"0", "1"}


def test_an_object_without_a_uid_is_trouble_not_the_end() -> None:
    """No answer ends the thread, however malformed."""
    server = a_server(None, pod(0))
    answers: list[dict[str, object]] = [{"items": [{}]}, {"kind": "Status"}]
    get = server.get
    server.get = lambda *query: answers.pop() if answers else get(*query)  # type: ignore[method-assign]
    with watched(server) as messages:
        for _ in range(2):
            assert isinstance(messages.get(timeout=60), Trouble)
        assert names(messages.get(timeout=60)) == {"0"}


@pytest.mark.parametrize("error", [Refused(410, "Expired", "too old"), Unanswered("cut")])
def test_lists_are_rare_while_every_watch_fails(error: ApiError) -> None:
    """A list that succeeds does not start the pauses again: at most 0.1, 0.2, 0.4 s and so on between two."""
    server = a_server(None, pod(0))
    server.fail(a_watch, error)
    with watched(server):
        began = monotonic()
        server.awaited(lambda request: a_watch(request) and len(watches(server)) == 6)
        assert monotonic() - began >= (0.1 + 0.2 + 0.4 + 0.8 + 1.6) / 2
    assert sum(request.path == PODS and not a_watch(request) for request in server.asked) == 6


def test_a_change_that_does_not_concern_a_source_posts_nothing() -> None:
    """Other jobs' events must neither wake a launcher nor fill its memory."""
    server = a_server(None, pod(0))

    def is_odd(found: Object) -> bool:
        return bool(found["metadata"]["name"].endswith("-1"))

    with watched(server, WatchSource(name="pods", path=PODS, select={}, concerns=is_odd)) as messages:
        assert names(messages.get(timeout=60)) == set()
        server.awaited(a_watch)
        for _ in range(100):
            server.put(PODS, pod(0))
        server.put(PODS, pod(1))
        assert names(messages.get(timeout=60)) == {"1"}
        server.drop(f"{PODS}/{a_job().name}-worker-0")
        server.put(PODS, pod(1))
        again = messages.get(timeout=60)
    assert isinstance(again, Picture)
    assert again.gone is None


def test_a_picture_leaves_out_who_set_which_field() -> None:
    managed = {**pod(0)}
    managed["metadata"] = {**managed["metadata"], "managedFields": [{"manager": "kubelet"}]}  # type: ignore[dict-item]
    server = a_server(None, managed)
    with watched(server) as messages:
        for _ in range(2):
            message = messages.get(timeout=60)
            assert isinstance(message, Picture)
            (found,) = message.objects.values()
            assert "managedFields" not in found["metadata"]
            server.put(PODS, managed)
