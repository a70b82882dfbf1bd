"""`kfp.Client`, ready to use: logged in, with time limits, and with errors of ours."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any
from urllib.parse import urlsplit

import kfp
from kfp.client import ServiceAccountTokenVolumeCredentials
from kfp_server_api.exceptions import ApiException
from kfp_server_api.rest import RESTClientObject
from urllib3 import Retry
from urllib3.exceptions import HTTPError

from ddpipe.engine.endpoint import Endpoint, EndpointOptions
from ddpipe.engine.refusals import no_json, refused, unanswered
from ddpipe.errors import ParameterError

PATIENCE = (5, 60)
"""Seconds to connect, and to answer: the generated client waits for ever."""

ONE_USER = "kubeflow"
"""The namespace of runs on a server of one user."""

_PAGE = 100
_RETRIES = Retry(
    total=2,
    connect=0,
    read=0,
    backoff_factor=0.2,
    status_forcelist=(429, 502, 503, 504),
    allowed_methods=("GET",),
    raise_on_status=False,
    respect_retry_after_header=False,
)


@dataclass(frozen=True, slots=True)
class Engine:
    """A pipeline server that has answered.

    Attributes:
        client: Its client.
        endpoint: Where it is.
        namespace: Of the runs; None on a server of one user.
        version: What it says of itself; empty if nothing.
    """

    client: Client
    endpoint: Endpoint
    namespace: str | None
    version: str

    def link(self, run_id: str) -> str:
        """Where the web page shows a run."""
        return f"{self.endpoint.shown}/#/runs/details/{run_id}"


class Client(kfp.Client):  # type: ignore[misc]  # untyped
    """kfp's client, over a transport of ours."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - kfp's own
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # which servers it can talk to: `doctor` tells
            super().__init__(**settings)
        self._existing_config.retries = _RETRIES
        self._run_api.api_client.rest_client = _Transport(self._existing_config)

    def _load_context_setting_or_default(self) -> None:
        """No file of another tool counts; with a namespace, the constructor asks the server nothing."""
        self._context_setting = {"namespace": "to be found out"}

    def set_user_namespace(self, namespace: str) -> None:
        """Choose the namespace, for this object only."""
        self._context_setting["namespace"] = namespace

    def health(self) -> dict[str, Any]:
        """What the server says of itself."""
        answer = self._healthz_api.healthz_service_get_healthz(_preload_content=False)
        return _object(answer.data)

    def text(self, path: str, query: Mapping[str, str]) -> str:
        """What a GET of an address outside of the described API answers."""
        answer = self._run_api.api_client.call_api(
            path, "GET", query_params=list(query.items()), auth_settings=["Bearer"], _preload_content=False
        )
        return str(answer.data.decode(errors="replace"))


class _Transport(RESTClientObject):  # type: ignore[misc]  # untyped
    """Requests that end, with an answer or an error of ours."""

    def request(self, method: str, url: str, *given: Any, **settings: Any) -> Any:  # noqa: ANN401
        """Send one, and wait for its answer."""
        settings["_request_timeout"] = settings.get("_request_timeout") or PATIENCE
        address = urlsplit(url)
        which = f"{method} {address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"
        try:
            answer = super().request(method, url, *given, **settings)
        except ApiException as error:
            raise refused(which, error.status, (error.body or b"").decode(errors="replace")) from None
        except HTTPError as error:
            raise unanswered(which, error) from None
        response = getattr(answer, "urllib3_response", answer)
        if "text/html" in response.headers.get("Content-Type", ""):
            raise no_json(which, str(response.geturl() or url))
        return answer


def connect(endpoint: Endpoint) -> Engine:
    """Reach a pipeline server.

    Raises:
        ParameterError: The server has many users, and no namespace is known.
        EngineError: It does not answer, is no Kubeflow Pipelines 2, or does not let this user in.
    """
    mounted = ServiceAccountTokenVolumeCredentials(endpoint.token_file) if endpoint.token_file else None
    client = Client(
        host=endpoint.url,
        existing_token=endpoint.token or None,
        cookies=endpoint.cookies or None,
        ssl_ca_cert=endpoint.ca_file or None,
        verify_ssl=endpoint.verify_tls,
        credentials=mounted,
    )
    health = client.health()
    many = bool(health.get("multi_user"))
    if many and not endpoint.namespace:
        raise ParameterError(
            what=EndpointOptions.what,
            which="--namespace",
            seen=f"{endpoint.shown} has many users, and no namespace is given",
            do="Name yours, as the Kubeflow page shows it at its top, or set KFP_NAMESPACE.",
        )
    namespace = endpoint.namespace if many else None
    client.set_user_namespace(namespace or "")
    return Engine(client, endpoint, namespace, health.get("tag_name", ""))


def every(page: Callable[..., Any], field: str, **query: Any) -> Iterator[Any]:  # noqa: ANN401 - kfp's models
    """All that a list of the client has, page by page."""
    token = ""
    while True:
        answer = page(page_size=_PAGE, page_token=token, **query)
        yield from getattr(answer, field) or ()
        token = answer.next_page_token
        if not token:
            return


def named(name: str) -> str:
    """The filter for what has this display name."""
    predicate = {"operation": "EQUALS", "key": "display_name", "stringValue": name}
    return json.dumps({"predicates": [predicate]})


@contextmanager
def silent() -> Iterator[None]:
    """Kfp's client logs what it does, and prints links on standard output, where results belong."""
    logging.disable(logging.INFO)
    try:
        with redirect_stdout(StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
