"""What a pipeline server's answers must look like, and our errors for all others.

Every answer is compared with the types that the API describes, so that a server which is none, or a proxy in
front of it, shows at once, and not later as a traceback. Fields that are not read here are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from ddpipe.errors import (
    EngineConflict,
    EngineError,
    EngineForbidden,
    EngineUnreachable,
    LoginRequired,
    NotAnEngine,
    UnknownToEngine,
)

TEXT, FLAG, TIME, ANY = "text", "flag", "time", "any"
# One of these words; a list of a shape; or fields with their shapes, where "!" marks what must be there.
Shape = str | list[Any] | dict[str, Any]
WHAT = "Kubeflow Pipelines cannot be used"
_LOG_IN = (
    "Log in again, and give the fresh cookies (KFP_COOKIES or --cookies-file) or token "
    "(KFP_TOKEN or --token-file); inside a cluster the pod needs Kubeflow's token volume."
)
_ADDRESS = (
    "Check --endpoint or KFP_ENDPOINT: it is the URL of the service ml-pipeline, or that of "
    "Kubeflow followed by /pipeline."
)
_LOGIN_PAGE = re.compile(r"/(dex|oauth2?|auth|login|sign_in)([/?]|$)")
_LISTS = {
    "runs": "List the runs: `ddpipe runs ls`.",
    "recurringruns": "List the schedules: `ddpipe schedule ls`.",
    "pipelines": "Upload the package again: `ddpipe submit`.",
    "experiments": "Name another experiment with --experiment.",
}
_FAILING = "Try again; if it keeps failing, see its log: kubectl logs -n kubeflow deploy/ml-pipeline"
_CONTRIBUTE = (
    "Check --namespace, and ask its owner to make you a contributor (Manage Contributors in the Kubeflow UI)."
)
_MEANING: Mapping[int, tuple[type[EngineError], str]] = {
    HTTPStatus.UNAUTHORIZED: (LoginRequired, _LOG_IN),
    HTTPStatus.FORBIDDEN: (EngineForbidden, _CONTRIBUTE),
    HTTPStatus.NOT_FOUND: (UnknownToEngine, "Correct the ID."),
    HTTPStatus.CONFLICT: (EngineConflict, "Choose another name."),
    HTTPStatus.TOO_MANY_REQUESTS: (EngineUnreachable, _FAILING),
}
_STRANGE = {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}
_SHORT, _LONGEST = 100, 400
# How urllib3 begins a message: the host, which our message names already.
_POOL = re.compile(r"^HTTPS?Connection(Pool)?\(.*?\): ")
_REFERENCE: Shape = {"pipeline_id": TEXT, "pipeline_version_id": TEXT}
_TASK: Shape = {
    "display_name!": TEXT,
    "state": TEXT,
    "start_time": TIME,
    "end_time": TIME,
    "pod_name": TEXT,
    "child_tasks": [{"pod_name": TEXT}],
}
HEALTH: Shape = {"multi_user": FLAG, "tag_name": TEXT}
EXPERIMENT: Shape = {"experiment_id!": TEXT, "display_name!": TEXT}
PIPELINE: Shape = {"pipeline_id!": TEXT, "display_name!": TEXT}
VERSION: Shape = {"pipeline_version_id!": TEXT, "display_name!": TEXT, "pipeline_spec": ANY}
RUN: Shape = {
    "run_id!": TEXT,
    "display_name!": TEXT,
    "state": TEXT,
    "created_at": TIME,
    "experiment_id": TEXT,
    "recurring_run_id": TEXT,
    "error": {"message": TEXT},
    "pipeline_spec": ANY,
    "pipeline_version_reference": _REFERENCE,
    "run_details": {"task_details": [_TASK]},
    "state_history": [{"state": TEXT}],
}
SCHEDULE: Shape = {
    "recurring_run_id!": TEXT,
    "display_name!": TEXT,
    "trigger!": {"cron_schedule": {"cron": TEXT}, "periodic_schedule": {"interval_second": TEXT}},
    "status": TEXT,
    "experiment_id": TEXT,
    "service_account": TEXT,
    "pipeline_version_reference": _REFERENCE,
    "runtime_config": {"parameters": ANY},
}


class NotAsDescribed(ValueError):
    """An answer that does not fit the API's description; the message says where."""


def parsed(content: bytes) -> dict[str, Any]:
    """The JSON object of an answer."""
    try:
        found: dict[str, Any] = _of_type(json.loads(content), dict, "the answer")
    except (ValueError, RecursionError) as error:
        raise NotAsDescribed(f"the answer is not a JSON object: {error}") from error
    return found


def fitted(value: Any, shape: Shape, where: str = "the answer") -> Any:  # noqa: ANN401 - any JSON
    """A value of this shape: objects have attributes, None for what is missing; times are times."""
    if value is None or shape == ANY:
        return value
    if isinstance(shape, list):
        items = _of_type(value, list, where)
        if None in items:
            raise NotAsDescribed(f"{where}[{items.index(None)}] is null")
        return [fitted(item, shape[0], f"{where}[{number}]") for number, item in enumerate(items)]
    if isinstance(shape, dict):
        return _object(_of_type(value, dict, where), shape, where)
    if shape == FLAG:
        return _of_type(value, bool, where)
    if shape == TIME:
        return _time(value, where)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise NotAsDescribed(f"{where} is {type(value).__name__}, not text")
    return str(value)  # JSON of int64 is text, and some servers send numbers


def _object(value: dict[str, Any], shape: dict[str, Any], where: str) -> SimpleNamespace:
    fields = {}
    for marked, inner in shape.items():
        name = marked.removesuffix("!")
        if marked != name and not value.get(name):
            raise NotAsDescribed(f"{where} has no {name}")
        fields[name] = fitted(value.get(name), inner, f"{where}.{name}")
    return SimpleNamespace(**fields)


def _time(value: Any, where: str) -> datetime:  # noqa: ANN401 - any JSON
    try:
        moment = datetime.fromisoformat(_of_type(value, str, where))
    except ValueError as error:
        raise NotAsDescribed(f"{where} is not a time") from error
    if moment.tzinfo is None:
        raise NotAsDescribed(f"{where} is a time without a time zone")
    return moment


def _of_type(value: Any, kind: type, where: str) -> Any:  # noqa: ANN401 - any JSON
    if not isinstance(value, kind):
        raise NotAsDescribed(f"{where} is {type(value).__name__}, not {kind.__name__}")
    return value


def refused(url: str, status: int, body: str) -> EngineError:
    """The error for an answer whose status is not 2xx."""
    message = _message(body)
    if message == "Not Found" or (message is None and status in _STRANGE):
        return _no_engine(url, f"the server answers HTTP {status}, but not as Kubeflow Pipelines does")
    # A 403 without words is a proxy's, which knows no login; the server itself names the user and the right.
    is_login = message is None and status == HTTPStatus.FORBIDDEN
    meant = HTTPStatus.UNAUTHORIZED if is_login else status
    kind, do = _MEANING.get(meant, (EngineError, "Correct what the server names."))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        kind, do = EngineUnreachable, _FAILING
    if kind is UnknownToEngine:
        do = next((text for part, text in _LISTS.items() if f"/{part}" in url), do)
    # What a proxy says, unless it is a web page.
    said = "" if "<" in body or not body.strip() else f": {body.strip()[:_SHORT]}"
    return kind(what=WHAT, which=url, seen=message or f"HTTP {status}{said}", do=do)


def unanswered(url: str, error: Exception) -> EngineError:
    """The error for a request without an answer."""
    seen = _POOL.sub("", str(getattr(error, "reason", None) or error))
    do = f"Check that it runs, and that the port-forward is still up. {_ADDRESS}"
    if "SSL" in str(error):
        do = "Give the server's certificate by --ca-file or KFP_CA_FILE, and check http:// or https://."
    return EngineUnreachable(what=WHAT, which=url, seen=seen, do=do)


def no_json(url: str, landed: str) -> EngineError:
    """The error for a web page instead of data: usually a login page."""
    if _LOGIN_PAGE.search(landed):
        return LoginRequired(
            what=WHAT, which=url, seen=f"the server sent a login page ({landed})", do=_LOG_IN
        )
    return _no_engine(url, "the server sent a web page")


def not_described(url: str, problem: Exception) -> NotAnEngine:
    """The error for an answer that Kubeflow Pipelines 2 does not give."""
    return _no_engine(url, f"the answer does not match the API of Kubeflow Pipelines: {problem}"[:_LONGEST])


def _no_engine(url: str, seen: str) -> NotAnEngine:
    return NotAnEngine(what=WHAT, which=url, seen=seen, do=_ADDRESS)


def _message(body: str) -> str | None:
    """The innermost message of an error; None if the answer is not from Kubeflow Pipelines."""
    try:
        answer = parsed(body.encode())
    except NotAsDescribed:
        return None
    details = answer.get("details")
    items = details if isinstance(details, list) else []
    inner = [item.get("message") for item in items if isinstance(item, dict)]
    words = [*inner, answer.get("message"), answer.get("error_message"), answer.get("error")]
    return next((word for word in words if word and isinstance(word, str)), None)
