"""Write the files that later versions of ddpipe have to read: tests/golden/formats/VERSION.tar.gz.

    git worktree add ../ddpipe-VERSION COMMIT
    PYTHONPATH=../ddpipe-VERSION/components:tests/support python tests/support/write_formats.py FOLDER

FOLDER/bucket is what an S3 bucket holds then, so that the URIs in the files stay valid wherever it is copied:
four datasets (raw, JPEG, whole, several labels), two finished runs, each of which became the champion, and a
run that was interrupted in its training. FOLDER/studies holds a study.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image
from s3_server import BUCKET, CREDENTIALS, Server, running

from ddpipe.storage import open_store

EPOCHS = 6
STORE, RUNS = f"s3://{BUCKET}/store", f"s3://{BUCKET}/runs"
TINY = ("--model", "tiny_network:tiny", "--batch-size", "8", "--runs", RUNS)
NEVER_READ = ("html", "tensorboard", "trials")
"""Parts of keys that are for people only, or name folders of the machine that wrote them."""


def training(run: str, *more: str) -> tuple[str, ...]:
    """The command of a run on the dataset `blocks`."""
    dataset = next(key for key in _keys("store/datasets/blocks/") if key.endswith("manifest.json"))
    return (
        *("run", "--dataset", f"s3://{BUCKET}/{dataset}", "--store", STORE, "--run", run),
        *(*TINY, "--epochs", str(EPOCHS), "--learning-rate", "0.2", *more),
    )


def pictures(folder: Path, side: int = 8, width: int = 0) -> Path:
    """Noise in two classes, dark and light, 20 images each, and a table with two labels for each image."""
    random, rows = np.random.default_rng(0), ["image,light,odd"]
    for number in range(40):
        light = number % 2
        path = folder / ("dark", "light")[light] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 128, (side, width or side), dtype=np.uint8) + 100 * light
        Image.fromarray(pixels.astype(np.uint8)).save(path)
        rows.append(f"{path.relative_to(folder)},{light},{number // 2 % 2}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


def write(folder: Path) -> None:
    """Run the commands, one after the other, and copy what they have written."""
    with TemporaryDirectory() as work, running() as server:
        server.reset()
        os.environ.update(CREDENTIALS, S3_ENDPOINT=server.endpoint, DDPIPE_CACHE=f"{work}/cache")
        _write_bucket(Path(work))
        studies = ("--study", str(folder / "studies/old"), "--search", "learning_rate")
        _ddpipe("tune", *training("")[1:5], *TINY[:4], "--epochs", "2", "--trials", "2", *studies)
        _save(server, folder / "bucket")
    for path in [*folder.rglob("*")][::-1]:
        if path.is_file() and any(part in str(path) for part in NEVER_READ):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _write_bucket(work: Path) -> None:
    small = pictures(work / "pictures")
    prepare = ("prepare", "--store", STORE, "--test-fraction", "0.25", "--dataset-name")
    _ddpipe(*prepare, "blocks", "--source", "folder", "--source-path", str(small))
    for name, sides in {"large": (100,), "whole": (8, 24)}.items():
        _ddpipe(*prepare, name, "--source", "folder", "--source-path", str(pictures(work / name, *sides)))
    table = ("--source", "csv", "--table", "labels.csv", "--image-column", "image")
    _ddpipe(*prepare, "labels", "--source-path", str(small), *table, "--label-columns", "light,odd")
    _ddpipe(*training("first", "--gate-model", "blocks"))
    _ddpipe(*training("second", "--gate-model", "blocks", "--seed", "1", "--gate-gain", "-1"))
    _interrupt(training("interrupted"))


def _ddpipe(*command: str) -> None:
    subprocess.run([sys.executable, "-m", "ddpipe", *command], check=True)


def _interrupt(command: tuple[str, ...]) -> None:
    """Stop the training after its second epoch."""
    slow = {**os.environ, "TINY_SECONDS": "0.5"}
    with subprocess.Popen([sys.executable, "-m", "ddpipe", *command], env=slow) as process:
        while not _has_epoch(2):
            assert process.poll() is None, "it has ended"
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
    assert process.returncode, "it has succeeded"


def _has_epoch(epoch: int) -> bool:
    found = [key for key in _keys("runs/interrupted/training/checkpoints/") if key.endswith("latest.json")]
    pointers = [json.loads(open_store(f"s3://{BUCKET}").read(key)) for key in found]
    return any(len(pointer["checkpoints"]) >= epoch for pointer in pointers)


def _keys(prefix: str) -> list[str]:
    return [item.key for item in open_store(f"s3://{BUCKET}").list(prefix)]


def _save(server: Server, folder: Path) -> None:
    for key in _objects(server):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        server.client.fget_object(BUCKET, key, str(path))


def _objects(server: Server) -> Iterator[str]:
    for item in server.client.list_objects(BUCKET, recursive=True):
        assert item.object_name
        yield item.object_name


if __name__ == "__main__":
    write(Path(sys.argv[1]))
