"""Address and credentials of the pipeline server: from options, the environment, or the pod.

| setting        | option           | environment      | inside a cluster                                   |
|----------------|------------------|------------------|----------------------------------------------------|
| address        | --endpoint       | KFP_ENDPOINT     | the service ml-pipeline of the namespace kubeflow  |
| namespace      | --namespace      | KFP_NAMESPACE    | the pod's own                                      |
| token          | --token-file     | KFP_TOKEN        | KF_PIPELINES_SA_TOKEN_PATH, or where KFP mounts it |
| login cookies  | --cookies-file   | KFP_COOKIES      |                                                    |
| certificates   | --ca-file        | KFP_CA_FILE      |                                                    |

Tokens and cookies are never options themselves: other users of a machine see a command's arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from ddpipe.errors import ParameterError
from ddpipe.parameters import Parameters, parameter

IN_CLUSTER = "http://ml-pipeline.kubeflow.svc.cluster.local:8888"
_MOUNTED_TOKEN = "/var/run/secrets/kubeflow/pipelines/token"  # noqa: S105 - the path of one
_OWN_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions(Parameters):
    """Where the pipeline server is, and who asks."""

    what: ClassVar[str] = "the connection to the pipeline server is not configured"
    heading: ClassVar[str] = "Pipeline server"

    endpoint: str = parameter(
        "",
        "URL of Kubeflow Pipelines, such as http://127.0.0.1:8888 (port-forward) or "
        "https://kubeflow.example.com/pipeline (default: KFP_ENDPOINT, or inside a cluster its own "
        "server).",
    )
    namespace: str = parameter(
        "", "Namespace of the runs, on a multi-user Kubeflow (default: KFP_NAMESPACE, or the pod's)."
    )
    token_file: str = parameter(
        "", "File with a bearer token (default: KFP_TOKEN, or the token that Kubeflow mounts into pods)."
    )
    cookies_file: str = parameter(
        "", "File with login cookies as a browser sends them, NAME=VALUE; NAME=VALUE (default: KFP_COOKIES)."
    )
    ca_file: str = parameter(
        "",
        "File with certificates to trust, for self-signed ones (default: KFP_CA_FILE, or the public ones).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address and credentials of a pipeline server; what is empty is unknown, or not needed."""

    url: str
    namespace: str = ""
    token_file: str = ""  # read again for each request, because tokens are renewed
    token: str = field(default="", repr=False)
    cookies: str = field(default="", repr=False)
    ca_file: str = ""

    @property
    def shown(self) -> str:
        """The address without user, password and query, for messages."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def headers(self) -> dict[str, str]:
        """What shows who asks."""
        token = _header(self.token_file, _text(self.token_file)) if self.token_file else self.token
        login = {"Authorization": f"Bearer {token}"} if token else {}
        return login | ({"Cookie": self.cookies} if self.cookies else {})


def resolve(options: EndpointOptions, environment: Mapping[str, str]) -> Endpoint:
    """Take each setting from the options, else from the environment, else from the pod."""
    url, namespace = address(options, environment), options.namespace or environment.get("KFP_NAMESPACE", "")
    if not namespace and (own := Path(_OWN_NAMESPACE)).is_file():
        namespace = own.read_text().strip()
    token, token_file = "", options.token_file
    if token_file:
        _header(token_file, _text(token_file))  # checked now, and read again for each request
    else:
        token = _header("KFP_TOKEN", environment.get("KFP_TOKEN", ""))
        mounted = environment.get("KF_PIPELINES_SA_TOKEN_PATH", _MOUNTED_TOKEN)  # KFP's projected volume
        token_file = mounted if not token and Path(mounted).is_file() else ""
    lines = _text(options.cookies_file).splitlines() if options.cookies_file else []
    cookies = "; ".join(line.strip().rstrip(";") for line in lines if line.strip())
    return Endpoint(
        url=_checked(url),
        namespace=namespace,
        token_file=token_file,
        token=token,
        cookies=_header(options.cookies_file, cookies)
        or _header("KFP_COOKIES", environment.get("KFP_COOKIES", "")),
        ca_file=_readable(options.ca_file or environment.get("KFP_CA_FILE", "")),
    )


def address(options: EndpointOptions, environment: Mapping[str, str]) -> str:
    """The URL that is configured; empty if there is none."""
    inside = "KUBERNETES_SERVICE_HOST" in environment
    return options.endpoint or environment.get("KFP_ENDPOINT", "") or (IN_CLUSTER if inside else "")


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half an IPv6 address, a port that is not a number
        is_url = False
    if is_url and url.isprintable() and " " not in url:
        return url.rstrip("/")
    raise _wrong(
        "--endpoint",
        "it is not a URL with http:// or https://" if url else "no URL of a server is given",
        "Give it, or set KFP_ENDPOINT; for a port-forward: "
        "kubectl port-forward -n kubeflow svc/ml-pipeline 8888, then http://127.0.0.1:8888",
    )


def _header(source: str, text: str) -> str:
    """A token or cookies without the line break at the end that files and Secrets have."""
    value = text.strip()
    if value.isascii() and value.isprintable():
        return value
    seen = "it has line breaks inside, or characters that an HTTP header cannot have"
    raise _wrong(source, seen, "Write the token or the cookies on one line, in plain ASCII.")


def _text(path: str) -> str:
    try:
        return Path(_readable(path)).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(path, f"it is not a readable text file: {error}", "Correct it.") from error


def _readable(path: str) -> str:
    if path and not Path(path).is_file():
        raise _wrong(path, "there is no such file", "Correct the path.")
    return path


def _wrong(which: str, seen: str, do: str) -> ParameterError:
    return ParameterError(what=EndpointOptions.what, which=which, seen=seen, do=do)
