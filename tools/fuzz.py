"""Feeds damaged files and requests to everything that reads what strangers write, and counts what happens.

    python tools/fuzz.py --seconds 600 [--only images] [--first 0]

Each case is made from its number: `--only TARGET --first N --cases 1` repeats one. A case may be answered, or
refused by an error of ddpipe's own. Anything else is a finding, also 30 s without an end, or 2 GiB of memory.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gzip
import hashlib
import importlib
import io
import json
import pickle
import random
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

LONGEST = 30  # seconds of a case
MOST_MEMORY = 2 * 2**30  # bytes of a process, which has all libraries loaded
CASES = 200  # of a process

ODD = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    1e308,
    float("nan"),
    "",
    "\ud800",
    "\x1b[2J",
    "../x",
    "=1+1",
    [],
    {},
    [[]] * 9,
)
"""Values that are legal JSON, and that no writer of ours writes."""


def main() -> None:
    """Run cases until the time is up; the exit code says whether anything was found."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=600)
    arguments.add_argument("--only", choices=TARGETS)
    arguments.add_argument("--first", type=int, default=0)
    arguments.add_argument("--cases", type=int, default=CASES)
    arguments.add_argument("--here", action="store_true", help="run the cases in this process")
    given = arguments.parse_args()
    if given.here:
        _run(given.only, range(given.first, given.first + given.cases))
        return
    until, total, found = time.monotonic() + given.seconds, Counter[str](), list[str]()
    starts = {name: count(given.first, given.cases) for name in TARGETS}
    for name in cycle([given.only] if given.only else TARGETS):
        first = next(starts[name])
        command = [sys.executable, __file__, "--here", "--only", name, "--first", str(first)]
        done = subprocess.run(
            [*command, "--cases", str(given.cases)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        lines = [line.split(" ", 3) for line in done.stdout.splitlines() if line.startswith(f"{name} ")]
        total.update(f"{name} {line[2]}" for line in lines if line[2] != "begun")
        found += [" ".join(line) for line in lines if line[2] == "found"]
        if done.returncode:
            found.append(
                f"{name} {lines[-1][1] if lines else first}: the process ended with {done.returncode}"
            )
        if time.monotonic() > until or given.cases == 1:
            break
    for line in [*(f"{what}: {number:,}" for what, number in sorted(total.items())), *found]:
        sys.stdout.write(f"{line}\n")
    sys.exit(bool(found))


def _run(name: str, cases: range) -> None:
    from ddpipe.errors import DdpipeError  # noqa: PLC0415 - the parent needs nothing of ddpipe
    from ddpipe.serve.protocol import WrongRequest  # noqa: PLC0415
    from ddpipe.sources.base import Unreadable  # noqa: PLC0415

    importlib.import_module("onnx_packages")  # and with it nearly everything, which takes its time
    target = TARGETS[name]
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("no end")))
    with tempfile.TemporaryDirectory() as folder:
        for number in cases:
            sys.stdout.write(f"{name} {number} begun\n")
            sys.stdout.flush()
            signal.alarm(LONGEST)
            try:
                target(random.Random(f"{name} {number}"), Path(folder))
                result = "answered"
            except (DdpipeError, Unreadable, WrongRequest):
                result = "refused"
            except Exception as error:  # noqa: BLE001 - this is what is looked for
                place = traceback.extract_tb(error.__traceback__)[-1]
                result = f"found {type(error).__name__} at {place.filename}:{place.lineno}: {error}"[:300]
            signal.alarm(0)
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_MEMORY:
                sys.stdout.write(f"{name} {number} found memory\n")
                sys.exit(1)
            sys.stdout.write(f"{name} {number} {' '.join(result.split())}\n")
            sys.stdout.flush()


def damaged(numbers: random.Random, content: bytes) -> bytes:
    """The content with a few changes: bytes, pieces cut, doubled or moved, numbers at their limits."""
    data = bytearray(content)
    for _ in range(numbers.choice([1, 1, 2, 4, 16])):
        at = numbers.randrange(len(data) + 1)
        match numbers.randrange(6):
            case 0:
                data[at : at + 1] = bytes([numbers.randrange(256)])
            case 1:
                data[at : at + 4] = numbers.choice(
                    [b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\0\0\0\x80"]
                )
            case 2:
                del data[at : at + numbers.randrange(1, 64)]
            case 3:
                data[at:at] = data[max(0, at - numbers.randrange(64)) : at]
            case 4:
                del data[at:]
            case _:
                data[at:at] = numbers.randbytes(numbers.randrange(1, 32))
    return bytes(data)


def odd_json(numbers: random.Random, value: Any) -> Any:  # noqa: ANN401 - JSON
    """The value with one part of it replaced, left out or nested."""
    if isinstance(value, dict) and value and numbers.random() < 0.8:  # noqa: PLR2004
        key = numbers.choice(list(value))
        match numbers.randrange(8):
            case 0:
                return {name: part for name, part in value.items() if name != key}
            case 1:
                return {**value, numbers.choice(["schema", "kind", "\x1b", "extra"]): numbers.choice(ODD)}
        return {**value, key: odd_json(numbers, value[key])}
    if isinstance(value, list) and value and numbers.random() < 0.8:  # noqa: PLR2004
        at = numbers.randrange(len(value))
        return [*value[:at], odd_json(numbers, value[at]), *value[at + 1 :]]
    if isinstance(value, int) and numbers.random() < 0.5:  # noqa: PLR2004
        return value + numbers.choice([-1, 1, 10, 2**20, 2**40])
    return numbers.choice(ODD)


def _json(numbers: random.Random, content: bytes) -> bytes:
    if numbers.random() < 0.3:  # noqa: PLR2004
        return damaged(numbers, content)
    return json.dumps(odd_json(numbers, json.loads(content))).encode()


@cache
def _pictures() -> tuple[bytes, ...]:
    """A small file of each kind."""
    import pictures  # noqa: PLC0415 - a helper of the tests

    made = []
    for mode, kind in [
        *(("L", kind) for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")),
        *(("RGB", "PNG"), ("RGBA", "PNG"), ("P", "GIF"), ("I;16", "PNG"), ("CMYK", "JPEG"), ("1", "TIFF")),
    ]:
        buffer = io.BytesIO()
        image = Image.fromarray((np.arange(24 * 16) % 251).astype(np.uint8).reshape(16, 24))
        (image.convert("I").convert(mode) if mode == "I;16" else image.convert(mode)).save(buffer, kind)
        made.append(buffer.getvalue())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.dcm")
        pictures.dicom_12(path, 1)
        made.append(path.read_bytes())
    return tuple(made)


def _images(numbers: random.Random, _folder: Path) -> None:
    from ddpipe.sources.images import decode, look  # noqa: PLC0415

    data = damaged(numbers, numbers.choice(_pictures()))
    for act in (look, lambda content: decode(content, (16, 24, 1))):
        act(data)


@cache
def _model() -> Any:  # noqa: ANN401 - a Predictor
    from onnx_packages import a_small_package  # noqa: PLC0415

    from ddpipe.serve.predictor import load_model  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        return load_model(a_small_package(folder).folder.store.uri)


@cache
def _server() -> Any:  # noqa: ANN401 - an ASGI application
    from ddpipe.serve.server import Server  # noqa: PLC0415

    return Server(_model(), "m", queue=4).app()


async def _posted(path: str, content: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """The status and body of an answer."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(part: dict[str, Any]) -> None:
        sent.append(part)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    await _server()(scope, receive, send)
    return sent[0]["status"], b"".join(part.get("body", b"") for part in sent)


def _requests(numbers: random.Random, _folder: Path) -> None:
    shape = list(_model().signature.shape)
    pixels = np.zeros(shape, np.uint8).ravel().tolist()
    files = [base64.b64encode(picture).decode() for picture in numbers.sample(_pictures(), 2)]
    body = numbers.choice(
        [
            {
                "id": "a",
                "inputs": [{"name": "images", "datatype": "UINT8", "shape": [1, *shape], "data": pixels}],
            },
            {"inputs": [{"name": "files", "datatype": "BYTES", "shape": [2], "data": files}]},
        ]
    )
    content = _json(numbers, json.dumps(body).encode())
    given = {"Inference-Header-Content-Length": str(numbers.randrange(len(content) + 9))}
    path = numbers.choice(["/v2/models/m/infer", "/v2/models/m/infer", "/predict"])
    headers = given if numbers.random() < 0.2 else {}  # noqa: PLR2004
    status, answer = asyncio.run(_posted(path, content, headers))
    json.loads(answer)
    if status not in {200, 400, 404, 413, 503}:
        raise AssertionError(f"status {status}: {answer[:100]!r}")
    if status != 200:  # noqa: PLR2004
        from ddpipe.serve.protocol import WrongRequest  # noqa: PLC0415

        raise WrongRequest


def _onnx(numbers: random.Random, _folder: Path) -> None:
    from onnx_packages import a_signature, an_onnx  # noqa: PLC0415

    from ddpipe.errors import CorruptObject  # noqa: PLC0415
    from ddpipe.model.session import Session  # noqa: PLC0415

    signature = a_signature()
    try:
        Session(damaged(numbers, an_onnx(signature).SerializeToString()), 1).check(signature)
    except ValueError as error:
        raise CorruptObject(what="refused", which="onnx", seen=str(error), do="Nothing.") from error


def _packages(numbers: random.Random, folder: Path) -> None:
    """The seal fits, as a stranger would make it."""
    from model_packages import resealed  # noqa: PLC0415
    from onnx_packages import a_small_package  # noqa: PLC0415

    from ddpipe.model.package import FORMAT, load_package  # noqa: PLC0415
    from ddpipe.serve.predictor import load_model  # noqa: PLC0415

    place = Path(tempfile.mkdtemp(dir=folder))
    a_small_package(str(place), has_pattern=True)
    name = numbers.choice([path.name for path in place.glob("*.json")])
    content = _json(numbers, (place / name).read_bytes())
    if name == FORMAT.seal:
        (place / name).write_bytes(content)
    else:
        resealed(place, FORMAT.seal, name, content)
    load_package(str(place))
    load_model(place).predict(np.zeros((6, 8, 1), np.uint8))


def _manifests(numbers: random.Random, folder: Path) -> None:
    from samples import published, some_images  # noqa: PLC0415

    from ddpipe.data.manifest import SPLITS, load_manifest  # noqa: PLC0415
    from ddpipe.data.reader import open_split  # noqa: PLC0415
    from ddpipe.storage import open_store  # noqa: PLC0415

    store = tempfile.mkdtemp(dir=folder)
    uri = published(open_store(store), {split: [some_images(3)] for split in SPLITS})
    content = _json(numbers, Path(uri).read_bytes())
    place = Path(uri).parents[1] / hashlib.sha256(content).hexdigest()  # as a stranger would name it
    place.mkdir(exist_ok=True)
    (place / "manifest.json").write_bytes(content)
    load_manifest(str(place / "manifest.json"))
    open_split(str(place / "manifest.json"), numbers.choice(SPLITS)).images([0])


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@cache
def _archives() -> dict[str, tuple[str, bytes]]:
    """A source, the name of its file, and the file."""
    pixels = np.zeros((4, 3072), np.uint8)
    batch = pickle.dumps({b"data": pixels, b"labels": [0, 1, 0, 1]}, protocol=4)
    meta = pickle.dumps({b"label_names": [b"a", b"b"]}, protocol=4)
    cifar = {f"c/data_batch_{number}": batch for number in range(1, 6)} | {"c/test_batch": batch}
    images = b"\0\0\x08\x03" + b"".join(number.to_bytes(4, "big") for number in (4, 28, 28)) + bytes(4 * 784)
    labels = b"\0\0\x08\x01" + (4).to_bytes(4, "big") + bytes([0, 1, 0, 1])
    members = {
        f"{number}.{end}": part
        for number in range(4)
        for end, part in (("png", _pictures()[0]), ("cls", b"1"))
    }
    return {
        "cifar10": ("cifar.tar", _tar({**cifar, "c/batches.meta": meta})),
        "webdataset": ("a.tar", _tar(members)),
        "mnist": ("train-images-idx3-ubyte.gz", gzip.compress(images)),
        "mnist labels": ("train-labels-idx1-ubyte.gz", gzip.compress(labels)),
        "csv": ("labels.csv", b"image,label\na.png,x\nb.png,y\n"),
    }


def _sources(numbers: random.Random, folder: Path) -> None:
    from ddpipe.sources.base import Table  # noqa: PLC0415
    from ddpipe.sources.detecting import detected  # noqa: PLC0415
    from ddpipe.sources.named import SOURCES  # noqa: PLC0415

    place = Path(tempfile.mkdtemp(dir=folder))
    kind = numbers.choice(list(_archives()))
    for other, (name, content) in _archives().items():
        if other == kind:
            packed = name.endswith(".gz") and numbers.random() < 0.7  # noqa: PLR2004
            harmed = damaged(numbers, gzip.decompress(content) if packed else content)
            (place / name).write_bytes(gzip.compress(harmed) if packed else harmed)
        elif other.startswith("mnist") and kind.startswith("mnist"):
            (place / name).write_bytes(content)
    for name in ("a.png", "b.png"):
        if kind == "csv":
            (place / name).write_bytes(_pictures()[0])
    found = detected(str(place))
    source = SOURCES[found.source](found.path, Table(file=found.table))
    for sample in islice(source.survey().samples, 3):
        source.read(sample)


TARGETS: dict[str, Callable[[random.Random, Path], None]] = {
    "images": _images,
    "requests": _requests,
    "onnx": _onnx,
    "packages": _packages,
    "manifests": _manifests,
    "sources": _sources,
}

if __name__ == "__main__":
    main()
