"""`ddpipe serve` answers the public clients of the Open Inference Protocol: kserve's and Triton's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx_packages import SHAPE, a_small_package

from ddpipe.serve.predictor import load_model

pytestmark = pytest.mark.installs

KSERVE = f"""
import asyncio, json, sys
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

async def main(url):
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await client.is_server_ready(url) and await client.is_model_ready(url, "toys")
    for binary in (False, True):
        given = InferInput("images", [2, *{SHAPE}], "UINT8")
        given.set_data_from_numpy(np.full((2, *{SHAPE}), 100, np.uint8), binary_data=binary)
        request = InferRequest(model_name="toys", infer_inputs=[given])
        answer = await client.infer(url, request, model_name="toys")
        print(json.dumps(answer.outputs[0].as_numpy().tolist()))

asyncio.run(main(sys.argv[1]))
"""
TRITON = f"""
import json, sys
import numpy as np
import tritonclient.http as triton

client = triton.InferenceServerClient(sys.argv[1].removeprefix("http://"))
assert client.is_server_ready() and client.is_model_ready("toys")
assert client.get_model_metadata("toys")["inputs"][0]["shape"] == [-1, *{SHAPE}]
given = triton.InferInput("images", [2, *{SHAPE}], "UINT8")
given.set_data_from_numpy(np.full((2, *{SHAPE}), 100, np.uint8))
print(json.dumps(client.infer("toys", [given]).as_numpy("probabilities").tolist()))
"""
CLIENTS = {"kserve": KSERVE, "triton": TRITON}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of an environment with the clients, which bring dozens of packages."""
    home = tmp_path_factory.mktemp("clients")
    uv = [str(Path(sys.executable).with_name("uv"))]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(home)], check=True)
    made = str(home / "bin" / "python")
    wanted = ("kserve", "tritonclient[http]")
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", made, *wanted], check=True)
    return made


@pytest.fixture
def package(tmp_path: Path) -> str:
    return a_small_package(str(tmp_path / "package")).folder.store.uri


@pytest.fixture
def url(package: str) -> Iterator[str]:
    """Of a server, a process of its own."""
    command = [sys.executable, "-m", "ddpipe", "serve", package, "--port", "18232", "--name", "toys"]
    address = "http://127.0.0.1:18232"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            _await(f"{address}/v2/health/ready")
            yield address
        finally:
            process.terminate()


def _await(url: str) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - our own server
        except (urllib.error.URLError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


@pytest.mark.parametrize("script", CLIENTS.values(), ids=CLIENTS)
def test_public_clients_get_the_answers_of_the_model(
    python: str, package: str, url: str, script: str
) -> None:
    pixels = np.full(SHAPE, 100, np.uint8)
    expected = [list(one.probabilities.values()) for one in load_model(package).predict([pixels] * 2)]
    environment = {**os.environ, "no_proxy": "*"}
    done = subprocess.run(
        [python, "-c", script, url], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert answers
    for answer in answers:
        assert np.reshape(answer, np.shape(expected)) == pytest.approx(np.array(expected), abs=1e-6)
