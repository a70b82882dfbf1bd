"""A prepare killed at any moment: never a broken version, and the next one continues from what exists."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest
from samples import an_image

from ddpipe.data.catalogue import damage, shards_of
from ddpipe.data.manifest import load_manifest
from ddpipe.data.versions import versions
from ddpipe.prepare.entries import read_entries
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.storage import open_store

IMAGES = 120
KILLS = 20

SCRIPT = """
import os, signal, sys
from pathlib import Path
from threading import Lock
from ddpipe.data import shards
from ddpipe.prepare import packing
from ddpipe.prepare.encoding import Jpeg
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec

path, store, *points = sys.argv[1:]
shards.SHARD_BYTES = 10_000
spec = PrepareSpec(
    source="folder", source_path=path, dataset_name="photos", store=store, image_format="jpeg", image_size=48
)

def dying_at(point, function, lock=Lock(), calls=[0]):
    def counted(*arguments):
        with lock:
            calls[0] += 1
            if calls[0] == point:
                os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return counted

# Each child counts images that are encoded and objects that take their place, and dies at the given one.
for point in map(int, points):
    if not (child := os.fork()):
        Jpeg.encode, Path.replace = dying_at(point, Jpeg.encode), dying_at(point, Path.replace)
        prepare(spec)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_twenty_kills_at_random_points_break_nothing(tmp_path: Path) -> None:
    for number in range(IMAGES):
        an_image(
            tmp_path / "photos" / "ab"[number % 2] / f"{number}.jpg", (160, 120), mode="RGB", seed=number
        )
    path, folder = str(tmp_path / "photos"), tmp_path / "store"
    store = open_store(str(folder))
    spec = PrepareSpec(
        source="folder",
        source_path=path,
        dataset_name="photos",
        store=str(folder),
        image_format="jpeg",
        image_size=48,
    )
    whole = prepare(replace(spec, store=f"{folder}-2")).manifest.source
    chance = random.Random(0)
    points = [str(chance.randint(1, IMAGES)) for _ in range(3 * KILLS)]
    command = [sys.executable, "-c", SCRIPT, path, str(folder), *points]
    kills, stored = 0, [0]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        while kills < KILLS:
            kills += int(process.stdout.readline()) == -signal.SIGKILL
            for version in versions(store):
                manifest = load_manifest(version.uri)
                assert (manifest.source, damage(shards_of(manifest), store)) == (whole, {})
            stored.append(sum(len(entry.members) for entry in read_entries(store, "photos")))
            if versions(store):  # this one was done before its point: the next starts again
                shutil.rmtree(folder)
            print(file=process.stdin, flush=True)
        process.kill()
    finished = prepare(spec)
    assert (finished.manifest.source, damage(shards_of(finished.manifest), store)) == (whole, {})
    assert max(stored) > 0, "some had stored something"
    assert finished.encoded == IMAGES - stored[-1], "what the last one had stored is taken over"
