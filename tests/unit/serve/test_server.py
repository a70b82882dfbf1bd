"""The server: Open Inference Protocol v2 as a client sees it, its limits, and its page."""

from __future__ import annotations

import base64
import gc
import io
import json
import socket
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from signal import SIGTERM
from threading import Lock, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest
import urllib3
import uvicorn
from onnx_packages import CLASSES, SHAPE, a_signature, a_small_package
from PIL import Image
from samples import an_image

from ddpipe.errors import ParameterError
from ddpipe.model.session import Session
from ddpipe.serve import server as server_module
from ddpipe.serve.predictor import Predictor, load_model
from ddpipe.serve.server import LARGEST_BODY, HttpConnection, Server

HTTP = urllib3.PoolManager(maxsize=64, timeout=60, retries=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return load_model(a_small_package(str(tmp_path_factory.mktemp("model"))).folder.store.uri)


@pytest.fixture(scope="module")
def url(model: Predictor) -> Iterator[str]:
    yield from _running(Server(model, "toys", queue=32))


def _running(server: Server, keep_alive: int = 5) -> Iterator[str]:
    config = uvicorn.Config(
        server.app(),
        http=HttpConnection,
        port=0,
        log_level="error",
        lifespan="off",
        backlog=2048,
        timeout_keep_alive=keep_alive,
    )
    listening, made = config.bind_socket(), uvicorn.Server(config)
    listening.listen(2048)
    thread = Thread(target=made.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        made.should_exit = True
        thread.join()
        listening.close()


def infer(url: str, body: Any, path: str = "/v2/models/toys/infer") -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = HTTP.request("POST", url + path, body=content)
    return answer.status, answer.json()


def pixels(images: np.ndarray[Any, Any], **changes: Any) -> dict[str, Any]:
    tensor = {"name": "images", "datatype": "UINT8", "shape": images.shape, "data": images.ravel().tolist()}
    return {"inputs": [{**tensor, **changes}]}


def files(*contents: bytes) -> dict[str, Any]:
    data = [base64.b64encode(one).decode() for one in contents]
    return {
        "id": "seven",
        "inputs": [{"name": "files", "datatype": "BYTES", "shape": [len(data)], "data": data}],
    }


def probabilities(answer: dict[str, Any]) -> np.ndarray[Any, Any]:
    (found,) = (one for one in answer["outputs"] if one["name"] == "probabilities")
    return np.reshape(found["data"], found["shape"])


def test_tensors_and_files_get_the_answers_of_the_model(url: str, model: Predictor, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, *SHAPE), dtype=np.uint8)
    expected = [list(one.probabilities.values()) for one in model.predict(images)]
    status, answer = infer(url, pixels(images))
    assert status == 200
    np.testing.assert_allclose(probabilities(answer), expected)
    paths = [an_image(tmp_path / f"{at}.png", (20, 13), seed=at) for at in range(2)]
    status, answer = infer(url, files(*(path.read_bytes() for path in paths)))
    assert (status, answer["id"], answer["model_name"]) == (200, "seven", "toys")
    found = model.predict(paths)
    np.testing.assert_allclose(probabilities(answer), [list(one.probabilities.values()) for one in found])
    (said,) = (one for one in answer["outputs"] if one["name"] == "answer")
    assert [json.loads(one) for one in said["data"]] == [list(one.answer) for one in found]


def test_base64_is_read_as_programs_and_browsers_write_it(url: str, tmp_path: Path) -> None:
    content = an_image(tmp_path / "a.png").read_bytes()
    plain = files(content)
    expected = probabilities(infer(url, plain)[1])
    for data in (base64.encodebytes(content), b"data:image/png;base64," + base64.b64encode(content)):
        plain["inputs"][0]["data"] = [data.decode()]
        status, answer = infer(url, plain)
        assert status == 200, answer
        np.testing.assert_array_equal(probabilities(answer), expected)
    plain["inputs"][0]["data"] = ["data:image/png,abc"]
    status, answer = infer(url, plain)
    assert (status, "is not base64" in answer["error"]) == (400, True)


def test_text_that_utf_8_cannot_hold_is_echoed(url: str, tmp_path: Path) -> None:
    request = files(an_image(tmp_path / "a.png").read_bytes()) | {"id": "\ud800"}
    status, answer = infer(url, request)
    assert (status, answer["id"]) == (200, "\ud800")
    request["inputs"][0]["name"] = "\udfff"
    status, answer = infer(url, request)
    assert (status, "\udfff" in answer["error"] or "udfff" in answer["error"]) == (400, True)


def after_the_json(url: str, head: dict[str, Any], data: bytes, length: object = None) -> tuple[int, Any]:
    """A request whose data follow the JSON as bytes."""
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text) if length is None else length)}
    answer = HTTP.request("POST", f"{url}/v2/models/toys/infer", body=text + data, headers=headers)
    return answer.status, answer.json()


def test_data_may_follow_the_json_as_bytes(url: str, tmp_path: Path) -> None:
    """As tritonclient sends it by default."""
    images = np.random.default_rng(1).integers(0, 256, (2, *SHAPE), dtype=np.uint8)
    tensor = {"name": "images", "datatype": "UINT8", "shape": images.shape, "data": None}
    status, answer = after_the_json(url, {"inputs": [tensor]}, images.tobytes())
    assert status == 200
    np.testing.assert_array_equal(probabilities(answer), probabilities(infer(url, pixels(images))[1]))
    file = an_image(tmp_path / "a.png").read_bytes()
    strings = 2 * (len(file).to_bytes(4, "little") + file)
    tensor = {"name": "files", "datatype": "BYTES", "shape": [2], "data": None}
    status, answer = after_the_json(url, {"inputs": [tensor]}, strings)
    assert status == 200
    np.testing.assert_array_equal(probabilities(answer), probabilities(infer(url, files(file, file))[1]))
    for data, length in (
        (strings[:-1], None),
        (strings, 10**9),
        (strings, -1),
        (b"\xff" * 9, None),
        (b"", "x"),
    ):
        status, answer = after_the_json(url, {"inputs": [tensor]}, data, length)
        assert (status, "shape [n, 6, 8, 1]" in answer["error"]) == (400, True)


def test_metadata_says_how_to_call_the_model(url: str, model: Predictor) -> None:
    answer = HTTP.request("GET", f"{url}/v2/models/toys").json()
    assert answer["inputs"][0] == {"name": "images", "datatype": "UINT8", "shape": [-1, *SHAPE]}
    assert answer["parameters"]["classes"] == list(CLASSES)
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/toys/ready", "/v2"):
        assert HTTP.request("GET", url + path).status == 200
    version = answer["versions"][0]
    assert (
        infer(url, pixels(np.zeros((1, *SHAPE), np.uint8)), f"/v2/models/toys/versions/{version}/infer")[0]
        == 200
    )
    assert infer(url, {}, "/v2/models/others/infer")[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"[" * 100_000,
        [],
        {},
        {"inputs": []},
        {"inputs": [{"name": "images"}]},
        pixels(np.zeros((1, *SHAPE), np.uint8), shape=[1, 9, 9, 1]),
        pixels(np.zeros((1, *SHAPE), np.uint8), shape=[2, *SHAPE]),
        pixels(np.zeros((1, *SHAPE), np.uint8), shape=[-1, *SHAPE]),
        pixels(np.zeros((1, *SHAPE), np.uint8), shape=[10**9, *SHAPE]),
        pixels(np.zeros((1, *SHAPE), np.uint8), shape="x"),
        pixels(np.zeros((1, *SHAPE), np.uint8), datatype="FP32"),
        pixels(np.full((1, *SHAPE), 256)),
        pixels(np.full((1, *SHAPE), 0.5)),
        pixels(np.zeros((1, *SHAPE), np.uint8), data=[[1], [2, 3]]),
        {"inputs": [{"name": "files", "datatype": "BYTES", "shape": [1], "data": ["?"]}]},
        {"inputs": [{"name": "files", "datatype": "BYTES", "shape": [1], "data": [7]}]},
        {"inputs": [{"name": "files", "datatype": "BYTES", "shape": [0], "data": []}]},
    ],
    ids=lambda body: str(body)[:60],
)
def test_wrong_requests_say_what_is_expected(url: str, body: Any) -> None:
    status, answer = infer(url, body)
    assert status == 400
    assert "shape [n, 6, 8, 1]" in answer["error"]
    assert "base64" in answer["error"]
    assert len(answer["error"]) < 600


def test_unreadable_pictures_are_named(url: str, tmp_path: Path) -> None:
    good = an_image(tmp_path / "a.png").read_bytes()
    status, answer = infer(url, files(good, b"no image"))
    assert (status, answer["error"]) == (400, "1 of 2 images cannot be read: image 1: it is not an image")
    status, answer = infer(url, b"no image", "/predict")
    assert (status, answer["error"]) == (400, "the picture cannot be read: it is not an image")


def test_large_requests_are_rejected_without_reading_them(url: str) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(3 * LARGEST_BODY // 2**20):
            yield bytes(2**20)

    try:
        answer = HTTP.request("POST", f"{url}/predict", body=endless(), chunked=True)
    except urllib3.exceptions.ProtocolError:
        return  # the server closed the connection while the client still sent
    assert answer.status == 413


def test_a_thousand_requests_at_once_all_get_an_answer(model: Predictor) -> None:
    body = json.dumps(pixels(np.zeros((64, *SHAPE), np.uint8))).encode()
    for url in _running(Server(model, "toys", queue=4)):

        def ask(_number: int, url: str = url) -> tuple[int, str | None]:
            answer = HTTP.request("POST", f"{url}/v2/models/toys/infer", body=body)
            return answer.status, answer.headers.get("Retry-After")

        with ThreadPoolExecutor(64) as pool:
            seen = Counter(pool.map(ask, range(1000)))
        assert sum(seen.values()) == 1000
        assert set(seen) == {(200, None), (503, "1")}
        metrics = HTTP.request("GET", f"{url}/metrics").data.decode()
        assert f'ddpipe_requests_total{{status="200"}} {seen[200, None]}.0' in metrics
        assert f'ddpipe_requests_total{{status="503"}} {seen[503, "1"]}.0' in metrics
        assert "ddpipe_requests_active 0.0" in metrics


def test_slow_clients_do_not_keep_their_place(model: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SLOWEST_BODY", 0.2)
    for url in _running(Server(model, "toys", queue=1)):
        host, port = url.removeprefix("http://").split(":")
        connection = HTTPConnection(host, int(port), timeout=60)
        connection.putrequest("POST", "/predict")
        connection.putheader("Content-Length", "1000")
        connection.endheaders()
        assert connection.getresponse().status == 408
        connection.close()
        assert infer(url, pixels(np.zeros((1, *SHAPE), np.uint8)))[0] == 200


def _connections(url: str, count: int, content: bytes) -> list[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    opened = [socket.create_connection((host, int(port)), timeout=60) for _ in range(count)]
    for one in opened:
        one.sendall(content)
    return opened


@pytest.mark.parametrize(
    "content",
    [
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Le",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\na",
    ],
    ids=["half a header", "one byte of a body"],
)
def test_many_slow_clients_keep_nobody_out(model: Predictor, content: bytes) -> None:
    """Ten times as many as the queue is long."""
    for url in _running(Server(model, "toys", queue=4)):
        slow = _connections(url, 40, content)
        assert infer(url, pixels(np.zeros((1, *SHAPE), np.uint8)))[0] == 200
        for one in slow:
            one.close()


def test_clients_without_a_whole_header_are_let_go(model: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SLOWEST_HEADER", 0.2)
    whole = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    for url in _running(Server(model, "toys", queue=4), keep_alive=0):
        for content in (b"", b"GET / HT", whole + b"GET / HT"):
            (one,) = _connections(url, 1, content)
            with one, suppress(ConnectionResetError):
                while one.recv(4096):
                    pass  # until the server closes it


def test_the_longest_waiting_client_makes_room_for_a_new_one(
    model: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 5)
    monkeypatch.setattr(server_module, "SLOWEST_HEADER", 600)
    for url in _running(Server(model, "toys", queue=4)):
        slow = _connections(url, 8, b"GET / HT")
        assert infer(url, pixels(np.zeros((1, *SHAPE), np.uint8)))[0] == 200
        for one in slow[:3]:
            with suppress(ConnectionResetError):
                assert one.recv(1) == b""
        for one in slow:
            one.close()


def test_what_takes_much_memory_is_rejected(
    url: str, model: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, answer = infer(url, b'{"inputs": [' + b"[]," * 2_100_000 + b"[]]}")
    assert (status, "more than 4,000,000 values" in answer["error"]) == (413, True)
    flat = io.BytesIO()
    Image.new("1", (9000, 4000)).save(flat, "PNG")
    assert len(flat.getvalue()) < 20_000
    for body, path in ((files(flat.getvalue()), "/v2/models/toys/infer"), (flat.getvalue(), "/predict")):
        status, answer = infer(url, body, path)
        assert (status, "36,000,000 pixels, more than 33,554,432" in answer["error"]) == (413, True)
    monkeypatch.setattr(server_module, "MOST_BYTES", 100)
    status, answer = infer(url, pixels(np.zeros((4, *SHAPE), np.uint8)))
    assert (status, "too many large requests" in answer["error"]) == (503, True)


@pytest.mark.parametrize("path", ["/v2/models/toys/infer", "/predict"])
def test_a_refused_request_leaves_nothing_in_memory(url: str, path: str) -> None:
    """Not even until the garbage collector comes: sixteen bodies of lists were 650 MB, each time."""
    body = json.dumps({"inputs": [[[]] * 100_000]}).encode()
    infer(url, body, path)
    gc.disable()
    tracemalloc.start()
    try:
        assert {infer(url, body, path)[0] for _ in range(8)} == {400}
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left < 2 * len(body)


def test_large_images_are_decoded_one_after_the_other(
    model: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddpipe.serve import predictor  # noqa: PLC0415 - its bound is changed

    monkeypatch.setattr(predictor, "MOST_PIXELS", 300)
    decoded = predictor.Preprocessor.pixels
    together, most, lock = 0, 0, Lock()

    def watched(self: predictor.Preprocessor, data: bytes) -> np.ndarray[Any, Any]:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        try:
            sleep(0.01)
            return decoded(self, data)
        finally:
            with lock:
                together -= 1

    monkeypatch.setattr(predictor.Preprocessor, "pixels", watched)
    large = [an_image(tmp_path / f"{at}.png", (20, 13), seed=at) for at in range(6)]
    assert all(one.answer for one in model.predict(large))
    assert most == 1


def test_a_server_whose_request_hangs_is_not_alive(model: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LONGEST", 0.05)
    monkeypatch.setattr(Session, "__call__", lambda _model, images: (sleep(1), np.zeros((len(images), 3)))[1])
    for url in _running(Server(model, "toys", queue=4)):
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(infer, url, pixels(np.zeros((1, *SHAPE), np.uint8)))
            while HTTP.request("GET", f"{url}/v2/health/live").status == 200:
                assert not asked.done()
            assert asked.result()[0] == 200
        assert HTTP.request("GET", f"{url}/v2/health/ready").status == 200


def test_page_loads_nothing_from_elsewhere(url: str) -> None:
    answer = HTTP.request("GET", url)
    assert "Drop a picture" in answer.data.decode()
    assert "://" not in answer.data.decode()
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    a_small_package(str(tmp_path / "model"), a_signature())
    command = [sys.executable, "-m", "ddpipe", "serve", str(tmp_path / "model"), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as serving:
        assert serving.stderr
        try:
            url = serving.stderr.readline().split()[-1]
            assert infer(url, pixels(np.zeros((1, *SHAPE), np.uint8)), "/v2/models/model/infer")[0] == 200
            port = url.rpartition(":")[2]
            refused = subprocess.run([*command, "--port", port], capture_output=True, text=True, check=False)
            assert refused.returncode == ParameterError.exit_code
            assert "is in use" in refused.stderr
        finally:
            serving.terminate()
            assert serving.wait() == -SIGTERM  # after the requests under way
