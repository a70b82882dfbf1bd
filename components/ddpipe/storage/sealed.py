"""A folder of files that belong together: its seal, written last, names each of them with its hash.

A reader sees the whole folder or none of it, and only as it was published.

    <folder>/model.onnx, ...
    <folder>/package.json       the seal: schema, facts, sha256 of each file
    <folder>/.next/...          a newer publication on its way into place, whole once its own seal is there

Publishing again never takes away what works. A writer that is killed before `.next` has its seal leaves the
older files as they were; one that is killed later leaves a whole newer set, some of it still in `.next`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ddpipe.errors import CorruptObject, NoSuchObject, ParameterError, StoreError, check_schema
from ddpipe.storage import Store, open_store

NEXT = ".next"

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Folder:
    """A sealed folder."""

    store: Store
    facts: Mapping[str, Any]  # what its writer wrote on the seal
    sha256: Mapping[str, str]  # of each file, by key
    seal: bytes
    is_moving: bool = False  # some of the files may still be in `.next`

    def read(self, key: str) -> bytes:
        """A file's content, proven to be what was sealed; raises `CorruptObject`."""
        if self.is_moving:
            try:
                content = self.store.child(NEXT).read(key)
            except NoSuchObject:  # it is in place by now
                content = self.store.read(key)
        else:
            content = self.store.read(key)
        if sha256(content) != self.sha256.get(key):
            raise CorruptObject(
                what="a file was changed after it was published",
                which=f"{self.store.uri}/{key}",
                seen=f"its hash is {sha256(content)}, the seal says {self.sha256.get(key, 'nothing')}",
                do="Create the whole folder again.",
            )
        return content


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of sealed folder."""

    kind: str  # what it is called: "evaluation"
    seal: str  # the seal's key: "evaluation.json"
    schema: int
    maker: str  # the command that makes one: "ddpipe evaluate"

    def publish(self, store: Store, files: Mapping[str, bytes], facts: Mapping[str, Any]) -> Folder:
        """Write the files, then the seal; an older folder in this place works until the new one is whole."""
        hashes = {key: sha256(content) for key, content in files.items()}
        seal = to_json({"schema": self.schema, "facts": facts, "sha256": hashes})
        with suppress(StoreError, ParameterError):  # none, or a damaged or older one, which is replaced
            self.open(store.uri)
        is_new = not store.exists(self.seal)
        aside = store if is_new else store.child(NEXT)
        if not is_new and aside.exists(self.seal):
            self._move(store)  # what a killed writer left: without its seal neither set would be whole
        for key, content in {**files, self.seal: seal}.items():
            aside.write(key, content)
        if not is_new:
            self._move(store)
        return Folder(store, facts, hashes, seal)

    def _move(self, store: Store) -> None:
        """Put the newer files into their place; they stay in `.next` until all of them are there."""
        aside = store.child(NEXT)
        seal = aside.read(self.seal)
        keys = _hashes(json.loads(seal)["sha256"])
        for key in keys:
            store.write(key, aside.read(key))
        store.write(self.seal, seal)
        aside.delete(self.seal)
        for left in list(aside.list()):  # also what an earlier writer left
            aside.delete(left.key)

    def open(self, uri: str) -> Folder:
        """The sealed folder at `uri`; its files are verified as they are read."""
        store = open_store(uri)
        which = f"{store.uri}/{self.seal}"
        try:
            content, is_moving = self._seal(store)
            seal = json.loads(content)
            check_schema(seal, self.schema, which, oldest=1)
            if (schema := seal["schema"]) != self.schema:
                raise ParameterError(
                    what=f"this {self.kind} cannot be read",
                    which=which,
                    seen=f"its schema is {schema}, this ddpipe reads {self.schema}",
                    do=f"Create it again with `{self.maker}`.",
                )
            return Folder(store, {**seal["facts"]}, _hashes(seal["sha256"]), content, is_moving)
        except NoSuchObject as error:
            raise NoSuchObject(
                what=f"there is no finished {self.kind}",
                which=store.uri,
                seen=f"it has no {self.seal}, which is written last",
                do=f"Create it with `{self.maker}`.",
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptObject(
                what=f"the seal of this {self.kind} is damaged",
                which=which,
                seen=repr(error),
                do=f"Create it again with `{self.maker}`.",
            ) from error

    def _seal(self, store: Store) -> tuple[bytes, bool]:
        """The newest seal, and whether its files are still being moved."""
        try:
            return store.child(NEXT).read(self.seal), True
        except NoSuchObject:
            return store.read(self.seal), False


def _hashes(named: Mapping[str, str]) -> Mapping[str, str]:
    """The hashes of a seal, by keys that stay within its folder; raises ValueError for others."""
    for key, value in named.items():
        parts = key.split("/")
        if not all(parts) or {".", ".."} & set(parts) or "\\" in key or "\0" in key:
            raise ValueError(f"{key!r} is not the key of a file in this folder")
        if not _SHA256.fullmatch(value):
            raise ValueError(f"{value!r} is not a SHA-256")
    return named


def sha256(content: bytes) -> str:
    """In hex."""
    return hashlib.sha256(content).hexdigest()


def to_json(values: object) -> bytes:
    """JSON that a person can read, the same for the same values; raises ValueError for NaN and infinity."""
    return json.dumps(values, indent=1, allow_nan=False).encode() + b"\n"
