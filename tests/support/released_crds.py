"""The operators' released CRDs, by the client of Go's modules; and a page on what of a job is sent to each.

`python tests/support/released_crds.py > docs/operators.md` writes the page.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from launch_samples import a_job

from ddpipe.errors import ParameterError
from ddpipe.jobs import trainjob
from ddpipe.jobs.backend import Backend, backend

Schema = dict[str, Any]

OPTIONS: Mapping[str, Any] = {
    "gpus": 2,
    "env": {"NCCL_DEBUG": "INFO"},
    "volumes": [
        "claim:data:/data",
        "secret:keys:/keys",
        "config:settings:/settings",
        "snapshot:friday:/old:1Gi",
    ],
    "s3_secret": "store",
    "node_selector": {"pool": "a100"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "service_account": "trainer",
    "pull_secrets": ["registry"],
    "labels": {"team": "vision"},
    "annotations": {"note": "kept"},
    "patch": {"spec": {"runtimeClassName": "nvidia", "priorityClassName": "high"}},
    "pull_policy": "Always",
    "queue": "team",
    "scheduling": {"minAvailable": 2},
}
"""A value of each option that has to have a place in the object that is sent."""


@dataclass(frozen=True)
class Release:
    """A release of an operator.

    Attributes:
        name: For people.
        module: The Go module that it is made of.
        crd: Where it holds the CRD.
        version: Of the module.
        backend: What sends such jobs.
    """

    name: str
    module: str
    crd: str
    version: str
    backend: str

    def __str__(self) -> str:
        return self.name

    @property
    def kind(self) -> Backend:
        """What sends such jobs."""
        return backend(self.backend)

    @property
    def schema(self) -> Schema:
        """The schema of the whole object."""
        return _schema(f"{self.module}@{self.version}", self.crd, self.kind.resource.version)

    @property
    def spec(self) -> Schema:
        """The fields of `spec`, as the launcher sees them."""
        found: Schema = self.schema["properties"]["spec"]["properties"]
        return found

    def manifest(self, **options: Any) -> dict[str, Any]:
        """What is sent for a job of two pods."""
        return self.kind.manifest(a_job(backend=self.backend, **options), self.spec)

    def refuses(self, option: str) -> bool:
        """Whether a job with this option is refused."""
        try:
            self.manifest(**{option: OPTIONS[option]})
        except ParameterError:
            return True
        return False


_TRAINING = ("github.com/kubeflow/training-operator", "manifests/base/crds/kubeflow.org_pytorchjobs.yaml")
_TRAINER = ("github.com/kubeflow/trainer/v2", "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml")
_OLDEST = ("github.com/kubeflow/pytorch-operator", "manifests/base/crd.yaml")
RELEASES = (
    Release("pytorch-operator 0.7", *_OLDEST, "v0.7.0", "pytorchjob"),
    Release("Training Operator 1.4", *_TRAINING, "v1.4.0", "pytorchjob"),
    Release("Training Operator 1.5", *_TRAINING, "v1.5.0", "pytorchjob"),
    Release("Training Operator 1.6", *_TRAINING, "v1.6.0", "pytorchjob"),
    Release("Training Operator 1.7", *_TRAINING, "v1.7.0", "pytorchjob"),
    Release("Training Operator 1.8", *_TRAINING, "v1.8.1", "pytorchjob"),
    Release("Training Operator 1.9", *_TRAINING, "v1.9.3", "pytorchjob"),
    Release("Trainer 2.0", *_TRAINER, "v2.0.1", "trainjob"),
    Release("Trainer 2.1", *_TRAINER, "v2.1.0", "trainjob"),
    Release("Trainer 2.2", *_TRAINER, "v2.2.1", "trainjob"),
    Release("Trainer 2.3", *_TRAINER, "v2.3.0", "trainjob"),
)
"""The newest of each minor version; pytorch-operator 0.7 is the last one that was released, and MiniKF's."""


@cache
def _folders() -> dict[str, Path]:
    """Where each module is unpacked."""
    wanted = {f"{release.module}@{release.version}" for release in RELEASES}
    with tempfile.TemporaryDirectory() as outside_of_modules:
        command = ["go", "mod", "download", "-json", *sorted(wanted)]
        done = subprocess.run(command, cwd=outside_of_modules, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {f"{item['Path']}@{item['Version']}": Path(item["Dir"]) for item in _documents(done.stdout)}
    assert found.keys() == wanted
    return found


def _documents(text: str) -> Iterator[Any]:
    """JSON documents, one after the other."""
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        text = text[end:]
        yield document


def is_go_there() -> bool:
    """Whether the client of Go's modules is installed."""
    return shutil.which("go") is not None


@cache
def _schema(module: str, crd: str, version: str) -> Schema:
    spec = yaml.load((_folders()[module] / crd).read_text(), yaml.CSafeLoader)["spec"]
    of_version = next(item for item in spec["versions"] if item["name"] == version)
    # CRDs of v1beta1 have one schema for all versions.
    found: Schema = (of_version.get("schema") or spec["validation"])["openAPIV3Schema"]
    return found


def problems(release: Release, manifest: Mapping[str, Any]) -> list[str]:
    """What an API server that has the release's CRD would refuse, or drop in silence."""
    keeps_all = "type" not in release.schema  # not structural, as was possible in v1beta1: nothing is dropped
    schema = release.schema if keeps_all else _closed(release.schema)
    schema = {**schema, "properties": {**schema["properties"], "metadata": {"type": "object"}}}
    found = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    return [f"{error.json_path}: {error.message}" for error in found]


def _closed(schema: Schema) -> Schema:
    """A structural schema as JSON Schema: a field that it does not name is wrong, for it would be dropped."""
    closed = dict(schema)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            closed[name] = _closed(schema[name])
    closed["properties"] = {name: _closed(field) for name, field in schema.get("properties", {}).items()}
    keeps = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if schema.get("type") == "object" and not keeps:
        closed["additionalProperties"] = False
    return closed


_OPENED = {"pytorchReplicaSpecs", "runPolicy"}


def page() -> str:
    """What is sent where."""
    rows = [
        f"| {release} | {_sent(release)} | {_left(release)} | {_refused(release)} |" for release in RELEASES
    ]
    return "\n".join([_HEAD, *rows, ""])


_HEAD = """# What is sent to which operator

Generated from the CRDs of each release by `python tests/support/released_crds.py`. `pytest -m installs`
checks that the page is current, and that every field that is sent exists in the CRD of the release.

If an operator has no field for one of ddpipe's defaults, the runtime has to provide it. If it has none for
an option that was requested, the option is rejected by name. Here `patch` sets a runtime class and a
priority class.

| release | fields of `spec` | pod defaults that the runtime must have | options that are rejected |
|---|---|---|---|"""


def _sent(release: Release) -> str:
    """The fields of the smallest job's spec, and theirs where releases differ."""
    spec = release.manifest()["spec"]
    parts = [[f"{name}.{part}" for part in spec[name]] if name in _OPENED else [name] for name in spec]
    return _code(part for named in parts for part in named)


def _left(release: Release) -> str:
    """What of our own pod has no place."""
    is_whole = release.kind is not trainjob.BACKEND
    return _code([] if is_whole else [path for path, _ in trainjob._misfits(a_job(), release.spec)])


def _refused(release: Release) -> str:
    return _code(filter(release.refuses, OPTIONS))


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


if __name__ == "__main__":
    sys.stdout.write(page())
