"""A Kubeflow Pipelines 2 server for tests, over HTTP, in memory: what ours ask, as a real one answers it.

It cannot drift from the real API: paths, methods, query parameters, bodies and answers are those of the API's
description, as the package kfp-server-api carries it; what is not described is refused, or fails the test.
What the described types cannot say (codes, words, what is unique) was seen on a real backend of KFP 2.17.
"""

from __future__ import annotations

import email
import inspect
import json
import re
import ssl
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import kfp_server_api
import yaml

HOST = "127.0.0.1"
PLAIN = {"str": str, "bool": bool, "int": int, "datetime": str, "object": object}
Body = dict[str, Any]


class NotAsDescribed(AssertionError):
    """The fake, or a request, is not what the API's description says."""


class Refusal(Exception):
    """The server's no: an HTTP status, the code of gRPC and words."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def not_found(what: str) -> Refusal:
    return Refusal(404, 5, f"{what} not found")


@dataclass(frozen=True)
class Operation:
    """One operation of the API, as the generated client describes it.

    Attributes:
        name: Of the client's method.
        method: HTTP's.
        path: With {placeholders}.
        query: Names of its query parameters.
        body: Type of its body; empty for none.
        answer: Type of what comes back.
    """

    name: str
    method: str
    path: re.Pattern[str]
    query: frozenset[str]
    body: str
    answer: str


def described() -> dict[str, Operation]:
    """All operations of the package's API, by name."""
    found = {}
    kinds = [kind for name, kind in vars(kfp_server_api).items() if name.endswith("ServiceApi")]
    for kind in kinds:
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            if name.endswith("_with_http_info"):
                operation = _operation(name.removesuffix("_with_http_info"), function)
                found[operation.name] = operation
    return found


def _operation(name: str, function: Callable[..., Any]) -> Operation:
    text = inspect.getsource(function)
    path, method = re.findall(r"call_api\(\s*'([^']+)', '([A-Z]+)'", text)[0]
    answer = re.findall(r"response_type='([^']+)'", text)[0]
    body = re.findall(r"body_params = local_var_params\['(\w+)'\]", text)
    types = dict(re.findall(r":type (\w+): (\S+)", text))
    pattern = re.sub(r"\\{([^}]+)\\}", r"([^/:]+)", re.escape(path))
    query = frozenset(re.findall(r"query_params\.append\(\('(\w+)'", text))
    return Operation(name, method, re.compile(pattern), query, types[body[0]] if body else "", answer)


def check(value: Any, kind: str, where: str) -> None:
    """Refuse a value that is not of a described type."""
    if listed := re.fullmatch(r"list\[(.+)\]", kind):
        for item in value:
            check(item, listed[1], where)
    elif mapped := re.fullmatch(r"dict\(str, (.+)\)", kind):
        for name, item in value.items():
            check(item, mapped[1], f"{where}.{name}")
    elif kind in PLAIN:
        if not isinstance(value, PLAIN[kind]):
            raise NotAsDescribed(f"{where} is {value!r}, not {kind}")
    else:
        _check_model(value, getattr(kfp_server_api, kind), where)


def _check_model(value: Any, model: Any, where: str) -> None:
    names = {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
    if not names:  # an enumeration
        if value not in model.allowable_values:
            raise NotAsDescribed(f"{where} is {value!r}, none of {model.allowable_values}")
        return
    for name, item in value.items():
        if name not in names:
            raise NotAsDescribed(f"{where} has no {name}")
        check(item, names[name], f"{where}.{name}")


OPERATIONS = described()
DEFAULTS = {"service_account": "pipeline-runner"}
"""What the server fills in."""

PAGE, LOGIN = "text/html", "/dex/auth?client_id=kubeflow"
LOGIN_PAGE = b"<html><form action='/dex/auth/local'>Log in</form></html>"


@dataclass(frozen=True)
class Request:
    """What came over HTTP."""

    method: str
    address: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    """What goes back."""

    status: int
    content: bytes
    kind: str = "application/json"
    elsewhere: str = ""


def _words(status: int, code: int, message: str) -> Response:
    return Response(status, json.dumps({"code": code, "message": message, "details": []}).encode())


@dataclass
class Server:
    """The server's state, for tests to see and to set.

    Attributes:
        url: Its address.
        namespaces: Of its users; empty on a server of one user.
        token: Without it nobody is let in; empty: everybody is.
        cookie: The same for cookies, with a login page for everybody else.
        version: What it says of itself.
        behind_page: Whether its web page is asked, which passes on the described API and has its own logs.
        faults: What the next requests get in place of an answer: an HTTP status, or an event to wait for.
        requests: What was asked so far.
        ends: How runs end: the states that one has at each look, the last one for ever.
        logs: What pods wrote.
    """

    url: str = ""
    namespaces: tuple[str, ...] = ()
    token: str = ""
    cookie: str = ""
    version: str = "2.17.0"
    behind_page: bool = False
    faults: deque[int | Event] = field(default_factory=deque)
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    ends: tuple[str, ...] = ("PENDING", "RUNNING", "SUCCEEDED")
    logs: dict[str, str] = field(default_factory=dict)
    pipelines: dict[str, Body] = field(default_factory=dict)
    versions: dict[str, Body] = field(default_factory=dict)
    experiments: dict[str, Body] = field(default_factory=dict)
    runs: dict[str, Body] = field(default_factory=dict)
    schedules: dict[str, Body] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)

    def asked(self, part: str) -> int:
        """How many requests had this in them."""
        return sum(part in request for request in self.requests)

    def respond(self, request: Request) -> Response:
        """The answer, or what a fault or a login replaces it with."""
        self.requests.append(f"{request.method} {request.address}")
        fault = self.faults.popleft() if self.faults else 0
        if isinstance(fault, Event):
            fault.wait()
        elif fault:
            return _words(fault, 13, "Internal error: the database is gone")
        if self.cookie and self.cookie not in request.headers.get("Cookie", ""):
            there = request.address.startswith("/dex")
            return Response(200, LOGIN_PAGE, PAGE) if there else Response(302, b"", PAGE, LOGIN)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _words(401, 16, "Unauthenticated: the token has expired")
        try:
            return self._answer(request)
        except Refusal as no:
            return _words(no.status, no.code, str(no))
        except Exception as error:  # noqa: BLE001 - reported to the test
            self.problems.append(repr(error))
            return _words(500, 13, repr(error))

    def _answer(self, request: Request) -> Response:
        parts = urlsplit(request.address)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        log = re.fullmatch(r"/apis/v1alpha1/runs/([^/]+)/nodes/([^/]+)/log", parts.path)
        if log and not self.behind_page:
            return Response(200, self._log(log[2]).encode(), "text/plain")
        if self.behind_page and parts.path == "/k8s/pod/logs":
            return Response(200, self._log(query["podname"]).encode(), "text/plain")
        if self.behind_page and parts.path.startswith("/apis/v1alpha1"):
            return Response(200, b"<html>index.html</html>", PAGE)
        for operation in OPERATIONS.values():
            match = operation.path.fullmatch(parts.path)
            if match and operation.method == request.method:
                answer = self._do(operation, list(map(unquote, match.groups())), query, request)
                return Response(200, json.dumps(answer).encode())
        raise Refusal(404, 5, "Not Found")

    def _do(self, operation: Operation, path: list[str], query: dict[str, str], request: Request) -> Any:
        if unknown := query.keys() - operation.query:
            raise NotAsDescribed(f"{operation.name} takes no {unknown}")
        given: list[Any] = list(path)
        if operation.body:
            content = _with_long_numbers(json.loads(request.body))
            check(content, operation.body, operation.name)
            given.append(content)
        elif "multipart" in request.headers.get("Content-Type", ""):
            given.append(_uploaded(request))
        self._check_namespace(query.get("namespace"), operation)
        answer = getattr(self, operation.name)(*given, **query)
        if operation.answer != "object":
            # Fields of a real server that the description lacks (healthz: its version) are not checked.
            plain = {name: item for name, item in answer.items() if name != "tag_name"}
            check(plain, operation.answer, operation.name)
        return answer

    def _check_namespace(self, namespace: str | None, operation: Operation) -> None:
        if self.namespaces and namespace and namespace not in self.namespaces:
            raise Refusal(403, 7, f"User 'kim' is not authorized in namespace {namespace}")
        if self.namespaces and not namespace and "list_experiments" in operation.name:
            raise Refusal(400, 3, "Invalid input error: a namespace cannot be empty in multi-user mode")

    def _log(self, pod: str) -> str:
        return self.logs.get(pod) or json.dumps({"error_message": "NotFound", "error_details": ""})

    # the operations, named as in the API's description

    def healthz_service_get_healthz(self) -> Body:
        return {"multi_user": bool(self.namespaces), "tag_name": self.version}

    def pipeline_service_list_pipelines(self, **query: str) -> Body:
        return self._listed("pipelines", self.pipelines, query, namespace=query.get("namespace", ""))

    def pipeline_service_create_pipeline(self, body: Body) -> Body:
        if any(_same(item, body, "display_name", "namespace") for item in self.pipelines.values()):
            raise Refusal(409, 6, f"The name {body['display_name']} already exists")
        return _put(self.pipelines, "pipeline_id", body)

    def pipeline_service_list_pipeline_versions(self, pipeline_id: str, **query: str) -> Body:
        return self._listed("pipeline_versions", self.versions, query, pipeline_id=pipeline_id)

    def pipeline_service_get_pipeline_version(self, pipeline_id: str, version_id: str) -> Body:
        if version_id not in self.versions:
            raise not_found(f"PipelineVersion {version_id}")
        assert self.versions[version_id]["pipeline_id"] == pipeline_id
        return self.versions[version_id]

    def upload_pipeline_version(self, content: str, name: str, pipelineid: str, **more: str) -> Body:
        version = {"display_name": name, "pipeline_id": pipelineid, **more}
        if any(_same(item, version, "display_name", "pipeline_id") for item in self.versions.values()):
            raise Refusal(409, 6, f"The name {name} already exists")
        first, *rest = yaml.load_all(content, yaml.CSafeLoader)
        spec = {"pipeline_spec": first, **({"platform_spec": rest[0]} if rest else {})}
        return _put(self.versions, "pipeline_version_id", {**version, "pipeline_spec": spec})

    def experiment_service_list_experiments(self, **query: str) -> Body:
        return self._listed("experiments", self.experiments, query, namespace=query.get("namespace", ""))

    def experiment_service_create_experiment(self, body: Body) -> Body:
        return _put(self.experiments, "experiment_id", body)

    def experiment_service_get_experiment(self, experiment_id: str) -> Body:
        return self.experiments[experiment_id]

    def run_service_create_run(self, body: Body, **_query: str) -> Body:
        self._check_version(body)
        return self._shown(_put(self.runs, "run_id", {**DEFAULTS, **body})["run_id"])

    def run_service_get_run(self, run_id: str, **_query: str) -> Body:
        if run_id not in self.runs:
            raise not_found(f"Run {run_id}")
        self.looks[run_id] = self.looks.get(run_id, 0) + 1
        return self._shown(run_id)

    def run_service_list_runs(self, **query: str) -> Body:
        shown = {run_id: self._shown(run_id) for run_id in reversed(self.runs)}
        return self._listed("runs", shown, query)

    def run_service_terminate_run(self, run_id: str, **_query: str) -> Body:
        self.ends, self.looks[run_id] = ("CANCELING", "FAILED"), 0
        return {}

    def run_service_retry_run(self, run_id: str, **_query: str) -> Body:
        if run_id not in self.runs:
            raise not_found(f"Run {run_id}")
        if self._shown(run_id)["state"] != "FAILED":
            raise Refusal(400, 9, "Only failed runs can be retried")
        self.ends, self.looks[run_id] = ("RUNNING", "SUCCEEDED"), 0
        return {}

    def recurring_run_service_create_recurring_run(self, body: Body) -> Body:
        self._check_version(body)
        status = {"ENABLE": "ENABLED", "DISABLE": "DISABLED"}[body["mode"]]
        return _put(self.schedules, "recurring_run_id", {**DEFAULTS, **body, "status": status})

    def recurring_run_service_list_recurring_runs(self, **query: str) -> Body:
        chosen = {"experiment_id": query["experiment_id"]} if "experiment_id" in query else {}
        return self._listed("recurringRuns", self.schedules, query, **chosen)

    def recurring_run_service_delete_recurring_run(self, schedule_id: str, **_query: str) -> Body:
        if self.schedules.pop(schedule_id, None) is None:
            raise not_found(f"RecurringRun {schedule_id}")
        return {}

    # what they share

    def _check_version(self, body: Body) -> None:
        reference = body.get("pipeline_version_reference")
        if reference and reference["pipeline_version_id"] not in self.versions:
            raise not_found(f"PipelineVersion {reference['pipeline_version_id']}")

    def _listed(self, name: str, items: dict[str, Body], query: dict[str, str], **same: str) -> Body:
        """A page; items without a value for `same` belong to everybody."""
        wanted = {**same, **_equal(query.get("filter"))}
        found = [item for item in items.values() if all(item.get(k, v) == v for k, v in wanted.items())]
        first, size = int(query.get("page_token") or 0), int(query.get("page_size") or 10)
        page = found[first : first + size]
        more = {"next_page_token": str(first + size)} if first + size < len(found) else {}
        return {name: page, **more} if page else {}

    def _shown(self, run_id: str) -> Body:
        """A run in the state that its looks have brought it to, its steps as Argo's nodes."""
        number = min(self.looks.get(run_id, 0), len(self.ends) - 1)
        state, now = self.ends[number], _now()
        failed = state == "FAILED"
        times = {"create_time": now, "start_time": now, "end_time": now}
        before = "SUCCEEDED" if failed or state == "SUCCEEDED" else state
        last = "SUCCEEDED" if failed or state == "SUCCEEDED" else "PENDING"
        states = {"prepare": before, "train": state, "clean-up": last}
        tasks = [
            {
                "display_name": name,
                "state": word,
                "child_tasks": [{"pod_name": f"flow-{name}-7"}],
                **times,
            }
            for name, word in states.items()
        ]
        group = {"display_name": "root", "state": state, **times}
        return {
            **self.runs[run_id],
            "state": state,
            "state_history": [{"state": one, "update_time": now} for one in self.ends[: number + 1]],
            "run_details": {"task_details": [*tasks, group]},
        }


def _put(items: dict[str, Body], key: str, body: Body) -> Body:
    made = {**body, key: str(uuid.uuid4()), "created_at": _now()}
    items[made[key]] = made
    return made


def _with_long_numbers(body: Any) -> Any:
    """JSON of int64 is text, and a server takes numbers too."""
    if isinstance(body, dict):
        return {
            name: str(item) if name in {"max_concurrency", "interval_second"} else _with_long_numbers(item)
            for name, item in body.items()
        }
    return body


def _same(one: Body, other: Body, *names: str) -> bool:
    return all(one.get(name) == other.get(name) for name in names)


def _equal(text: str | None) -> dict[str, str]:
    predicates = json.loads(text)["predicates"] if text else []
    return {item["key"]: item["stringValue"] for item in predicates if item["operation"] in {"EQUALS", 1}}


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _uploaded(request: Request) -> str:
    head = f"Content-Type: {request.headers['Content-Type']}\r\n\r\n".encode()
    message = email.message_from_bytes(head + request.body)
    part = message.get_payload()[0]
    content = part.get_payload(decode=True)  # type: ignore[union-attr]
    assert isinstance(content, bytes)
    return content.decode()


@contextmanager
def running(certificate: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Start one, and end it; a request or an answer that is not as described fails the test."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = server.respond(Request(self.command, self.path, dict(self.headers.items()), body))
            self.send_response_only(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.content)))
            if answer.elsewhere:
                self.send_header("Location", answer.elsewhere)
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_DELETE = _handle  # noqa: N815 - http.server's names

        def log_message(self, *arguments: object) -> None:
            """Stay quiet."""

    class Front(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *arguments: object) -> None:
            """Stay quiet: a client that has given up, or one that does not trust us."""

    with Front((HOST, 0), Handler) as front:
        if certificate:
            front.socket = certificate.wrap_socket(front.socket, server_side=True)
        server = Server(f"{'https' if certificate else 'http'}://{HOST}:{front.server_address[1]}")
        thread = Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            front.shutdown()
            thread.join()
    assert not server.problems
