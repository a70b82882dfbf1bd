"""The errors for what a pipeline server rejects or leaves unanswered."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
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
_POOL = re.compile(r"^HTTPS?Connection(Pool)?\(.*?\): ")
"""How urllib3 begins a message: the host, which our message names already."""


def refused(url: str, status: int, body: str) -> EngineError:
    """The error for an answer whose status is not 2xx."""
    message = _message(body)
    if message == "Not Found" or (message is None and status in _STRANGE):
        return _no_engine(url, f"the server answers HTTP {status}, but not as Kubeflow Pipelines does")
    if message is None and status == HTTPStatus.FORBIDDEN:
        status = HTTPStatus.UNAUTHORIZED  # of a proxy: the server itself names the user and the right
    kind, do = _MEANING.get(status, (EngineError, "Correct what the server names."))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        kind, do = EngineUnreachable, _FAILING
    if kind is UnknownToEngine:
        do = next((text for part, text in _LISTS.items() if f"/{part}" in url), do)
    return kind(what=WHAT, which=url, seen=message or f"HTTP {status}{_plain(body)}", do=do)


def unanswered(url: str, error: Exception) -> EngineError:
    """The error for a request without an answer."""
    seen = _POOL.sub("", str(getattr(error, "reason", None) or error))
    if "SSL" in str(error):
        return EngineUnreachable(
            what=WHAT,
            which=url,
            seen=seen,
            do="Give the server's certificate by --ca-file or KFP_CA_FILE, and check http:// or https://.",
        )
    return EngineUnreachable(
        what=WHAT,
        which=url,
        seen=seen,
        do=f"Check that it runs, and that the port-forward is still up. {_ADDRESS}",
    )


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


def _plain(body: str) -> str:
    """The message of a proxy, unless it is a web page."""
    return "" if "<" in body or not body.strip() else f": {body.strip()[:_SHORT]}"


def _message(body: str) -> str | None:
    """The innermost message of an error; None if the answer is not from Kubeflow Pipelines."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return None
    if not isinstance(answer, dict) or "message" not in answer:
        return None
    inner = [item["message"] for item in answer.get("details") or () if item.get("message")]
    return str((inner or [answer["message"]])[0])
