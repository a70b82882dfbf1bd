"""The files of a launch in its folder: the record, which is untrusted, and the sealed result.

The result has an HMAC with a key that only the notebook and the job have.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ddpipe.errors import CorruptObject, ParameterError, ReplicaFailed, check_schema
from ddpipe.jobs.job import Owner, TrainingJob
from ddpipe.jobs.options import JobOptions, without_former
from ddpipe.storage import Store
from ddpipe.storage.sealed import Format, sha256

RECORD, OUTCOME = "launch.json", "outcome.json"  # keys in the folder of a launch
SCHEMA = 1  # of the record
PIPELINE = "notebook"  # pipeline of all launched jobs, as `ddpipe jobs` shows it
PRIVATE = ("env", "patch")  # options that may hold passwords: they are kept on the machine of the launch
RESULT = Format(kind="result", seal="result.json", schema=2, maker="ddpipe.launch")

# Keys in the folder of a call.
CALL, SOURCE, VALUE, OUTPUTS, RANKS = "call", "call.py", "value", "outputs/", "ranks/"
KEY = "DDPIPE_RESULT_KEY"  # environment variable of the ranks: the key of the seal, in hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What was launched, for every later kernel."""

    name: str
    work: str
    sha256: str
    backend: str
    nodes: int
    processes: int  # ranks per pod; 0 means one per GPU, or one
    namespace: str = ""  # until the launcher has found out the account's own
    options: Mapping[str, Any] = field(default_factory=dict)
    private: tuple[str, ...] = ()  # names of the options in `PRIVATE` that were given
    schema: int = SCHEMA

    def write(self, folder: Store) -> None:
        """Write the record into the launch's folder."""
        folder.write(RECORD, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, folder: Store) -> Launch:
        """Read the record of a launch."""
        try:
            record = json.loads(folder.read(RECORD))
            check_schema(record, SCHEMA, f"{folder.uri}/{RECORD}")
            return cls(**{**record, "private": tuple(record.get("private", ()))})
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptObject(
                what="the record of a launch is damaged",
                which=f"{folder.uri}/{RECORD}",
                seen=repr(error),
                do="Find out who wrote it, then launch again under another name.",
            ) from error

    def job(self, folder: str, namespace: str, private: Mapping[str, Any], key: str) -> TrainingJob:
        """The job whose pods run the call; the same launch always gives the same job."""
        options = JobOptions.from_dict({**without_former(self.options), **private}).to_dict()
        return TrainingJob(
            owner=Owner(pipeline=PIPELINE, run_id=self.name, step=self.work),
            namespace=self.namespace or namespace,
            command=("python", "-m", "ddpipe.torchrun", "-m", "ddpipe.notebook.call", folder, self.sha256),
            outputs=(f"{folder}/{RESULT.seal}",),
            hidden={KEY: key},
            **options,
        )


@dataclass(frozen=True, slots=True)
class SealedResult:
    """A result whose seal has been verified."""

    store: Store
    value: str
    outputs: Mapping[str, str]

    def packed_value(self) -> bytes:
        """What rank 0 returned, as it was packed; raises `CorruptObject` if it is another one."""
        content = self.store.read(VALUE)
        _compare(f"{self.store.uri}/{VALUE}", sha256(content), self.value)
        return content

    def fetch(self, output: str, path: Path) -> None:
        """Download a file that rank 0 left."""
        self.store.download(OUTPUTS + output, path)
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        try:
            _compare(f"{self.store.uri}/{OUTPUTS}{output}", found, self.outputs[output])
        except CorruptObject:
            path.unlink()
            raise


def publish(store: Store, key: str, call: str, value: bytes, outputs: Mapping[str, str], ranks: int) -> None:
    """Write the value, then the seal."""
    sealed = {"call": call, "value": sha256(value), "outputs": dict(outputs), "ranks": ranks}
    RESULT.publish(store, {VALUE: value}, {"sealed": sealed, "hmac": _hmac(key, sealed)})


def verified(store: Store, key: str, call: str) -> SealedResult:
    """The result of a call, once it is proven that the call's job wrote it."""
    facts = RESULT.open(store.uri).facts
    which = f"{store.uri}/{RESULT.seal}"
    if not key:
        raise ParameterError(
            what="the result cannot be verified",
            which=which,
            seen="this machine does not have the key of its seal, and opening a result runs code from it",
            do="Attach on the machine (and as the user) of the launch, or give the key: "
            "ddpipe.attach(name, runs, key=first_handle.key).",
        )
    sealed = facts.get("sealed")
    if not hmac.compare_digest(str(facts.get("hmac")).encode(), _hmac(key, sealed).encode()):
        raise _forged(which, "its seal was not made with the key of this launch")
    if not isinstance(sealed, dict) or sealed["call"] != call:
        raise _forged(which, "it belongs to another call")
    return SealedResult(store, sealed["value"], sealed["outputs"])


def check_ranks(store: Store) -> None:
    """Check that the function returned on every rank."""
    # A process that ends half-way with exit code 0, by `os._exit(0)` for example, looks like a success to
    # torchrun and to Kubernetes.
    expected = int(RESULT.open(store.uri).facts["sealed"]["ranks"])
    returned = {item.key for item in store.list(RANKS)}
    first = next(rank for rank in itertools.count() if f"{RANKS}{rank}" not in returned)
    if first < expected:
        raise ended_early(f"rank {first} of {expected}")


def ended_early(rank: str) -> ReplicaFailed:
    """The error for a rank that ended without an error, but also without returning."""
    return ReplicaFailed(
        what="a process ended before its work was done",
        which=rank,
        seen="it ended with exit code 0, but the function did not return there",
        do="Return from the function, and do not end its process: look for os._exit, also in libraries.",
    )


def _hmac(key: str, sealed: Any) -> str:  # noqa: ANN401 - of an untrusted file
    content = json.dumps(sealed, sort_keys=True).encode()
    return hmac.new(bytes.fromhex(key), content, "sha256").hexdigest()


def _compare(which: str, found: str, sealed: str) -> None:
    if found != sealed:
        raise _forged(which, f"its hash is {found}, the seal says {sealed}")


def _forged(which: str, seen: str) -> CorruptObject:
    return CorruptObject(
        what="the result was not written by this launch",
        which=which,
        seen=seen,
        do="Find out who can write to this folder, then launch again under another name.",
    )
