"""A prepare killed at any moment: never a broken version, and the next one goes on from what is there."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from samples import an_image

from ddpipe.data.catalogue import damage, versions
from ddpipe.data.manifest import load_manifest
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.storage import open_store

IMAGES = 240
KILLS = 20

SCRIPT = """
import sys
from ddpipe.prepare import packing
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.spec import PrepareSpec
packing.SHARD_BYTES = 20_000
spec = PrepareSpec(
    source="folder", source_path=sys.argv[1], dataset_name="photos", store=sys.argv[2],
    image_format="jpeg", image_size=48,
)
print("ready", flush=True)
prepare(spec)
"""


def test_twenty_kills_at_random_moments_break_nothing(tmp_path: Path) -> None:
    for number in range(IMAGES):
        an_image(
            tmp_path / "photos" / "ab"[number % 2] / f"{number}.jpg", (160, 120), mode="RGB", seed=number
        )
    path, store = str(tmp_path / "photos"), str(tmp_path / "store")
    moments = random.Random(0)
    for _ in range(KILLS):
        with subprocess.Popen([sys.executable, "-c", SCRIPT, path, store], stdout=subprocess.PIPE) as process:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            time.sleep(moments.uniform(0, 0.3))
            process.kill()
        for version in versions(open_store(store)):
            assert damage(load_manifest(version.uri), open_store(store)) == []
    spec = PrepareSpec(
        source="folder",
        source_path=path,
        dataset_name="photos",
        store=store,
        image_format="jpeg",
        image_size=48,
    )
    finished = prepare(spec)
    assert finished.encoded < IMAGES, "what the killed ones stored is taken over"
    assert sum(len(split.sample_ids) for split in finished.manifest.splits.values()) == IMAGES
    assert damage(finished.manifest, open_store(store)) == []
