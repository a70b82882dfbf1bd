"""The result of a finished call, sealed with a key that only the notebook and the job have."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpipe.errors import CorruptObject, ParameterError, ReplicaFailed
from ddpipe.storage import Store
from ddpipe.storage.sealed import Format, sha256

RESULT = Format(kind="result", seal="result.json", schema=2, maker="ddpipe.launch")

CALL, SOURCE, VALUE, OUTPUTS, RANKS = "call", "call.py", "value", "outputs/", "ranks/"
"""Keys in the folder of a call."""

KEY = "DDPIPE_RESULT_KEY"
"""Environment variable of the ranks: the key of the seal, in hex."""


@dataclass(frozen=True, slots=True)
class Result:
    """A result whose seal has been verified.

    Attributes:
        store: Its folder.
        value: SHA-256 of the packed return value.
        outputs: SHA-256 of each file that rank 0 left, by its path.
    """

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


def verified(store: Store, key: str, call: str) -> Result:
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
    return Result(store, sealed["value"], sealed["outputs"])


def check_ranks(store: Store) -> None:
    """Check that the function returned on every rank.

    A process that ends half-way with exit code 0, by `os._exit(0)` for example, looks like a success to
    torchrun and to Kubernetes.
    """
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
