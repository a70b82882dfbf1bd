"""What a training job is, and what its name promises."""

from __future__ import annotations

import re

import pytest
from launch_samples import a_job

from ddpipe.errors import ParameterError
from ddpipe.jobs import trainjob
from ddpipe.jobs.backend import Backend, all_backends
from ddpipe.jobs.job import Owner, training_command
from ddpipe.jobs.options import Keep, Volume, VolumeKind
from ddpipe.kube.capacity import quantity


def owner(**changes: str) -> Owner:
    return Owner(**{"pipeline": "digits", "run_id": "run-1", "step": "train", **changes})


def test_a_retry_of_the_step_has_the_same_name() -> None:
    assert owner().job_name == owner().job_name


@pytest.mark.parametrize("part", ["pipeline", "run_id", "task_id", "step"])
def test_another_run_task_or_step_has_another_name(part: str) -> None:
    assert owner(**{part: "other"}).job_name != owner().job_name


@pytest.mark.parametrize("step", ["train", "Train the model!", "7th", "", "日本", "a" * 200])
def test_a_name_is_a_dns_1035_label_with_room_for_the_rank(step: str) -> None:
    name = owner(step=step).job_name
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(f"{name}-worker-99999") <= 63


def test_an_owner_is_known_again_by_its_key() -> None:
    assert Owner.of_key(owner(task_id="7").key) == owner(task_id="7")
    with pytest.raises(ValueError, match="digits"):
        Owner.of_key('["digits"]')


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("2", 2), ("4Gi", 4 * 2**30), ("1e3", 1000), ("1k", 1000), ("1E", 1e18), ("2Ei", 2**61)],
)
def test_quantities_are_read_as_kubernetes_does(text: str, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


def test_all_problems_of_a_job_are_reported_at_once() -> None:
    job = a_job(image="", cpu="much", memory="0", deadlines={"running": -1}, volumes=["disk:a:/b"])
    with pytest.raises(ParameterError) as caught:
        job.validated()
    for words in (
        "5 problems",
        "`image` is empty",
        "'disk:a:/b' is not KIND:NAME",
        "`cpu` is 'much'",
        "`memory` is 0",
        "running is -1",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "volume"),
    [
        ("claim:data:/data", Volume(kind=VolumeKind.CLAIM, name="data", path="/data")),
        ("claim:data:/data:ro", Volume(kind=VolumeKind.CLAIM, name="data", path="/data", read_only=True)),
        ("config:c:/", Volume(kind=VolumeKind.CONFIG, name="c", path="/")),
        (
            "snapshot:friday:/data:20Gi:ro",
            Volume(kind=VolumeKind.SNAPSHOT, name="friday", path="/data", size="20Gi", read_only=True),
        ),
    ],
)
def test_a_volume_is_written_in_one_line(text: str, volume: Volume) -> None:
    assert Volume.parsed(text) == volume


@pytest.mark.parametrize(
    "text",
    [
        "",
        "claim:data",
        "claim::/data",
        "claim:data:data",
        "disk:data:/data",
        "claim:data:/data:rw",
        "claim:data:/data:20Gi",
        "snapshot:friday:/data",
        "snapshot:friday:/data:large",
        "snapshot:friday:data:20Gi",
    ],
)
def test_an_invalid_volume_is_rejected_with_the_format(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not KIND:NAME:/PATH.* claim, secret, config, snapshot"):
        Volume.parsed(text)


def test_a_snapshot_has_one_size() -> None:
    with pytest.raises(ParameterError, match="snapshot friday has two sizes"):
        a_job(volumes=["snapshot:friday:/a:1Gi", "snapshot:friday:/b:2Gi"]).validated()


def test_the_keep_policy_decides_by_how_a_job_ended() -> None:
    assert [keep.keeps(failed=True) for keep in Keep] == [False, True, True]
    assert [keep.keeps(failed=False) for keep in Keep] == [False, False, True]


def test_our_training_is_started_by_torchrun() -> None:
    command = training_command("s3://b/manifest.json", "s3://b/out", "{}")
    assert command[:5] == ("python", "-m", "ddpipe.torchrun", "-m", "ddpipe.train")


@pytest.mark.parametrize("backend", all_backends(), ids=lambda one: one.resource.kind)
def test_pods_tolerate_a_lost_node_for_a_minute(backend: Backend) -> None:
    def tolerated(*own: dict[str, str]) -> set[tuple[str | None, int | None]]:
        tolerations = backend.pod(a_job(tolerations=own))["spec"]["tolerations"]
        return {(one.get("key"), one.get("tolerationSeconds")) for one in tolerations}

    away, unready = "node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"
    assert tolerated() == {(away, 60), (unready, 60)}
    assert tolerated({"key": away, "operator": "Exists"}) == {(away, None), (unready, 60)}
    assert tolerated({"operator": "Exists"}) == {(None, None)}


@pytest.mark.parametrize("backend", all_backends(), ids=lambda one: one.resource.kind)
def test_pods_end_by_themselves_after_all_deadlines(backend: Backend) -> None:
    stages = {"scheduled": 10, "pulled": 20, "running": 30, "finished": 40.5, "outage": 50}
    assert backend.pod(a_job(deadlines=stages))["spec"]["activeDeadlineSeconds"] == 151 + 600
    assert "activeDeadlineSeconds" not in backend.pod(a_job())["spec"]


@pytest.mark.parametrize("again", [0, 1])
def test_a_deadline_fits_trainjobs_that_have_no_place_for_it(again: int) -> None:
    fields: dict[str, object] = {"serviceAccountName": {}, "tolerations": {}, "volumes": {}}
    of_2_0 = {"items": {"properties": fields}}
    job = a_job(deadlines={"finished": 60}, again=again)
    made = trainjob.manifest(job, {"podSpecOverrides": of_2_0})
    assert made["metadata"]["name"] == job.name
    assert "activeDeadlineSeconds" not in str(made)
    assert "node.kubernetes.io/unreachable" in str(made)
