"""Whether a package can be sent to a server: address, login, namespace, version, secret; each with its fix.

What cannot be seen from here (without a kubeconfig) is unknown, which is not a failure. Rights, images and
the store are checked by the first step of a run and by each launcher, which see them as the steps do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from ddpipe.engine.answers import EXPERIMENT
from ddpipe.engine.client import ONE_USER, Engine
from ddpipe.engine.package import Package
from ddpipe.errors import DdpipeError, EngineForbidden, InputError, LoginRequired, ParameterError
from ddpipe.kube.api import ApiError, Cluster, Refused
from ddpipe.kube.resources import SECRETS


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


def examine(
    reach: Callable[[], Engine], see: Callable[[], Cluster], package: Package, least: str
) -> Iterator[Check]:
    """Run all checks; if the server cannot be used, the rest is left out. `least`: the oldest that works."""
    checks, engine = _server(reach)
    yield from checks
    if engine:
        yield _version(engine, least)
        yield _secret(see, engine.namespace or ONE_USER, package)


def _server(reach: Callable[[], Engine]) -> tuple[list[Check], Engine | None]:
    """Check address, login and namespace; the server, if all three are right."""
    try:
        engine = reach()
        query = {"page_size": 1, "namespace": engine.namespace}
        engine.client.ask("GET", "experiments", {"experiments": [EXPERIMENT]}, query=query)
    except LoginRequired as error:
        return [Check("endpoint", State.OK, error.which), _failed("login", error)], None
    except EngineForbidden as error:
        login = Check("login", State.OK, "the login is valid")
        return [Check("endpoint", State.OK, error.which), login, _failed("namespace", error)], None
    except ParameterError as error:
        return [_failed("namespace" if "namespace" in error.which else "endpoint", error)], None
    except DdpipeError as error:
        return [_failed("endpoint", error)], None
    endpoint = Check("endpoint", State.OK, engine.endpoint.shown)
    login = Check("login", State.OK, "experiments can be listed")
    namespace = engine.namespace or "none needed: a single-user server"
    return [endpoint, login, Check("namespace", State.OK, namespace)], engine


def _version(engine: Engine, least: str) -> Check:
    found = tuple(map(int, re.findall(r"\d+", engine.version)[:3]))
    if not found:
        return Check(
            "version", State.UNKNOWN, "the server does not report it", f"It must be {least} or later."
        )
    if found < tuple(map(int, least.split("."))):
        return Check("version", State.FAIL, engine.version, f"Upgrade it to {least} or later.")
    return Check("version", State.OK, engine.version)


def _secret(see: Callable[[], Cluster], namespace: str, package: Package) -> Check:
    """Whether the keys of the object store are where the package's steps look for them."""
    name = next((item.default for item in package.parameters if item.name == "storage_secret"), "")
    if not name:
        return Check("secret", State.OK, "the package needs none")
    try:
        keys = see().get(SECRETS.path(namespace, name)).get("data", {}).keys()
    except InputError as error:  # the kubeconfig is wrong
        return _failed("secret", error)
    except (ApiError, DdpipeError) as error:
        if isinstance(error, Refused) and error.status == HTTPStatus.NOT_FOUND:
            fix = "Create it with accesskey and secretkey, or name another: --set storage_secret=NAME."
            return Check("secret", State.FAIL, f"{namespace} has no secret {name}", fix)
        return Check("secret", State.UNKNOWN, str(getattr(error, "seen", error)), "Set KUBECONFIG to see it.")
    if missing := {"accesskey", "secretkey"} - keys:
        return Check("secret", State.FAIL, f"{name} lacks {', '.join(sorted(missing))}", "Add it.")
    return Check("secret", State.OK, f"{name} has both keys")


def _failed(name: str, error: DdpipeError) -> Check:
    return Check(name, State.FAIL, f"{error.which}: {error.seen}", error.do)
