"""A namespace of a test's own: the *restricted* level, the least Role, a launcher's kubeconfig."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import yaml
from history import History
from proxy import Proxy

from ddpipe.jobs.backend import Backend
from ddpipe.jobs.backend import backend as backend_named
from ddpipe.jobs.replicas import INDEX
from ddpipe.jobs.status import IMAGE_TROUBLE
from ddpipe.kube.api import ApiServer, Refused, Unanswered
from ddpipe.kube.resources import Resource

T = TypeVar("T")
OK = HTTPStatus.OK
ACCOUNT = "ddpipe-launcher"
OUR_IMAGES = os.environ.get("DDPIPE_TEST_IMAGES", "ddpipe-{}:dev")
"""Our own: {} is launcher or trainer."""
IMAGE = OUR_IMAGES.format("launcher")
"""What the pods of launched jobs run: a shell and Python are all they need."""

PATIENCE = 400.0
"""Seconds that decide only if something hangs: a busy machine is ten times slower than an idle one."""

_IMAGES = Path(__file__).parents[2] / "images"
RBAC, RUNTIMES = _IMAGES / "rbac.yaml", _IMAGES / "runtime.yaml"
_RUNTIME = Resource(
    group="trainer.kubeflow.org", version="v1alpha1", plural="trainingruntimes", kind="TrainingRuntime"
)
_POD_LABELS = {"ddpipe.dev/job", "jobset.sigs.k8s.io/jobset-name"}

STORE_SECRET = "mlpipeline-minio-artifact"  # noqa: S105 - its name
"""The keys of Kubeflow's MinIO."""

_COLLECTIONS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


def delete(admin: ApiServer, path: str, **options: object) -> None:
    """Delete an object of any owner; no error if it is gone."""
    _send(admin, "DELETE", path, options, "application/json")


def patch(admin: ApiServer, path: str, change: dict[str, Any]) -> None:
    """Merge-patch an object; a webhook of a busy cluster may be late for one request."""
    kind = "application/merge-patch+json"
    status = eventually(lambda: _send(admin, "PATCH", path, change, kind), lambda found: found == OK)
    assert status == OK, f"{status} for {change} of {path}"


def strategic_patch(admin: ApiServer, path: str, change: dict[str, Any]) -> None:
    """Patch an object; items of its lists are found by their names."""
    assert _send(admin, "PATCH", path, change, "application/strategic-merge-patch+json") == OK


def _send(admin: ApiServer, method: str, path: str, body: Mapping[str, object], kind: str) -> int:
    login = admin._login.credentials
    headers = {**login.headers, "Content-Type": kind}
    return int(login.pool.request(method, login.host + path, body=json.dumps(body), headers=headers).status)


def eventually(
    look: Callable[[], T], good: Callable[[T], bool], seconds: float = PATIENCE, pause: float = 0.1
) -> T:
    """What is seen once it is good, or when the time is over."""
    until = time.monotonic() + seconds
    while True:
        seen = look()
        if good(seen) or time.monotonic() > until:
            return seen
        time.sleep(pause)


@dataclass
class Place:
    """One test's namespace.

    Attributes:
        admin: The cluster, as the user who runs the tests.
        proxy: Between the launcher and the API server.
        namespace: Its name.
        folder: For the launcher's files.
        kubeconfig: The launcher's.
        backend: The default backend of launchers.
        history: Its jobs.
        forks: Whether a launcher is forked from a process that has its modules, to be there at once.
        rival: Makes another launcher's command of our arguments, to see what that does in our place.
    """

    admin: ApiServer
    proxy: Proxy
    namespace: str
    folder: Path
    kubeconfig: Path
    backend: str
    history: History
    forks: bool = False
    rival: Callable[[Sequence[str]], list[str]] | None = None

    @property
    def kind(self) -> Backend:
        return backend_named(self.backend)

    def chosen(self, options: Sequence[str]) -> tuple[str, ...]:
        """The options that choose the backend, for a launcher with these other ones."""
        if self.backend != "trainjob":
            return ("--backend", self.backend)
        runtime = "ddpipe-restarts" if "--restart" in options else "ddpipe"
        return ("--backend", self.backend, "--runtime", f"TrainingRuntime/{runtime}")

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    def new_token(self) -> str:
        """A token of the launcher's account, as the kubelet gets one."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{ACCOUNT}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 7200},
        }
        token: str = self.admin.create(path, request)["status"]["token"]
        return token

    def jobs_path(self, name: str = "") -> str:
        return self.kind.resource.path(self.namespace, name)

    def jobs(self) -> list[dict[str, Any]]:
        return self.admin.get(self.jobs_path())["items"]

    def pods(self) -> list[dict[str, Any]]:
        """Pods that nobody has asked to go."""
        items = self.admin.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return [
            pod
            for pod in items
            if "deletionTimestamp" not in pod["metadata"]
            and _POD_LABELS & pod["metadata"].get("labels", {}).keys()
        ]

    def jobs_ever(self) -> int:
        """How many jobs this namespace has seen, those that are gone too."""
        return len(self.history.uids())

    def pod(self, rank: str) -> dict[str, Any]:
        """The pod of this rank, once there is one."""

        def find() -> dict[str, Any] | None:
            return next((pod for pod in self.pods() if _is_of(pod, rank)), None)

        found = eventually(find, bool)
        assert found, f"no pod {rank}"
        return found

    def create(self, collection: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create something in the namespace; `collection` as in "/api/v1/pods", without the namespace."""
        root, _, plural = collection.rpartition("/")
        return self.admin.create(f"{root}/namespaces/{self.namespace}/{plural}", body)

    def may(self, group: str, resource: str, verb: str) -> bool:
        """Whether the launcher may do this here; `resource` as in a Role."""
        name, _, part = resource.partition("/")
        where = {"namespace": self.namespace, "group": group, "resource": name, "subresource": part}
        user = f"system:serviceaccount:{self.namespace}:{ACCOUNT}"
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": {**where, "verb": verb}},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self.admin.create(path, review)["status"]["allowed"])

    def patch(self, path: str, change: dict[str, Any]) -> None:
        """Merge-patch an object."""
        patch(self.admin, path, change)


def _is_of(pod: dict[str, Any], rank: str) -> bool:
    """Whether a pod is of this rank: "worker-1" by its name, or by its number."""
    number = pod["metadata"].get("annotations", {}).get(INDEX)
    return pod["metadata"]["name"].endswith(rank) or f"worker-{number}" == rank


def missing_image(admin: ApiServer, image: str) -> str | None:
    """Why pods cannot run an image, in one line; None if they can."""
    name = f"ddpipe-test-{uuid.uuid4().hex[:8]}"
    admin.create("/api/v1/namespaces", _object("v1", "Namespace", name))
    path = f"/api/v1/namespaces/{name}/pods"
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["true"]}
    pod = _object("v1", "Pod", "image")
    pod["spec"] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    try:
        # The account that every pod has is made a moment after the namespace.
        eventually(lambda: _accepts(admin, path, pod), bool)
        state = eventually(lambda: _state(admin, f"{path}/image"), lambda state: state != "Pending", 120)
    finally:
        delete(admin, f"/api/v1/namespaces/{name}")
    if state == "Succeeded":
        return None
    return f"pods cannot run {image} ({state}): make images, and name them by DDPIPE_TEST_IMAGES"


def _accepts(admin: ApiServer, path: str, body: dict[str, Any]) -> bool:
    """Whether the object is there, if only by a request before that was answered too late."""
    try:
        return bool(admin.create(path, body))
    except Refused as error:
        return error.status == HTTPStatus.CONFLICT
    except Unanswered:
        return False


def _state(admin: ApiServer, path: str) -> str:
    """The pod's phase, or why its image does not come."""
    try:
        status = admin.get(path)["status"]
    except Refused as error:
        return str(error)
    for container in status.get("containerStatuses") or ():
        reason = container["state"].get("waiting", {}).get("reason", "")
        if reason in IMAGE_TROUBLE:
            return str(reason)
    return "Pending" if status["phase"] == "Running" else str(status["phase"])


@contextlib.contextmanager
def a_place(
    admin: ApiServer,
    folder: Path,
    *,
    level: str = "restricted",
    sees_nodes: bool = False,
    backend: str = "pytorchjob",
) -> Iterator[Place]:
    """Make a namespace, and remove it afterwards."""
    namespace = f"ddpipe-test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": level}
    admin.create("/api/v1/namespaces", _object("v1", "Namespace", namespace, labels=labels))
    credentials = admin._login.credentials
    proxy = Proxy(credentials.host, credentials.pool.connection_pool_kw.get("ca_certs"))
    history = History(admin, backend_named(backend).resource.path(namespace))
    place = Place(admin, proxy, namespace, folder, folder / "kubeconfig", backend, history)
    try:
        _grant(place, sees_nodes=sees_nodes)
        if backend == "trainjob":
            _have_runtimes(place)
        yield place
    finally:
        history.close()
        proxy.close()
        for path in (f"/api/v1/namespaces/{namespace}", _binding_path(namespace) if sees_nodes else ""):
            if path:
                delete(admin, path)


def _have_runtimes(place: Place) -> None:
    """The Trainer's webhook may have lost its controller for a moment, on a busy machine."""
    path = _RUNTIME.path(place.namespace)
    for runtime in yaml.safe_load(RUNTIMES.read_text())["items"]:
        taken = eventually(partial(_accepts, place.admin, path, runtime), bool)
        assert taken, f"no runtime {runtime['metadata']['name']}"
        assert eventually(partial(_is_known, place, runtime), bool), "its webhook does not know it"


def _is_known(place: Place, runtime: dict[str, Any]) -> bool:
    """Whether the Trainer's webhook, whose cache lags on a busy machine, accepts a job with this runtime."""
    reference = {"apiGroup": _RUNTIME.group, "kind": _RUNTIME.kind, "name": runtime["metadata"]["name"]}
    job = {
        "apiVersion": f"{_RUNTIME.group}/{_RUNTIME.version}",
        "kind": "TrainJob",
        "metadata": {"name": "probe"},
        "spec": {"runtimeRef": reference},
    }
    path = f"/apis/{_RUNTIME.group}/{_RUNTIME.version}/namespaces/{place.namespace}/trainjobs"
    with contextlib.suppress(Refused, Unanswered):
        return bool(place.admin.create(path, job, {"dryRun": "All"}))
    return False


def let_deploy(place: Place) -> None:
    """Give the account the rights of images/rbac-serving.yaml."""
    _create_all(place, yaml.safe_load_all((_IMAGES / "rbac-serving.yaml").read_text()))


def let_launch_from_notebooks(place: Place) -> None:
    """Give the account the rights of images/rbac.yaml that are for notebooks only."""
    _create_all(place, (one for one in yaml.safe_load_all(RBAC.read_text()) if _is_for_notebooks(one)))


def _is_for_notebooks(document: dict[str, Any]) -> bool:
    return document["metadata"]["name"] == "ddpipe-notebook"


def _create_all(place: Place, documents: Iterable[dict[str, Any]]) -> None:
    for document in documents:
        for subject in document.get("subjects", ()):
            subject["namespace"] = place.namespace
        place.admin.create(_COLLECTIONS[document["kind"]].format(place.namespace), document)


def _grant(place: Place, *, sees_nodes: bool) -> None:
    _create_all(place, (one for one in yaml.safe_load_all(RBAC.read_text()) if not _is_for_notebooks(one)))
    if sees_nodes:
        _grant_nodes(place)
    place.token_file.write_text(place.new_token())
    place.kubeconfig.write_text(json.dumps(_kubeconfig(place)))
    _await_rights(place)


def _grant_nodes(place: Place) -> None:
    role = _object("rbac.authorization.k8s.io/v1", "ClusterRole", "ddpipe-test-nodes-and-pods")
    role["rules"] = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}]
    with contextlib.suppress(Refused):
        place.admin.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
    binding = _object(
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBinding",
        _binding_path(place.namespace).rpartition("/")[2],
    )
    binding["roleRef"] = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "ddpipe-test-nodes-and-pods",
    }
    binding["subjects"] = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": place.namespace}]
    place.admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)


def _binding_path(namespace: str) -> str:
    return f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{namespace}-nodes"


def _await_rights(place: Place) -> None:
    """The authoriser learns of new roles a moment later."""
    kind = place.kind.resource
    assert eventually(lambda: place.may(kind.group, kind.plural, "create"), bool), "no Role"


def _kubeconfig(place: Place) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": place.proxy.url}}],
        "users": [{"name": "test", "user": {"tokenFile": str(place.token_file)}}],
        "contexts": [
            {"name": "test", "context": {"cluster": "test", "user": "test", "namespace": place.namespace}}
        ],
    }


def _object(version: str, kind: str, name: str, **metadata: object) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}}
