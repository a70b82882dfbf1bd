"""Whether a package would run: server, login, namespace, version, rights, images, store; each with its fix.

What cannot be seen from here (no kubeconfig, no keys of the store) is unknown, which is not a failure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from ddpipe.engine.answers import EXPERIMENT
from ddpipe.engine.client import ONE_USER, Engine
from ddpipe.engine.package import Package
from ddpipe.errors import DdpipeError, EngineForbidden, InputError, LoginRequired, ParameterError
from ddpipe.jobs import BACKENDS
from ddpipe.jobs.backend import Backend, all_backends, backend
from ddpipe.jobs.job import Owner, TrainingJob
from ddpipe.kube.api import ApiError, Cluster, Refused
from ddpipe.kube.cluster import is_served, may, needed
from ddpipe.kube.resources import SECRETS
from ddpipe.storage import open_store

# Two nodes: some kinds of job need a Service for them.
_EXAMPLE = TrainingJob(owner=Owner(), namespace="default", image="any", nodes=2)


class State(StrEnum):
    """Result of a check."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One check, and what to do if it fails; empty if there is nothing to do."""

    name: str
    state: State
    seen: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would run, the oldest server that accepts it, and the steps' account; empty for the default."""

    package: Package
    least: str
    account: str = ""


def examine(reach: Callable[[], Engine], see: Callable[[], Cluster], plan: Plan) -> Iterator[Check]:
    """Run all checks; if the server cannot be used, the others are left out."""
    engine: Engine | None = None
    for check, engine in _server(reach):  # noqa: B007 - the last one counts
        yield check
    if engine is None:
        return
    yield _version(engine, plan.least)
    yield from _cluster(see, engine, plan)
    yield from _stores(plan.package)


def _server(reach: Callable[[], Engine]) -> Iterator[tuple[Check, Engine | None]]:
    """Check address, login and namespace; the server follows once all three are right."""
    try:
        engine = reach()
        query = {"page_size": 1, "namespace": engine.namespace}
        engine.client.ask("GET", "experiments", {"experiments": [EXPERIMENT]}, query=query)
    except LoginRequired as error:
        yield Check("endpoint", State.OK, error.which), None
        yield _failed("login", error), None
    except EngineForbidden as error:
        yield Check("endpoint", State.OK, error.which), None
        yield Check("login", State.OK, "the login is valid"), None
        yield _failed("namespace", error), None
    except ParameterError as error:
        yield _failed("namespace" if "namespace" in error.which else "endpoint", error), None
    except DdpipeError as error:
        yield _failed("endpoint", error), None
    else:
        many = engine.namespace or "none needed: a single-user server"
        yield Check("endpoint", State.OK, engine.endpoint.shown), engine
        yield Check("login", State.OK, "experiments can be listed"), engine
        yield Check("namespace", State.OK, many), engine


def _version(engine: Engine, least: str) -> Check:
    found = tuple(map(int, re.findall(r"\d+", engine.version)[:3]))
    if not found:
        return Check(
            "version", State.UNKNOWN, "the server does not report it", f"It must be {least} or later."
        )
    if found < tuple(map(int, least.split("."))):
        return Check("version", State.FAIL, engine.version, f"Upgrade it to {least} or later.")
    return Check("version", State.OK, engine.version)


def _cluster(see: Callable[[], Cluster], engine: Engine, plan: Plan) -> Iterator[Check]:
    namespace = engine.namespace or ONE_USER
    account = plan.account or ("default-editor" if engine.namespace else "pipeline-runner")
    try:
        cluster = see()
        cluster.get("/version")
    except InputError as error:
        yield _failed("cluster", error)
        return
    except (ApiError, DdpipeError) as error:
        seen = f"Kubernetes cannot be reached from here: {getattr(error, 'seen', error)}"
        for name in ("rights", "images", "secret"):
            yield Check(name, State.UNKNOWN, seen, "Set KUBECONFIG to see more.")
        return
    name = _default(plan.package, "cluster_backend")
    launched = (backend(name),) if name in BACKENDS else all_backends()
    yield _rights(cluster, namespace, account, launched)
    yield from (_image(cluster, image) for image in _images(plan.package))
    yield _secret(cluster, namespace, str(_default(plan.package, "storage_secret")))


def _rights(cluster: Cluster, namespace: str, account: str, backends: Sequence[Backend]) -> Check:
    """Which kinds of job the steps' account may launch; one is enough."""
    who = f"{account} in {namespace}"
    try:
        lacking = {
            item.resource.kind: [
                f"{verb} {right.name}"
                for right in needed(item.resource, *(one.resource for one in item.owned_objects(_EXAMPLE)))
                for verb in right.verbs
                if not may(cluster, namespace, right, verb, account)
            ]
            for item in backends
            if is_served(cluster, item.resource)
        }
    except ApiError as error:
        return Check("rights", State.UNKNOWN, f"of {who}: {error}", "Ask someone who may review access.")
    if not lacking:
        kinds = ", ".join(item.resource.kind for item in backends)
        return Check("rights", State.UNKNOWN, f"this cluster serves no {kinds}", "Install an operator.")
    if able := [kind for kind, missing in lacking.items() if not missing]:
        return Check("rights", State.OK, f"{who} may launch {', '.join(able)}")
    missing = dict.fromkeys(item for each in lacking.values() for item in each)
    apply = f"kubectl apply -n {namespace} -f images/rbac.yaml"
    fix = f"{apply}, and bind it to {account} (see docs/tutorials/kubeflow.md)."
    return Check("rights", State.FAIL, f"{who} may not: {', '.join(missing)}", fix)


def _images(package: Package) -> list[str]:
    executors = package.spec.get("deploymentSpec", {}).get("executors", {}).values()
    named = [item.get("container", {}).get("image", "") for item in executors]
    return sorted({image for image in (*named, str(_default(package, "cluster_image"))) if image})


def _image(cluster: Cluster, image: str) -> Check:
    """Whether some node has the image; whether others can pull it is not known before they do."""
    try:
        nodes = cluster.get("/api/v1/nodes")["items"]
    except ApiError as error:
        return Check("image", State.UNKNOWN, f"{image}: {error}")
    names = {
        name
        for node in nodes
        for found in node["status"].get("images") or ()
        for name in found.get("names") or ()
    }
    if any(name == image or name.endswith(f"/{image}") for name in names):
        return Check("image", State.OK, f"{image} is on a node")
    fix = "If no registry has it: make images, push them, then make compile, with your REGISTRY and TAG."
    return Check("image", State.UNKNOWN, f"{image} is not on any node yet", fix)


def _secret(cluster: Cluster, namespace: str, name: str) -> Check:
    if not name:
        return Check("secret", State.OK, "the package needs none")
    try:
        keys = cluster.get(SECRETS.path(namespace, name)).get("data", {}).keys()
    except ApiError as error:
        if isinstance(error, Refused) and error.status == HTTPStatus.NOT_FOUND:
            fix = "Create it with accesskey and secretkey, or name another: --set storage_secret=NAME."
            return Check("secret", State.FAIL, f"{namespace} has no secret {name}", fix)
        return Check("secret", State.UNKNOWN, str(error))
    if missing := {"accesskey", "secretkey"} - keys:
        return Check("secret", State.FAIL, f"{name} lacks {', '.join(sorted(missing))}", "Add it.")
    return Check("secret", State.OK, f"{name} has both keys")


def _stores(package: Package) -> Iterator[Check]:
    for field in ("storage_runs", "storage_datasets"):
        uri = str(_default(package, field))
        if not uri.startswith("s3://"):
            continue
        if "S3_ENDPOINT" not in os.environ:
            fix = "Set S3_ENDPOINT, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to try it from here."
            yield Check("store", State.UNKNOWN, f"{uri} was not tried", fix)
            continue
        try:
            open_store(uri).check_writable()
        except DdpipeError as error:
            yield _failed("store", error)
        else:
            yield Check("store", State.OK, f"{uri} can be written")


def _default(package: Package, name: str) -> Any:  # noqa: ANN401 - of the parameter's own type
    return next((item.default for item in package.parameters if item.name == name), "")


def _failed(name: str, error: DdpipeError) -> Check:
    return Check(name, State.FAIL, f"{error.which}: {error.seen}", error.do)
