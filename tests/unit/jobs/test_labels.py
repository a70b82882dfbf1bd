"""How a job is identified: labels to find it, an annotation with its owner."""

from __future__ import annotations

import re
from typing import Any

import pytest
from launch_samples import a_job

from ddpipe.jobs.job import SPEC, Owner, label_value, labels_of, manifest_of, owner_of
from ddpipe.kube.resources import JOBS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("digits", "digits"),
        ("My digits: v2", "My-digits-v2"),
        ("_.-digits-._", "digits"),
        ("日本", ""),
        ("x" * 70, "x" * 63),
        ("x" * 62 + "/y", "x" * 62),
    ],
)
def test_any_text_becomes_a_label_s_value(text: str, value: str) -> None:
    assert label_value(text) == value
    assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", value)


def test_a_user_s_labels_do_not_hide_whose_job_it_is() -> None:
    job = a_job(labels={"team": "vision", "ddpipe.dev/job": "another"})
    assert labels_of(job) == {
        "team": "vision",
        "app.kubernetes.io/managed-by": "ddpipe",
        "ddpipe.dev/job": job.name,
        "ddpipe.dev/pipeline": "digits",
        "ddpipe.dev/run": "run-1",
    }


def test_the_hash_is_of_what_was_requested_in_any_order() -> None:
    def spec_hash(spec: dict[str, Any], **options: object) -> str:
        return str(manifest_of(JOBS, a_job(**options), spec)["metadata"]["annotations"][SPEC])

    one = {"a": 1, "b": {"c": 2, "d": 3}}
    assert spec_hash(one) == spec_hash({"b": {"d": 3, "c": 2}, "a": 1}, labels={"team": "vision"})
    assert spec_hash(one) != spec_hash({"a": 1, "b": {"c": 2, "d": 4}})


def test_annotations_that_are_there_stay() -> None:
    job = a_job(keep="failed", annotations={"a": "b"})
    made = manifest_of(JOBS, job, {})
    annotations = made["metadata"]["annotations"]
    assert (annotations["a"], annotations["ddpipe.dev/keep"]) == ("b", "failed")
    assert owner_of(made) == job.owner


@pytest.mark.parametrize("key", ["", "no JSON", "[]", '["digits", "run-1", "", 7]', "7"])
def test_an_owner_that_is_none_makes_the_job_a_stranger_s(key: str) -> None:
    metadata = {"name": a_job().name, "annotations": {"ddpipe.dev/owner": key}}
    assert owner_of({"metadata": metadata}) is None
    assert owner_of({"metadata": {"name": a_job().name}}) is None


def test_the_name_of_a_published_owner_never_changes() -> None:
    """A step that one version of ddpipe began is retried by the next, and has to find its job."""
    owner = Owner(pipeline="digits", run_id="run-1", step="train")
    assert owner.key == '["digits", "run-1", "", "train"]'
    assert owner.job_name == "train-3ac0bb2a18"
