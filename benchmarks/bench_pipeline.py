"""The overhead of the engine: a whole run on Argo, from submission to end, and the time of its containers.

    DDPIPE_TEST_IMAGES=... S3_ENDPOINT=... python benchmarks/bench_pipeline.py [--runs 3]

Writes benchmarks/results/pipeline.md. Needs what tests/cluster/test_workflow.py needs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from place import STORE_SECRET, Place, a_place  # noqa: E402
from test_workflow import SMALL, Ran, pods_of, workflow_of, workflows_of  # noqa: E402

from ddpipe.kube.api import ApiServer, connect  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "pipeline.md"


def seconds(began: str, ended: str) -> float:
    """Between two moments as Kubernetes writes them."""
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


def containers(place: Place, workflow: str) -> dict[str, float]:
    """Seconds of each step's own container, in the order of their starts."""
    query = {"labelSelector": f"workflows.argoproj.io/workflow={workflow}"}
    found = []
    for pod in place.admin.get(pods_of(place), query)["items"]:
        node = pod["metadata"]["annotations"]["workflows.argoproj.io/node-name"]
        step = node.rpartition(".")[2].partition("(")[0]
        main = next(one for one in pod["status"]["containerStatuses"] if one["name"] == "main")
        ended: dict[str, Any] = main["state"]["terminated"]
        found.append((ended["startedAt"], step, seconds(ended["startedAt"], ended["finishedAt"])))
    return {step: own for _, step, own in sorted(found)}


def measured(place: Place, number: int) -> tuple[float, dict[str, float]]:
    """Seconds from the workflow's creation to its end, and of its containers."""
    root = f"s3://mlpipeline/ddpipe-bench-{uuid.uuid4().hex[:8]}"
    parameters = {**SMALL, "runs": f"{root}/runs", "store": f"{root}/store", "split_seed": number}
    made = place.admin.create(workflows_of(place), workflow_of(parameters))
    ran = Ran(place, made["metadata"]["name"], f"{root}/runs")
    if ran.ended() != "Succeeded":
        sys.exit(ran.failure())
    seen = ran.seen()
    wall = seconds(seen["metadata"]["creationTimestamp"], seen["status"]["finishedAt"])
    return wall, containers(place, ran.name)


def runs(admin: ApiServer, count: int) -> Iterator[str]:
    """The table."""
    with tempfile.TemporaryDirectory() as folder, a_place(admin, Path(folder)) as place:
        secret = admin.get(f"/api/v1/namespaces/kubeflow/secrets/{STORE_SECRET}")
        place.create("/api/v1/secrets", {**secret, "metadata": {"name": STORE_SECRET}})
        found = [measured(place, number) for number in range(count)]
    steps = {name: statistics.median(own[name] for _, own in found) for name in found[0][1]}
    yield f"| what | seconds, median of {count} |"
    yield "|---|---|"
    yield f"| from submission to the end | {statistics.median(wall for wall, _ in found):.0f} |"
    for name, median in steps.items():
        yield f"| of these: the container of {name} | {median:.0f} |"
    rest = statistics.median(wall - sum(own.values()) for wall, own in found)
    yield f"| the rest: scheduling, pod starts, artifacts | {rest:.0f} |"


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    lines = list(runs(connect(), parser.parse_args().runs))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("\n".join([*lines, ""]))
    print(RESULTS.read_text())  # noqa: T201


if __name__ == "__main__":
    main()
