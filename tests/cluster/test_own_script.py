"""A training script of somebody's own, which knows nothing of ddpipe, on two pods.

DDPIPE_TEST_OWN_IMAGE names the image of examples/accelerate, as the cluster's nodes can pull it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from place import a_place, missing_image
from step import Step

from ddpipe.kube.api import ApiServer

pytestmark = pytest.mark.cluster


def test_an_accelerate_script_trains_on_two_pods(admin: ApiServer, tmp_path: Path) -> None:
    image = os.environ.get("DDPIPE_TEST_OWN_IMAGE")
    if not image:
        pytest.skip("no image: build examples/accelerate and name it by DDPIPE_TEST_OWN_IMAGE")
    if missing := missing_image(admin, image):
        pytest.skip(missing)
    size = ("--nodes", "2", "--cpu", "400m", "--memory", "1Gi")
    command = ("torchrun", "train.py", "--epochs", "3")
    with a_place(admin, tmp_path) as place:
        ended = Step(place, ["launch", "--image", image, "--run-id", "own", *size, "--", *command], {}).end(
            280
        )
        assert place.jobs() == []
    assert ended.code == 0, ended.text
    reported = re.findall(r"\[worker-0\] epoch=(\d) loss=\S+ accuracy=(\S+)", ended.text)
    assert [epoch for epoch, _ in reported] == ["1", "2", "3"]
    assert float(reported[-1][1]) > 0.8
    assert "[worker-0] 2 processes, bf16" in ended.text
