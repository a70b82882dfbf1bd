"""The pictures of Kubeflow's UI that are in docs/: the form, and a run's graph.

    KFP_ENDPOINT=http://127.0.0.1:8888 KFP_UI=http://127.0.0.1:3000 python tests/cluster/pictures.py

Uploads the package with drop-downs, runs it on two pods, waits for its end, and looks with a headless
Chromium. KUBECONFIG, DDPIPE_TEST_IMAGES and the object store are those of test_kfp.py. Its pipeline and
experiment stay.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from kfp import Client
from kfp_run import Run, package_with_test_images
from place import eventually

from ddpipe.launch.cluster import connect
from ddpipe.pipelines.compile import COMPILED
from ddpipe.pipelines.training import TRAINING

DOCS = Path(__file__).parents[2] / "docs"
SMALL = {"nodes": 2, "cpu": "400m", "memory": "2Gi", "epochs": 3, "step_memory": "2Gi"}
TITLE = "digits on two pods"


def main() -> None:
    """Run the pipeline and take the pictures."""
    client, ui = Client(host=os.environ["KFP_ENDPOINT"]), os.environ["KFP_UI"]
    name = f"ddpipe-training-{uuid.uuid4().hex[:6]}"
    with tempfile.TemporaryDirectory() as folder:
        package = package_with_test_images(COMPILED / f"{TRAINING.name}-dropdowns.yaml", Path(folder))
        pipeline = client.upload_pipeline(package, pipeline_name=name).pipeline_id
        version = client.list_pipeline_versions(pipeline).pipeline_versions[0].pipeline_version_id
        experiment = client.create_experiment("pictures").experiment_id
        take(f"{ui}/#/runs/new?pipelineId={pipeline}&pipelineVersionId={version}", DOCS / "form.png", 2320)
        made = client.run_pipeline(
            experiment, TITLE, pipeline_id=pipeline, version_id=version, params=TRAINING.filled(SMALL)
        )
    run = Run(client, connect(), made.run_id, f"s3://mlpipeline/ddpipe/runs/{made.run_id}")
    if run.ended() != "SUCCEEDED":
        sys.exit(run.told())
    take(f"{ui}/#/runs/details/{run.id}", DOCS / "graph.png", 1000)


def take(url: str, file: Path, height: int) -> None:
    """A picture of a page, once it shows something."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        sys.exit("no Chromium here: install it")

    def taken() -> bool:
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        waiting = "--virtual-time-budget=20000"
        size = (f"--window-size=1000,{height}", f"--screenshot={file}")
        subprocess.run([chromium, *options, waiting, *size, url], check=True, capture_output=True)
        return file.stat().st_size > 40_000  # less is an empty page

    eventually(taken, bool, 120)


if __name__ == "__main__":
    main()
