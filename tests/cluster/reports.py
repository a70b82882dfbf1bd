"""The fault matrix, continued: what people reported about other launchers of jobs, done to ours."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from faults import (
    BRIEF,
    LONG,
    NEEDS_A_SECRET,
    SLEEPER,
    SOON,
    alike,
    delete_pod,
    fails,
    fault,
    other_container,
    rank,
    running,
)
from place import ACCOUNT, Place, delete, eventually, patch
from step import Ended, launch
from webhook import changing_pods, is_asked, webhook_for_pods

from ddpipe.jobs.status import condition


def changed(
    change: Callable[[dict[str, Any]], object], script: str, *options: str
) -> Callable[[Place], Ended]:
    """A launch in a namespace where a webhook changes the spec of pods."""

    def act(place: Place) -> Ended:
        with changing_pods(place, lambda pod: change(pod["spec"])):
            return launch(place, script, *options).end()

    return act


# --- containers of a webhook ----------------------------------------------------------------------


def first(spec: dict[str, Any], script: str) -> None:
    spec["containers"].insert(0, other_container(script))


def renamed(spec: dict[str, Any]) -> None:
    spec["containers"][0]["name"] = "renamed"


fault(
    "a webhook puts a sidecar that never ends before the rank's container",
    words=("has ended, other of its pod runs on", r"\[worker-1\] done"),
    reports="druid 13655, linkerd2 7425, dynamo 11395, istio old_issues_repo 345",
)(changed(lambda spec: first(spec, "sleep 1000"), BRIEF))
fault(
    "a rank fails behind a webhook's sidecar that never ends",
    code=48,
    words=("worker-1 of", "exit code 3", "about to fail"),
    reports="kuberay 4945, argo-workflows 9083",
)(changed(lambda spec: first(spec, "sleep 1000"), rank(1, "exit 3")))
fault(
    "a webhook renames the rank's container",
    words=(r"\[worker-0\] done", r"\[worker-1\] done"),
    reports="katib 1544, flyte 4332",
)(changed(renamed, BRIEF))
fault(
    "a webhook renames the rank's container, and puts one before it that ends well; the rank fails",
    code=48,
    words=("worker-1 of", "exit code 3", "about to fail"),
)(changed(lambda spec: (renamed(spec), first(spec, "exit 0")), rank(1, "exit 3")))
fault(
    "a webhook renames the rank's container, which exits 1 and may be restarted after signals only",
    code=48,
    words=("worker-1 of", "exit code 1"),
)(changed(renamed, rank(1, "exit 1"), "--restart", "ExitCode", "--max-restarts", "1"))
fault(
    "a webhook adds an init container that fails",
    code=48,
    words=("its container other: exit code 42", "failing on purpose"),
    reports="kuberay 4637",
)(
    changed(
        lambda spec: spec.setdefault("initContainers", []).append(
            other_container("echo failing on purpose; exit 42")
        ),
        BRIEF,
    )
)
fault(
    "a webhook's sidecar is killed for memory",
    code=48,
    words=("its container other: out of memory, killed at its limit of 32Mi",),
    reports="argo-workflows 10007, 10063",
)(changed(lambda spec: first(spec, "sleep 3; exec python -c 'x = bytearray(2**28)'"), "sleep 8"))


def lifecycle(spec: dict[str, Any]) -> None:
    spec["containers"][0]["lifecycle"] = {"postStart": {"exec": {"command": ["sh", "-c", "exit 9"]}}}


def unhealthy(spec: dict[str, Any]) -> None:
    probe = {"exec": {"command": ["sh", "-c", "echo no heartbeat; exit 1"]}, "failureThreshold": 1}
    spec["containers"][0]["livenessProbe"] = {**probe, "periodSeconds": 2, "initialDelaySeconds": 2}
    spec["terminationGracePeriodSeconds"] = 1


fault("a hook after the start fails", code=48, words=("PostStartHook failed",))(
    changed(lifecycle, "exec sleep 60")
)
fault(
    "a liveness probe fails, and the kubelet kills the container",
    code=48,
    words=("Liveness probe failed: no heartbeat",),
    reports="airflow 29031",
)(changed(unhealthy, "sleep 60"))


# --- pods that do not start -----------------------------------------------------------------------


@fault(
    "a webhook for pods does not answer",
    code=52,
    words=("failed calling webhook", "Check that its service runs"),
    reports="kueue 11985, istio 5777, kubeflow/community-distribution 3396",
)
def webhook_down(place: Place) -> Ended:
    with webhook_for_pods(place, "https://127.0.0.1:9"):
        assert eventually(lambda: is_asked(place), bool)
        return launch(place, BRIEF, "--deadlines", "outage=20").end()


fault(
    "a webhook makes invalid pods",
    code=52,
    words=("the cluster rejects the job's pods", "Sometimes"),
    reports="istio 52245, kuberay 2210",
)(changed(lambda spec: spec.update(restartPolicy="Sometimes"), BRIEF, *SOON))
fault(
    "pods are held by a scheduling gate",
    code=46,
    words=("SchedulingGated", "who holds the pods"),
    reports="keptn lifecycle-toolkit 3296",
)(
    changed(
        lambda spec: spec.update(schedulingGates=[{"name": "example.com/gate"}]),
        BRIEF,
        "--deadlines",
        "scheduled=8",
    )
)
fault(
    "a runtime class that does not exist",
    code=52,
    words=("the cluster rejects the job's pods", 'RuntimeClass "nope" not found'),
    unlike={"trainjob": {"code": 11, "words": ("runtimeClassName",), "jobs_ever": 0}},
    reports="microk8s 2359, tekton pipeline 1363",
)(fails(BRIEF, "--patch", '{"spec": {"runtimeClassName": "nope"}}', *SOON))


def real_node(place: Place) -> str:
    """One that has a kubelet."""
    nodes = place.admin.get("/api/v1/nodes")["items"]
    return next(str(node["metadata"]["name"]) for node in nodes if condition(node, "Ready"))


def rejected(place: Place) -> Ended:
    """Pods that are bound to a node past the scheduler, with more than it has."""
    node = real_node(place)

    def bind(spec: dict[str, Any]) -> None:
        spec["nodeName"] = node
        spec["containers"][0]["resources"] = {"requests": {"cpu": "900"}, "limits": {"cpu": "900"}}

    return changed(bind, BRIEF)(place)


fault(
    "a kubelet refuses pods that it has no room for: there is no container status",
    code=48,
    words=("OutOfcpu", "have enough resource|enough resources"),
    reports="airflow 68328, kubernetes 115325, NVIDIA/OSMO 1036",
)(rejected)

_SCRATCH = {
    "spec": {
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}],
        "containers": [{"name": "pytorch", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
    }
}
fault(
    "a kubelet evicts a pod that writes more than its volume may hold",
    code=48,
    words=("worker-1 of", "Evicted", "exceeds the limit"),
    reports="airflow 53015, 37548, dagster 3705, argo-workflows 12231, kubernetes 122160",
)(
    fails(
        rank(1, "head -c 50000000 /dev/zero > /scratch/x; sleep 100", "sleep 100"),
        "--patch",
        json.dumps(_SCRATCH),
    )
)
fault(
    "pods have a time limit of their own",
    code=48,
    words=("DeadlineExceeded",),
    reports="argo-workflows 8981",
)(changed(lambda spec: spec.update(activeDeadlineSeconds=4), LONG))
_HOST_PATH = {
    "spec": {
        "volumes": [{"name": "data", "hostPath": {"path": "/no/such/folder", "type": "Directory"}}],
        "containers": [{"name": "pytorch", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
    }
}
fault(
    "a folder of the node that does not exist",
    code=52,
    words=("FailedMount", "hostPath type check failed"),
    level="privileged",
    reports="skypilot 7925, 10218",
)(fails(BRIEF, "--patch", json.dumps(_HOST_PATH), *SOON))


@fault(
    "a claim that is never bound",
    code=46,
    words=("PersistentVolumeClaim|storageclass", "Check the claim"),
    reports="skypilot 8586, kale examples 6",
)
def unbound(place: Place) -> Ended:
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "nope",
        "resources": {"requests": {"storage": "1Mi"}},
    }
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}
    place.create("/api/v1/persistentvolumeclaims", claim)
    return launch(place, BRIEF, "--volumes", "claim:data:/data", "--deadlines", "scheduled=8").end()


@fault(
    "a node that fits comes later",
    words=(r"\[launch\] waiting for nodes", r"\[worker-1\] done"),
    reports="prefect 12071, 7854, 16429",
)
def node_later(place: Place) -> Ended:
    node = f"/api/v1/nodes/{real_node(place)}"
    label = f"ddpipe.dev/{place.namespace}"
    step = launch(place, BRIEF, "--node-selector", f"{label}=yes")
    step.saw("waiting for nodes")
    patch(place.admin, node, {"metadata": {"labels": {label: "yes"}}})
    try:
        return step.end()
    finally:
        patch(place.admin, node, {"metadata": {"labels": {label: None}}})


@fault(
    "the pods' service account is deleted after the preflight",
    code=52,
    words=("rejects the job's pods", "service ?account"),
    reports="dagster 24595",
)
def account_deleted(place: Place) -> Ended:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trainer"}}
    place.create("/api/v1/serviceaccounts", account)
    hold = place.proxy.hold(lambda request: request.creates_job)
    step = launch(place, BRIEF, "--service-account", "trainer", *SOON)
    assert hold.reached.wait(180), step.text
    delete(place.admin, f"/api/v1/namespaces/{place.namespace}/serviceaccounts/trainer")
    hold.released.set()
    return step.end()


@fault(
    "a pod is deleted before it could start",
    code=48,
    words=("worker-1 of", "its pod was deleted"),
    reports="argo-workflows 2711, dagster 22453",
)
def deleted_early(place: Place) -> Ended:
    step = launch(place, BRIEF, *NEEDS_A_SECRET)
    place.pod("worker-1")
    step.saw("CreateContainerConfigError")
    delete_pod(place, "worker-1")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "nope"}, "stringData": {"key": "x"}}
    place.create("/api/v1/secrets", secret)
    return step.end()


# --- pods that are taken away ---------------------------------------------------------------------


@fault(
    "a pod is preempted by one of a higher priority",
    code=48,
    words=("PreemptionByScheduler",),
    reports="trainer 999, pytorch 92214, airflow 59626",
)
def preempted(place: Place) -> Ended:
    with a_scarce_resource(place) as resource, a_priority(place) as priority:
        step = running(place, SLEEPER.replace("15", "60"), "--gpus", "1", "--gpu-resource", resource)
        place.create("/api/v1/pods", urgent_pod(priority, resource))
        return step.end()


@contextlib.contextmanager
def a_scarce_resource(place: Place) -> Iterator[str]:
    """A resource of which the first node has two."""
    node = f"/api/v1/nodes/{real_node(place)}"
    resource = f"ddpipe.dev/{place.namespace}"
    patch(place.admin, f"{node}/status", {"status": {"capacity": {resource: "2"}}})
    try:
        has = eventually(
            lambda: place.admin.get(node)["status"]["allocatable"].get(resource),
            lambda count: count == "2",
            60,
        )
        assert has == "2"
        yield resource
    finally:
        none = {"capacity": {resource: None}, "allocatable": {resource: None}}
        patch(place.admin, f"{node}/status", {"status": none})


@contextlib.contextmanager
def a_priority(place: Place) -> Iterator[str]:
    path, name = "/apis/scheduling.k8s.io/v1/priorityclasses", f"{place.namespace}-urgent"
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    place.admin.create(path, {**kind, "metadata": {"name": name}, "value": 1000})
    try:
        yield name
    finally:
        delete(place.admin, f"{path}/{name}")


def urgent_pod(priority: str, resource: str) -> dict[str, Any]:
    container = {**other_container("sleep 100"), "resources": {"limits": {resource: "1"}}}
    spec = {
        "restartPolicy": "Never",
        "priorityClassName": priority,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "urgent"}, "spec": spec}


@fault(
    "the node of the pods is taken out of the cluster",
    code=48,
    words=("DeletionByPodGC",),
    reports="argo-workflows 13152, 5321, 1832, jobset 574",
)
def node_gone(place: Place) -> Ended:
    name = f"{place.namespace}-node"
    spec = {"taints": [{"key": "ddpipe.dev/test", "effect": "NoSchedule"}]}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}
    place.admin.create("/api/v1/nodes", node)
    try:
        with changing_pods(place, lambda pod: pod["spec"].update(nodeName=name)):
            # An operator that looks once the pods are gone creates others, which fail by themselves.
            step = launch(place, "echo begun; exit 1")
            assert eventually(lambda: len(place.pods()), lambda count: count == 2) == 2, step.text
            step.saw("pulling images")
    finally:
        delete(place.admin, f"/api/v1/nodes/{name}")
    return step.end()


@fault(
    "somebody's finalizer keeps the pods",
    words=(r"\[worker-1\] done",),
    reports="jobset 576, kubernetes 114366",
)
def finalizer(place: Place) -> Ended:
    with changing_pods(
        place, lambda pod: pod["metadata"].setdefault("finalizers", []).append("ddpipe.dev/test")
    ):
        ended = launch(place, BRIEF).end()
    pods = f"/api/v1/namespaces/{place.namespace}/pods"
    for pod in place.admin.get(pods)["items"]:
        left = [one for one in pod["metadata"].get("finalizers", ()) if one != "ddpipe.dev/test"]
        patch(place.admin, f"{pods}/{pod['metadata']['name']}", {"metadata": {"finalizers": left}})
    return ended


# --- images and programs --------------------------------------------------------------------------


@fault(
    "a program for another kind of machine",
    code=48,
    words=("exec format error",),
    reports="argo-workflows 2482, 10789, argo-rollouts 1728",
)
def wrong_format(place: Place) -> Ended:
    program = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "program"},
        "data": {"run": "\x01"},
    }
    place.create("/api/v1/configmaps", program)
    volume = {"name": "config-program", "configMap": {"name": "program", "defaultMode": 0o555}}
    mount = ("--volumes", "config:program:/program", "--patch", json.dumps({"spec": {"volumes": [volume]}}))
    return launch(place, "", *mount, "--command", "/program/run").end()


fault(
    "a working directory that cannot be made",
    code=48,
    words=("cannot be started", "/proc/nope"),
    reports="metaflow 1176, nextflow 1270, tt-inference-server 2128",
)(changed(lambda spec: spec["containers"][0].update(workingDir="/proc/nope"), BRIEF))
fault(
    "a child of the program is killed for memory, and the program ends well",
    words=("exited with 0, though a process in it was killed for memory",),
    reports="argo-workflows 4080",
)(fails("python -c 'x = bytearray(2**28)'; exit 0"))


# --- accounts -------------------------------------------------------------------------------------


def is_known(place: Place) -> bool:
    """Whether the API server takes the launcher's token for that of an account."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    body = {**review, "spec": {"token": place.token_file.read_text()}}
    answer = place.admin.create("/apis/authentication.k8s.io/v1/tokenreviews", body)
    return bool(answer["status"].get("authenticated"))


@alike(
    "the launcher's account is deleted: its token is worth nothing any more",
    code=42,
    words=("401",),
    jobs=1,
    pods=2,
    reports="airflow 32718",
)
def account_gone(place: Place) -> Ended:
    step = running(place, LONG, "--deadlines", "outage=8")
    delete(place.admin, f"/api/v1/namespaces/{place.namespace}/serviceaccounts/{ACCOUNT}")
    # The API server remembers for seconds whom it knew.
    assert not eventually(lambda: is_known(place), lambda known: not known)
    place.proxy.drop_streams()
    return step.end()


@alike(
    "the right to read events is missing",
    words=(r"\[worker-1\] done",),
    reports="airflow 58736",
)
def no_events(place: Place) -> Ended:
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{place.namespace}/roles/ddpipe-launcher"
    rules = [rule for rule in place.admin.get(role)["rules"] if rule["resources"] != ["events"]]
    place.patch(role, {"rules": rules})
    assert not eventually(lambda: place.may("", "events", "watch"), lambda may: not may)
    return launch(place, BRIEF).end()
