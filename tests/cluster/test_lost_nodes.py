"""A node is cut off with a rank on it that lives on, and saves again when the network is back.

Needs DDPIPE_TEST_LAB, a program that harms the cluster's second node; see lost_nodes.py.
"""

from __future__ import annotations

import os
import subprocess
import threading
import uuid
from pathlib import Path

import pytest
from lost_nodes import Run, place_pods
from place import a_place, eventually

from ddpipe.kube.api import ApiServer
from ddpipe.model.checkpoint import newest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_a_rank_behind_a_cut_network_cannot_write_the_run_of_its_successor(
    admin: ApiServer, tmp_path: Path, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = os.environ.get("DDPIPE_TEST_LAB")
    if not lab:
        pytest.skip("no second node: set DDPIPE_TEST_LAB to what harms it")
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    store = f"s3://{s3_environment['S3_BUCKET']}/test-{uuid.uuid4().hex[:8]}"
    away, stop = threading.Event(), threading.Event()
    with a_place(admin, tmp_path) as place:
        # It ignores its end for as long as it may, and tries to save all the while.
        run = Run(place, "master", "OnFailure", store, nodes=1, terminationGracePeriodSeconds=150)
        placing = threading.Thread(target=place_pods, args=([run], away, stop), daemon=True)
        placing.start()
        try:
            assert eventually(run.trains, bool, 500), run.step.text
            away.set()
            cut = subprocess.Popen([lab, "fault", "node2-cut", "200"])
            run.step.saw("was lost with its node", 500)
            assert eventually(run.trains, bool, 100), run.step.text
            assert cut.wait(500) == 0
            refused = eventually(lambda: run.store.exists("refused"), bool, 140)
            assert refused, "the former rank never came to save"
            assert b"another process has taken over this training" in run.store.read("refused")
            assert run.trains(), "its successor is not harmed"
            saved = newest(run.store)
            assert saved is not None
            assert saved[0].file.startswith("checkpoints/0002-")
            run.end()
        finally:
            stop.set()
            placing.join()
            run.step.process.kill()
    assert run.step.process.returncode == 0, run.step.text
