"""What launching relies on in an API server, as cases for a real one and for the fake one.

Each case gets a server and the path of a namespace's config maps, where others may have some, too. It uses
the few verbs of `Cluster`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ddpipe.kube.api import Cluster, Refused
from ddpipe.kube.cluster import pages

Case = Callable[[Cluster, str], None]
CASES: list[Case] = []


def case(function: Case) -> Case:
    CASES.append(function)
    return function


def a_map(name: str = "", **metadata: Any) -> dict[str, Any]:
    metadata["name"] = name or f"m-{uuid.uuid4().hex[:8]}"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def refusal(ask: Callable[[], object]) -> tuple[int, str, str]:
    with pytest.raises(Refused) as caught:
        ask()
    return caught.value.status, caught.value.reason, caught.value.named


def changes(cluster: Cluster, path: str, version: str, **select: str) -> Iterator[tuple[str, dict[str, Any]]]:
    query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "5", **select}
    for line in cluster.lines(path, query, 10):
        change = json.loads(line)
        yield change["type"], change["object"]


@case
def a_missing_object_is_not_found_by_its_name(cluster: Cluster, path: str) -> None:
    assert refusal(lambda: cluster.get(f"{path}/nobody")) == (404, "NotFound", "nobody")
    assert refusal(lambda: cluster.delete(f"{path}/nobody", "uid")) == (404, "NotFound", "nobody")


@case
def a_new_object_has_a_uid_a_version_and_a_time(cluster: Cluster, path: str) -> None:
    made = cluster.create(path, a_map("made"))
    assert cluster.get(f"{path}/made")["metadata"]["uid"] == made["metadata"]["uid"]
    assert made["metadata"]["resourceVersion"].isdigit()
    assert made["metadata"]["creationTimestamp"].endswith("Z")


@case
def an_existing_object_cannot_be_created_again(cluster: Cluster, path: str) -> None:
    cluster.create(path, a_map("twice"))
    assert refusal(lambda: cluster.create(path, a_map("twice"))) == (409, "AlreadyExists", "twice")


@case
def a_dry_run_creates_nothing_and_rejects_existing_names(cluster: Cluster, path: str) -> None:
    dry = {"dryRun": "All"}
    cluster.create(path, a_map("dry"), dry)
    assert refusal(lambda: cluster.get(f"{path}/dry"))[0] == 404
    cluster.create(path, a_map("dry"))
    assert refusal(lambda: cluster.create(path, a_map("dry"), dry))[:2] == (409, "AlreadyExists")


@case
def only_the_object_of_this_uid_is_deleted(cluster: Cluster, path: str) -> None:
    made = cluster.create(path, a_map("mine"))
    assert refusal(lambda: cluster.delete(f"{path}/mine", str(uuid.uuid4())))[:2] == (409, "Conflict")
    cluster.delete(f"{path}/mine", made["metadata"]["uid"])
    assert refusal(lambda: cluster.get(f"{path}/mine"))[0] == 404


@case
def annotations_are_added_to_existing_ones(cluster: Cluster, path: str) -> None:
    made = cluster.create(path, a_map("noted", annotations={"a": "1", "b": "1"}))
    cluster.annotate(f"{path}/noted", made["metadata"]["uid"], {"b": "2", "c": "2"})
    found = cluster.get(f"{path}/noted")["metadata"]
    assert found["annotations"] == {"a": "1", "b": "2", "c": "2"}
    assert found["resourceVersion"] != made["metadata"]["resourceVersion"]


@case
def only_the_object_of_this_uid_is_annotated(cluster: Cluster, path: str) -> None:
    cluster.create(path, a_map("mine"))
    note = {"a": "1"}
    assert refusal(lambda: cluster.annotate(f"{path}/mine", str(uuid.uuid4()), note))[:2] == (422, "Invalid")
    assert refusal(lambda: cluster.annotate(f"{path}/nobody", "uid", note))[:2] == (404, "NotFound")


@case
def an_object_with_a_finalizer_is_marked_and_stays(cluster: Cluster, path: str) -> None:
    made = cluster.create(path, a_map("held", finalizers=["ddpipe.dev/test"]))
    cluster.delete(f"{path}/held", made["metadata"]["uid"])
    found = cluster.get(f"{path}/held")
    assert "deletionTimestamp" in found["metadata"]
    assert refusal(lambda: cluster.create(path, a_map("held")))[:2] == (409, "AlreadyExists")


@case
def objects_of_a_deleted_owner_are_deleted(cluster: Cluster, path: str) -> None:
    owner = cluster.create(path, a_map("owner"))["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    cluster.create(path, a_map("owned", ownerReferences=[reference]))
    version = cluster.get(path)["metadata"]["resourceVersion"]
    cluster.delete(f"{path}/owner", owner["uid"])
    seen = changes(cluster, path, version)
    # A namespace that has just been made gets a map of its own meanwhile.
    deleted = (found["metadata"]["name"] for change, found in seen if change == "DELETED")
    assert {next(deleted), next(deleted)} == {"owner", "owned"}


@case
def a_list_selects_by_all_labels(cluster: Cluster, path: str) -> None:
    cluster.create(path, a_map("both", labels={"a": "1", "b": "2"}))
    cluster.create(path, a_map("one", labels={"a": "1"}))
    found = cluster.get(path, {"labelSelector": "a=1,b=2"})
    assert [item["metadata"]["name"] for item in found["items"]] == ["both"]


@case
def a_list_selects_by_name(cluster: Cluster, path: str) -> None:
    for name in ("this", "that"):
        cluster.create(path, a_map(name))
    for selector, name in (("metadata.name=this", "this"), ("metadata.name!=this", "that")):
        names = [item["metadata"]["name"] for item in cluster.get(path, {"fieldSelector": selector})["items"]]
        assert name in names
        assert ({"this", "that"} - {name}).isdisjoint(names)


@case
def a_watch_shows_all_changes_since_a_list(cluster: Cluster, path: str) -> None:
    cluster.create(path, a_map("before", labels={"w": "1"}))
    version = cluster.get(path)["metadata"]["resourceVersion"]
    made = cluster.create(path, a_map("after", labels={"w": "1"}))
    cluster.create(path, a_map("unlabelled"))
    cluster.delete(f"{path}/after", made["metadata"]["uid"])
    seen = changes(cluster, path, version, labelSelector="w=1")
    added, deleted = next(seen), next(seen)
    assert [added[0], deleted[0]] == ["ADDED", "DELETED"]
    assert {added[1]["metadata"]["uid"], deleted[1]["metadata"]["uid"]} == {made["metadata"]["uid"]}
    assert int(deleted[1]["metadata"]["resourceVersion"]) > int(added[1]["metadata"]["resourceVersion"])


@case
def a_watch_can_start_after_any_change(cluster: Cluster, path: str) -> None:
    version = cluster.get(path)["metadata"]["resourceVersion"]
    for name in ("first", "second"):
        cluster.create(path, a_map(name, labels={"w": "1"}))
    # The cluster puts a config map of its own into a new namespace at some time.
    _, first = next(changes(cluster, path, version, labelSelector="w=1"))
    _, second = next(changes(cluster, path, first["metadata"]["resourceVersion"], labelSelector="w=1"))
    assert [first["metadata"]["name"], second["metadata"]["name"]] == ["first", "second"]


@case
def a_watch_of_an_old_version_has_expired(cluster: Cluster, path: str) -> None:
    lines = cluster.lines(path, {"watch": "true", "resourceVersion": "1", "timeoutSeconds": "5"}, 10)
    (error,) = (json.loads(line) for line in lines)
    assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")


@case
def a_watch_ends_without_an_error_after_its_time(cluster: Cluster, path: str) -> None:
    version = cluster.get(path)["metadata"]["resourceVersion"]
    query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "1", "labelSelector": "no=body"}
    assert list(cluster.lines(path, query, 10)) == []


@case
def an_object_being_deleted_may_be_deleted_again(cluster: Cluster, path: str) -> None:
    made = cluster.create(path, a_map("held", finalizers=["ddpipe.dev/test"]))
    for _ in range(2):
        cluster.delete(f"{path}/held", made["metadata"]["uid"])
    assert refusal(lambda: cluster.delete(f"{path}/held", str(uuid.uuid4())))[:2] == (409, "Conflict")


@case
def a_change_is_shown_with_the_object_s_uid_and_a_later_version(cluster: Cluster, path: str) -> None:
    made = cluster.create(path, a_map("held", finalizers=["ddpipe.dev/test"], labels={"w": "1"}))
    seen = changes(cluster, path, made["metadata"]["resourceVersion"], labelSelector="w=1")
    cluster.delete(f"{path}/held", made["metadata"]["uid"])
    change, found = next(seen)
    assert change == "MODIFIED"
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert int(found["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


@case
def an_object_whose_owner_does_not_exist_is_collected(cluster: Cluster, path: str) -> None:
    """So an owner in another namespace would get a job deleted."""
    version = cluster.get(path)["metadata"]["resourceVersion"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": str(uuid.uuid4())}
    cluster.create(path, a_map("orphan", ownerReferences=[reference]))
    seen = changes(cluster, path, version)
    gone = next(found for change, found in seen if change == "DELETED")
    assert gone["metadata"]["name"] == "orphan"


@case
def nothing_is_created_in_a_namespace_that_does_not_exist(cluster: Cluster, path: str) -> None:
    nowhere = path.replace(path.split("/")[-2], f"nowhere-{uuid.uuid4().hex[:8]}")
    for query in (None, {"dryRun": "All"}):
        assert refusal(lambda query=query: cluster.create(nowhere, a_map(), query))[:2] == (404, "NotFound")


@case
def a_list_comes_in_pages_of_the_given_size(cluster: Cluster, path: str) -> None:
    for name in ("page-1", "page-2", "page-3"):
        cluster.create(path, a_map(name, labels={"p": "1"}))
    query = {"labelSelector": "p=1", "limit": "2"}
    first = cluster.get(path, query)
    second = cluster.get(path, {**query, "continue": first["metadata"]["continue"]})
    assert not second["metadata"].get("continue")
    names = [item["metadata"]["name"] for page in (first, second) for item in page["items"]]
    assert names == ["page-1", "page-2", "page-3"]


@case
def a_list_of_metadata_has_labels_and_nothing_else(cluster: Cluster, path: str) -> None:
    cluster.create(path, {**a_map("large", labels={"m": "1", "l": "1"}), "data": {"much": "x" * 1000}})
    cluster.create(path, a_map("other", labels={"m": "2", "l": "1"}))
    (found,) = cluster.get_metadata(path, {"labelSelector": "m!=2,l=1"})["items"]
    assert found["metadata"]["labels"] == {"m": "1", "l": "1"}
    assert "data" not in found
    assert list(pages(cluster.get_metadata, path, {"labelSelector": "no=body"})) == [[]]
