"""The built wheel with one extra at a time, in an environment of its own: what a small install can do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from onnx_packages import CLASSES, a_small_package
from samples import an_image

from ddpipe.errors import ClusterUnreachable, ParameterError

pytestmark = pytest.mark.installs

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "pipelines" / "compiled"
UV = Path(sys.executable).with_name("uv")
NOT_INHERITED = {"PYTHONPATH", "VIRTUAL_ENV", "KUBERNETES_SERVICE_HOST"}


@dataclass(frozen=True)
class Install:
    """An environment that has the wheel with one extra, and nothing else."""

    home: Path

    def packages(self) -> set[str]:
        listed = _run([UV, "pip", "list", "--quiet", "--format", "json", "--python", self.home])
        return {package["name"] for package in json.loads(listed)}

    def ddpipe(self, *arguments: str, folder: Path | None = None, code: int = 0) -> str:
        """Run a command of it; what it wrote."""
        return _run([self.home / "bin" / "ddpipe", *arguments], folder, code)

    def python(self, script: str, folder: Path, **environment: str) -> None:
        """Run a script in it."""
        _run([self.home / "bin" / "python", "-c", script], folder, **environment)


def _run(command: list[str | Path], folder: Path | None = None, code: int = 0, **more: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**inherited, "KUBECONFIG": os.devnull, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Install]:
    """Makes the environment of an extra, once; the versions are the lock's."""
    folder = tmp_path_factory.mktemp("installs")
    _run([UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT])
    (wheel,) = folder.glob("*.whl")

    @cache
    def installed(extra: str) -> Install:
        home, lock = folder / extra, ROOT / "requirements.txt"
        _run([UV, "venv", "--quiet", "--python", sys.executable, home])
        _run([UV, "pip", "install", "--quiet", "--python", home, "--constraint", lock, f"{wheel}[{extra}]"])
        return Install(home)

    return installed


@pytest.mark.parametrize(
    ("extra", "absent"),
    [
        ("launch", {"torch", "kfp", "scikit-learn"}),
        ("pipelines", {"torch", "scikit-learn"}),
        ("predict", {"torch", "kfp", "kubernetes", "scipy", "scikit-learn", "starlette"}),
        ("prepare", {"torch", "kfp", "kubernetes"}),
        ("serve", {"torch", "kfp", "kubernetes", "scipy", "scikit-learn"}),
        ("train", {"kfp", "kubernetes"}),
    ],
)
def test_an_extra_brings_nothing_that_is_anothers(
    install: Callable[[str], Install], extra: str, absent: set[str]
) -> None:
    assert not install(extra).packages() & absent


def test_launch_gets_as_far_as_the_missing_cluster(install: Callable[[str], Install]) -> None:
    command = ("launch", "--image", "busybox:1", "--", "true")
    shown = install("launch").ddpipe(*command, code=ClusterUnreachable.exit_code)
    assert "no cluster is configured" in shown


def test_a_missing_extra_is_named(install: Callable[[str], Install]) -> None:
    command = ("evaluate", "--run", "first", "--dataset", "manifest.json")
    shown = install("launch").ddpipe(*command, code=ParameterError.exit_code)
    assert re.search("the command cannot run here: ddpipe evaluate: the package .* is not installed", shown)


def test_prepare_prepares_digits(install: Callable[[str], Install], tmp_path: Path) -> None:
    shown = install("prepare").ddpipe("prepare", "--run", "first", "--json", folder=tmp_path)
    assert (tmp_path / json.loads(shown)["dataset"]).exists()


def test_predict_answers_for_a_package(install: Callable[[str], Install], tmp_path: Path) -> None:
    a_small_package(str(tmp_path / "model"))
    an_image(tmp_path / "a.png")
    shown = install("predict").ddpipe("predict", "model", "a.png", "--json", folder=tmp_path)
    assert set(json.loads(shown)["probabilities"]) == set(CLASSES)
    refused = install("predict").ddpipe("serve", "model", code=ParameterError.exit_code, folder=tmp_path)
    assert "is not installed" in refused


def test_train_runs_all_four_steps(install: Callable[[str], Install], tmp_path: Path) -> None:
    shown = install("train").ddpipe("run", "--run", "first", "--epochs", "1", "--json", folder=tmp_path)
    assert (tmp_path / json.loads(shown)["model"] / "model.onnx").exists()


_MESSAGES = """if True:
    import sys, types, yaml
    from google.protobuf import json_format
    package, folder = sys.argv[1:]
    for name in ("kfp", "kfp.kubernetes"):  # the packages as folders only: their own code needs the whole SDK
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [folder + "/" + name.replace(".", "/")]
    from kfp.kubernetes import kubernetes_executor_config_pb2 as config
    from kfp.pipeline_spec import pipeline_spec_pb2 as spec
    specification, platform = yaml.safe_load_all(open(package).read())
    json_format.ParseDict(specification, spec.PipelineSpec())
    for one in platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
        json_format.ParseDict(one, config.KubernetesExecutorConfig())
"""
"""Fails where a package has a field that a release's messages do not have: its servers would refuse it."""


@pytest.mark.parametrize("release", ["2.15.0", "2.15.2", "2.16.0", "2.16.1", "2.17.0", "2.17.3"])
def test_every_supported_release_reads_the_packages(release: str, tmp_path: Path) -> None:
    wanted = (f"kfp-pipeline-spec=={release}", f"kfp-kubernetes=={release}")
    _run([UV, "pip", "install", "--quiet", "--no-deps", "--target", tmp_path, *wanted])
    for path in COMMITTED.glob("*.yaml"):
        is_too_new = path.stem.endswith("-dropdowns") and release < "2.16"
        if not is_too_new and not path.stem.endswith("-minikf"):
            _run([sys.executable, "-c", _MESSAGES, path, tmp_path])


@pytest.fixture(scope="module")
def compiled(install: Callable[[str], Install], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `ddpipe compile` writes where only `ddpipe[pipelines]` is installed."""
    folder = tmp_path_factory.mktemp("compiled")
    install("pipelines").ddpipe("compile", "--output", str(folder))
    return folder


def test_pipelines_compiles_what_is_committed(compiled: Path) -> None:
    def files(folder: Path) -> dict[str, str]:
        return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.yaml")}

    assert files(compiled) == files(COMMITTED)


def test_pipelines_submits_and_schedules_as_documented(
    install: Callable[[str], Install], compiled: Path
) -> None:
    pages = (ROOT / "docs/tutorials/notebook.md", ROOT / "docs/guides/recurring.md")
    text = "\n".join(page.read_text() for page in pages)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    script = "\n".join(block for block in blocks if "client" in block)
    with a_backend() as (endpoint, asked):
        install("pipelines").python(script, compiled, KF_PIPELINES_ENDPOINT=endpoint)
    made = {path.rpartition("/")[2]: body for path, body in asked}
    package = made["runs"]["pipeline_spec"]["pipeline_spec"]
    assert package["pipelineInfo"]["name"] == "ddpipe-training"
    assert made["recurringruns"]["trigger"]["cron_schedule"]["cron"] == "0 0 2 * * *"


@contextmanager
def a_backend() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A server that accepts anything a client creates; its address, and the objects created."""
    asked: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self._answer({f"{kind}_id": "1" for kind in ("experiment", "run", "recurring_run")})

        def do_GET(self) -> None:
            self._answer({})

        def _answer(self, body: dict[str, str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *arguments: object) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
