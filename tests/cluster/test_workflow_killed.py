"""A workflow whose step is killed, or that is stopped: retried, or nothing left of it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.stream import stream
from place import Place, delete, eventually
from workflows import Ran, Submit, has_trained, pods_of

pytestmark = pytest.mark.cluster


def test_a_killed_step_is_retried_and_takes_its_job_up_again(place: Place, submit: Submit) -> None:
    before = place.jobs_ever()
    ran = submit(epochs=150)
    victim = ran.pod_of("train")
    assert eventually(lambda: has_trained(ran), bool), "training never made a step"
    delete(ran.place.admin, f"{pods_of(ran.place)}/{victim}")
    assert ran.ended() == "Succeeded", ran.failure()
    assert place.jobs_ever() == before + 1


def test_what_a_killed_launcher_leaves_is_removed_at_the_end(submit: Submit) -> None:
    ran = submit(epochs=100_000)
    assert eventually(lambda: has_trained(ran), bool), ran.failure()
    _kill_launcher(ran, ran.pod_of("train"))
    assert ran.ended() == "Failed", ran.failure()
    assert any(one["displayName"] == "train" and "137" in one.get("message", "") for one in ran.nodes())
    assert [one["phase"] for one in ran.nodes() if one["displayName"].endswith("onExit")] == ["Succeeded"]
    assert ran.place.jobs() == []


def _kill_launcher(ran: Ran, pod: str) -> None:
    """SIGKILL, as the kernel does it when memory is short; the container's first process is the engine's."""
    script = """if True:
        import os, pathlib
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            if b"ddpipe\\0train" in process.joinpath("cmdline").read_bytes() and process.name != "1":
                os.kill(int(process.name), 9)
    """
    with config.new_client_from_config(os.environ["KUBECONFIG"]) as connection:
        running = stream(
            client.CoreV1Api(connection).connect_get_namespaced_pod_exec,
            pod,
            ran.place.namespace,
            container="main",
            command=["python", "-c", script],
            stdout=True,
            stderr=True,
            _preload_content=False,
        )
        running.run_forever(timeout=30)
        said = running.read_all()
        running.sock.shutdown()  # its own close() leaves a socket open that the server has closed
    assert said == ""


@pytest.mark.parametrize(
    "stop", [{"shutdown": "Terminate"}, {"activeDeadlineSeconds": 0}], ids=["terminated", "deadline"]
)
def test_a_stopped_workflow_leaves_no_job(submit: Submit, stop: dict[str, Any]) -> None:
    ran = submit(epochs=100_000)
    assert eventually(lambda: has_trained(ran), bool), ran.failure()
    ran.place.patch(ran.path, {"spec": stop})
    assert eventually(ran.place.jobs, lambda jobs: not jobs) == []
    assert ran.ended(60) == "Failed"
