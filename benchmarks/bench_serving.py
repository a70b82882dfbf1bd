"""Predicting, serving and evaluating, next to what one would write instead.

    DDPIPE_BENCH_KSERVE=PYTHON python benchmarks/bench_serving.py [--images 256] [--seconds 4] [--rounds 3]

Writes benchmarks/results/serving.md. $DDPIPE_BENCH_KSERVE is the Python of an environment with kserve:
without it, the server is not compared. A small ResNet is trained for one epoch on made pictures, then

    folder      ddpipe's predictions of JPEG files, and a PyTorch loop over the same files
    server      `ddpipe serve` and kserve's example of a custom model: the same picture, 1, 8 and 64 clients
    cold start  processor time from the command to the first answer of the health check
    evaluation  `ddpipe evaluate` of the checkpoint, and a PyTorch loop with scikit-learn's scores
    size        of what each server needs to be installed

The alternatives take turns, and only ratios within a round count. Everything that is measured has one CPU: on
a shared machine, threads that wait for each other measure their neighbors. Rates are per second of processor
time.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from named_recipes import RECIPES
from photographs import compared, table
from PIL import Image

RESULT = Path(__file__).parent / "results" / "serving.md"
SIDE, CLASSES = 64, 4
SIZE = (640, 480)
CLIENTS = (1, 8, 64)
PORTS = {"ddpipe": 18341, "kserve": 18342}
READY = {"ddpipe": "/v2/health/ready", "kserve": "/v2/health/ready"}
CPU = 0
"""On which everything that is measured runs."""

HERE = Path(sysconfig.get_paths()["purelib"])


def pictures(root: Path, count: int) -> Path:
    """JPEG files of four colors with noise, in class folders."""
    random = np.random.default_rng(0)
    width, height = SIZE
    for number in range(count):
        label = number % CLASSES
        small = random.integers(0, 90, (height // 16, width // 16, 3), dtype=np.uint8)
        small[..., label % 3] += 40 * (label + 1) // 2
        path = root / f"color{label}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(small).resize(SIZE, Image.Resampling.BICUBIC).save(path, quality=90)
    return root


def trained(folder: Path, images: Path) -> None:
    """A run with a package."""
    command = [sys.executable, "-m", "ddpipe", "run", str(images), "--run", "bench"]
    command += ["--recipe", json.dumps(RECIPES["plain"])]
    options = {
        "model": "resnet18",
        "epochs": "1",
        "image-size": str(SIDE),
        "resolution": "0",
        "pretrained": "none",
        "test-fraction": "0.7",  # which evaluation scores
    }
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    subprocess.run([*command, *given], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def loop_over_files(package: Path, files: list[Path]) -> float:
    """Images per processor second of the loop that one would write: decode, crop, batches of 32, softmax."""
    import torch  # noqa: PLC0415

    model = _network(package)
    started = processor_seconds()
    for start in range(0, len(files), 32):
        batch = np.stack([_cropped(file) for file in files[start : start + 32]])
        with torch.no_grad():
            torch.softmax(model(torch.from_numpy(batch)), 1).numpy()
    return len(files) / (processor_seconds() - started)


def loop_with_loader(package: Path, files: list[Path]) -> float:
    """The same with PyTorch's DataLoader and a worker."""
    import torch  # noqa: PLC0415
    from torch.utils.data import DataLoader  # noqa: PLC0415

    model = _network(package)
    started = processor_seconds()
    for batch in DataLoader(files, batch_size=32, num_workers=1, collate_fn=_stacked):  # type: ignore[arg-type]
        with torch.no_grad():
            torch.softmax(model(batch), 1).numpy()
    return len(files) / (processor_seconds() - started)


def _stacked(files: list[Path]) -> object:
    import torch  # noqa: PLC0415

    return torch.from_numpy(np.stack([_cropped(file) for file in files]))


def _cropped(file: Path) -> np.ndarray:
    with Image.open(file) as opened:
        scale = SIDE / min(opened.size)
        image = opened.convert("RGB").resize(
            (round(opened.width * scale), round(opened.height * scale)), Image.Resampling.BICUBIC
        )
    left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
    return np.asarray(image.crop((left, top, left + SIDE, top + SIDE)))


def _network(package: Path):  # noqa: ANN202 - torch is not imported yet
    from safetensors.torch import load_file  # noqa: PLC0415

    from ddpipe.model.classifier import Classifier, build  # noqa: PLC0415
    from ddpipe.model.package import load_package  # noqa: PLC0415

    signature = load_package(str(package)).signature
    network = build(signature.architecture, signature.shape, len(signature.classes))
    model = Classifier(network, [0.0] * signature.shape[2], [1.0] * signature.shape[2])
    model.load_state_dict(load_file(package / "model.safetensors"))
    return model.eval()


def ours(package: Path, files: list[Path]) -> float:
    """Images per processor second of `load_model(...).predict`."""
    from ddpipe.serve.predictor import load_model  # noqa: PLC0415

    model = load_model(package, threads=1)
    started = processor_seconds()
    assert not any(one.problem for one in model.predict(files))
    return len(files) / (processor_seconds() - started)


def by_folder(package: Path, files: list[Path], rounds: int) -> str:
    rates = in_turns(
        {
            "PyTorch, a loop": lambda: loop_over_files(package, files),
            "PyTorch, DataLoader with a worker": lambda: loop_with_loader(package, files),
            "ddpipe predict": lambda: ours(package, files),
        },
        rounds,
    )
    header = ("what", "images per processor second", "to ddpipe")
    return table(f"Predicting {len(files)} JPEG files", header, compared(rates, "ddpipe predict"))


def processor_seconds() -> float:
    """Of this process and its children that have ended."""
    return sum(os.times()[:4])


def in_turns(what: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each function gives, by name and round."""
    found: dict[str, list[float]] = {name: [] for name in what}
    for _ in range(rounds):
        for name, function in what.items():
            found[name].append(function())
    return found


def evaluation(folder: Path, package: Path, rounds: int) -> str:
    """Of the test split, which has most images here, and of validation, which chooses the temperature.

    Both read the model's file first.
    """
    from ddpipe.data.reader import open_split  # noqa: PLC0415
    from ddpipe.evaluate.evaluate import evaluate  # noqa: PLC0415

    dataset = str(next((folder / "store").glob("datasets/*/*/manifest.json")))
    splits = [open_split(dataset, name) for name in ("test", "validation")]
    images_of_both = sum(len(split) for split in splits)

    def loop() -> float:
        import torch  # noqa: PLC0415
        from sklearn import metrics  # noqa: PLC0415

        started = processor_seconds()
        model = _network(package)
        parts: list[list[np.ndarray]] = []
        for split in splits:
            parts.append([])
            for start in range(0, len(split), 64):
                images = split.images(range(start, min(start + 64, len(split))))
                with torch.no_grad():
                    parts[-1].append(torch.softmax(model(torch.from_numpy(images)), 1).numpy())
        samples, probabilities = splits[0], np.concatenate(parts[0])
        said = probabilities.argmax(axis=1)
        metrics.accuracy_score(samples.labels, said)
        metrics.f1_score(samples.labels, said, average="macro")
        metrics.confusion_matrix(samples.labels, said)
        metrics.roc_auc_score(samples.labels, probabilities, multi_class="ovr")
        return images_of_both / (processor_seconds() - started)

    def whole() -> float:
        started = processor_seconds()
        evaluate(str(folder / "runs/bench/training"), dataset, str(folder / "assessed"))
        return images_of_both / (processor_seconds() - started)

    rates = in_turns({"PyTorch and scikit-learn, a loop": loop, "ddpipe evaluate": whole}, rounds)
    title = f"Evaluating {images_of_both} images; ddpipe's with temperature, intervals, curves and files"
    return table(
        title, ("what", "images per processor second", "to ddpipe"), compared(rates, "ddpipe evaluate")
    )


def commands(package: Path, python: str) -> dict[str, list[str]]:
    """How each server is started."""
    serve = ["serve", str(package), "--port", str(PORTS["ddpipe"]), "--name", "photos", "--queue", "128"]
    example = Path(__file__).parent / "loops" / "kserve_example.py"
    kserve = [python, str(example), str(package), str(PORTS["kserve"]), str(HERE)]
    pinned = ["taskset", "-c", str(CPU)]
    return {"ddpipe": [*pinned, sys.executable, "-m", "ddpipe", *serve], "kserve": [*pinned, *kserve]}


@contextmanager
def server(name: str, command: list[str]) -> Iterator[tuple[int, float]]:
    """A server, a process of its own; yields its id, and the processor seconds until it was ready."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "components")}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while not _is_ready(name):
                assert process.poll() is None, f"{name} ended"
                time.sleep(0.02)
            yield process.pid, used_by(process.pid)
        finally:
            process.terminate()


def used_by(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_ready(name: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", PORTS[name], timeout=5)
    try:
        connection.request("GET", READY[name])
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def request_of(name: str, picture: bytes) -> tuple[str, bytes]:
    """Path and body of a request about one picture."""
    text = base64.b64encode(picture).decode()
    if name == "kserve":
        return "/v1/models/photos:predict", json.dumps({"instances": [{"image": {"b64": text}}]}).encode()
    tensor = {"name": "files", "datatype": "BYTES", "shape": [1], "data": [text]}
    return "/v2/models/photos/infer", json.dumps({"inputs": [tensor]}).encode()


def latencies(name: str, picture: bytes, clients: int, seconds: float) -> list[float]:
    """Milliseconds of each answered request of so many clients, each with one connection."""
    path, body = request_of(name, picture)
    found: list[float] = []
    until = time.perf_counter() + seconds

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", PORTS[name], timeout=120)
        while time.perf_counter() < until:
            started = time.perf_counter()
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, (name, answer.status)
            found.append(1000 * (time.perf_counter() - started))
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def by_server(package: Path, picture: bytes, python: str, seconds: float, rounds: int) -> str:
    figures: dict[str, dict[str, list[float]]] = {}

    def note(figure: str, name: str, value: float) -> None:
        figures.setdefault(figure, {}).setdefault(name, []).append(value)

    for _ in range(rounds):
        for name, command in commands(package, python).items():
            with server(name, command) as (pid, start):
                note("cold start, processor seconds", name, start)
                latencies(name, picture, 1, 0.5)  # the first requests allocate
                for clients in CLIENTS:
                    before = used_by(pid)
                    taken = latencies(name, picture, clients, seconds)
                    who = f"{clients} client{'s' if clients > 1 else ''}"
                    note(f"{who}: p50, ms", name, float(np.quantile(taken, 0.5)))
                    note(f"{who}: p99, ms", name, float(np.quantile(taken, 0.99)))
                    note(
                        f"{who}: processor time per answer, ms",
                        name,
                        1000 * (used_by(pid) - before) / len(taken),
                    )
    rows: list[tuple[object, ...]] = [(figure, *_pair(values)) for figure, values in figures.items()]
    header = ("figure", "ddpipe serve", "kserve's example", "ratio")
    return table("Serving one picture per request", header, rows)


def _pair(values: Mapping[str, list[float]]) -> tuple[str, ...]:
    ratios = [ours / theirs for ours, theirs in zip(values["ddpipe"], values["kserve"], strict=True)]
    shown = [f"{statistics.median(values[name]):,.2f}" for name in ("ddpipe", "kserve")]
    return (*shown, f"{statistics.median(ratios):.2f}")


def size(python: str) -> str:
    """Megabytes of installed packages: ours from its lock, kserve's with torch's CPU libraries only."""
    with tempfile.TemporaryDirectory() as folder:
        uv, lock = (
            Path(sys.executable).with_name("uv"),
            Path(__file__).parents[1] / "requirements-predictor.txt",
        )
        subprocess.run([uv, "pip", "install", "-q", "--target", folder, "--no-deps", "-r", lock], check=True)
        own = _megabytes(Path(folder))
    query = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    theirs = Path(
        subprocess.run([python, "-c", query], capture_output=True, text=True, check=True).stdout.strip()
    )
    torch = sum(_megabytes(HERE / name, "cuda") for name in ("torch", "torchvision", "sympy", "networkx"))
    rows = [
        ("ddpipe-predictor", f"{own:,.0f}"),
        ("kserve, torch and torchvision", f"{_megabytes(theirs) + torch:,.0f}"),
    ]
    return table(
        "Installed packages, without Python and the system; torch without CUDA's libraries",
        ("what", "MB"),
        rows,
    )


def _megabytes(folder: Path, without: str = "?") -> float:
    files = (file for file in folder.rglob("*") if file.is_file() and without not in file.name)
    return sum(file.stat().st_size for file in files) / 1e6


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--images", type=int, default=256)
    options.add_argument("--seconds", type=float, default=4)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    python = os.environ.get("DDPIPE_BENCH_KSERVE")
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    os.sched_setaffinity(0, {CPU})
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = sorted(pictures(folder / "photos", given.images).rglob("*.jpg"))
        trained(folder, folder / "photos")
        package = folder / "runs/bench/model"
        what: list[Callable[[], str]] = [lambda: by_folder(package, files, given.rounds)]
        if python:
            picture = files[0].read_bytes()
            what += [
                lambda: by_server(package, picture, python, given.seconds, given.rounds),
                lambda: size(python),
            ]
        what.append(lambda: evaluation(folder, package, given.rounds))
        parts: list[str] = []
        for part in what:
            parts.append(part())
            print(parts[-1], flush=True)  # noqa: T201 - what it is for
    RESULT.write_text("# Serving\n\n" + "\n".join(parts))


if __name__ == "__main__":
    main()
