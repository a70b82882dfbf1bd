"""Which fields of a value the schema of a CRD knows."""

from __future__ import annotations

from typing import Any

from ddpipe.kube.resources import fitted, misfits

TEXT = {"type": "string"}
CONTAINER = {"properties": {"name": TEXT, "image": TEXT}}
POD = {"properties": {"node": TEXT, "containers": {"items": CONTAINER}, "args": {"items": TEXT}}}


def a_pod(**container: Any) -> dict[str, Any]:
    return {"node": "n1", "containers": [{"name": "a"}, {"name": "b", **container}], "args": ["x", "y"]}


def test_a_value_that_fits_is_unchanged() -> None:
    pod = a_pod(image="trainer:1")
    assert fitted(pod, POD) == pod
    assert list(misfits(pod, POD)) == []


def test_a_field_of_a_list_item_that_is_unknown_is_named() -> None:
    pod = a_pod(probe={"seconds": 1})
    assert list(misfits(pod, POD)) == [("containers.b.probe", {"seconds": 1})]
    assert fitted(pod, POD) == a_pod()


def test_an_unknown_field_is_named_once_with_its_value() -> None:
    pod = {"spread": [{"key": "a"}], **a_pod()}
    assert list(misfits(pod, POD)) == [("spread", [{"key": "a"}])]


def test_items_without_a_name_have_their_numbers() -> None:
    schema = {"items": {"properties": {"key": TEXT}}}
    assert list(misfits([{"key": "a"}, {"key": "b", "odd": 1}], schema, "tolerations")) == [
        ("tolerations.1.odd", 1)
    ]
