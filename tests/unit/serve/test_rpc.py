"""The model over gRPC, as Triton's client sees it: the same answers, the same bounds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGTERM
from socket import socket
from threading import Event
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from onnx_packages import CLASSES, SHAPE, a_small_package
from samples import an_image
from tritonclient.grpc import InferenceServerClient, service_pb2
from tritonclient.utils import InferenceServerException

from ddpipe.errors import ParameterError
from ddpipe.serve import rpc
from ddpipe.serve.model import Model, load_model
from ddpipe.serve.work import Work


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(a_small_package(str(tmp_path_factory.mktemp("model"))).folder.store.uri)


def a_port() -> int:
    with socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@asynccontextmanager
async def serving(work: Work) -> AsyncIterator[triton.InferenceServerClient]:
    address = f"127.0.0.1:{a_port()}"
    async with rpc.listening(work, address, grace=5), triton.InferenceServerClient(address) as client:
        yield client


def asked(
    model: Model, about: Callable[[triton.InferenceServerClient], Any], *, work: Work | None = None
) -> Any:
    """What a client gets from a server of its own."""

    async def run() -> Any:
        async with serving(work or Work(model, "toys", queue=32)) as client:
            return await about(client)

    return asyncio.run(run())


def tensor(name: str, kind: str, values: np.ndarray[Any, Any]) -> Any:
    given = triton.InferInput(name, list(values.shape), kind)
    given.set_data_from_numpy(values)
    return given


def test_tensors_and_files_get_the_answers_of_the_model(model: Model, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, *SHAPE), dtype=np.uint8)
    paths = [an_image(tmp_path / f"{at}.png", (20, 13), seed=at) for at in range(2)]
    files = np.array([path.read_bytes() for path in paths], np.object_)
    for given, images in ((("images", "UINT8", pixels), pixels), (("files", "BYTES", files), paths)):
        answer = asked(
            model, lambda client, given=given: client.infer("toys", [tensor(*given)], request_id="7")
        )
        expected = model.predict(images)
        np.testing.assert_allclose(
            answer.as_numpy("probabilities"), [list(one.probabilities.values()) for one in expected]
        )
        assert [text.decode() for text in answer.as_numpy("answer")] == [
            f'["{one.answer[0]}"]' for one in expected
        ]
        assert answer.get_response().id == "7"


def test_typed_contents_are_read_as_well(model: Model, tmp_path: Path) -> None:
    """As kserve's client sends them."""
    pixels = np.full(SHAPE, 100, np.uint8)
    file = an_image(tmp_path / "a.png").read_bytes()
    for name, kind, shape, contents, image in (
        ("images", "UINT8", (1, *SHAPE), {"uint_contents": pixels.ravel().tolist()}, pixels),
        ("files", "BYTES", (1,), {"bytes_contents": [file]}, file),
    ):
        request = service_pb2.ModelInferRequest(model_name="toys")
        request.inputs.add(name=name, datatype=kind, shape=shape, contents=contents)
        answer = asked(model, lambda client, request=request: client._client_stub.ModelInfer(request))
        (expected,) = model.predict([image])
        np.testing.assert_allclose(
            np.frombuffer(answer.raw_output_contents[0], "<f8"), list(expected.probabilities.values())
        )
        assert CLASSES[0] in answer.parameters["classes"].string_param


def test_metadata_says_how_to_call_the_model(model: Model) -> None:
    async def about(client: triton.InferenceServerClient) -> Any:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("toys", model.version[:12])
        assert (await client.get_server_metadata()).name == "ddpipe"
        return await client.get_model_metadata("toys")

    said = asked(model, about)
    assert list(said.inputs[0].shape) == [-1, *SHAPE]
    assert list(said.versions) == [model.version[:12]]


@pytest.mark.parametrize(
    ("name", "given", "code", "words"),
    [
        ("others", ("images", "UINT8", np.zeros((1, *SHAPE), np.uint8)), "NOT_FOUND", "'toys'"),
        ("toys", ("images", "UINT8", np.zeros((1, 9, 9, 1), np.uint8)), "INVALID_ARGUMENT", "6, 8, 1"),
        ("toys", ("images", "FP32", np.zeros((1, *SHAPE), np.float32)), "INVALID_ARGUMENT", "6, 8, 1"),
        ("toys", ("files", "BYTES", np.array([b"no image"], np.object_)), "INVALID_ARGUMENT", "not an image"),
        ("toys", None, "INVALID_ARGUMENT", "6, 8, 1"),
    ],
    ids=["name", "shape", "type", "picture", "nothing"],
)
def test_wrong_requests_say_what_is_expected(
    model: Model, name: str, given: tuple[Any, ...] | None, code: str, words: str
) -> None:
    inputs = [tensor(*given)] if given else []
    with pytest.raises(InferenceServerException) as raised:
        asked(model, lambda client: client.infer(name, inputs))
    assert raised.value.status() == f"StatusCode.{code}"
    assert words in raised.value.message()


def test_too_large_requests_are_rejected(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "LARGEST_BODY", 1000)
    large = tensor("images", "UINT8", np.zeros((100, *SHAPE), np.uint8))
    with pytest.raises(InferenceServerException) as raised:
        asked(model, lambda client: client.infer("toys", [large]))
    assert raised.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


def test_calls_beyond_the_queue_are_rejected_at_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand calls: each gets an answer, most of them that it should try again, and when."""
    work, free = Work(model, "toys", queue=2), Event()
    compute = work.predicted
    monkeypatch.setattr(work, "predicted", lambda images: free.wait(60) and compute(images))

    async def about(client: triton.InferenceServerClient) -> Counter[str]:
        async def once() -> str:
            try:
                await client.infer("toys", [tensor("images", "UINT8", np.zeros((1, *SHAPE), np.uint8))])
            except InferenceServerException as error:
                cause = error.__cause__ or error.__context__
                if isinstance(cause, grpc.aio.AioRpcError) and cause.code() is grpc.StatusCode.UNAVAILABLE:
                    assert dict(cause.trailing_metadata() or ())[rpc.PUSHBACK] == "1000"
                return str(error.status())
            return "answered"

        calls = [asyncio.create_task(once()) for _ in range(1000)]
        _, waiting = await asyncio.wait(calls, timeout=1)
        while len(waiting) > work.queue:
            _, waiting = await asyncio.wait(waiting, timeout=1)
        free.set()
        return Counter(await asyncio.gather(*calls))

    seen = asked(model, about, work=work)
    assert seen.pop("answered") == work.queue
    assert set(seen) <= {"StatusCode.UNAVAILABLE", "StatusCode.RESOURCE_EXHAUSTED"}
    assert seen["StatusCode.UNAVAILABLE"]
    assert f'ddpipe_requests_total{{status="200"}} {work.queue}.0' in work.metrics().decode()


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    a_small_package(str(tmp_path / "model"))
    return [sys.executable, "-m", "ddpipe", "serve", str(tmp_path / "model"), "--port", "0"]


def test_command_serves_both_until_it_is_stopped(command: list[str]) -> None:
    port = a_port()
    both = [*command, "--grpc-port", str(port)]
    with subprocess.Popen(both, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        try:
            assert "http://" in server.stderr.readline()
            with InferenceServerClient(f"127.0.0.1:{port}") as client:
                wait_until_ready(client)
                refused = subprocess.run(both, capture_output=True, text=True, check=False)
                assert refused.returncode == ParameterError.exit_code
                assert "--grpc-port" in refused.stderr
        finally:
            server.terminate()
            assert server.wait() == -SIGTERM


def wait_until_ready(client: InferenceServerClient) -> None:
    stub = client._client_stub
    ready = stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=60, wait_for_ready=True)
    assert ready.ready


def test_without_grpc_the_command_says_what_to_install(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "tritonclient.py").write_text("raise ModuleNotFoundError(name='tritonclient')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from ddpipe.__main__ import main; main()"
    arguments = [sys.executable, "-c", code, *command[3:], "--grpc-port", "1"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == ParameterError.exit_code
    assert "tritonclient is not installed" in done.stderr
