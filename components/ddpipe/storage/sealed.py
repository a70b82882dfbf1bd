"""A folder of files that belong together: its seal, written last, names each of them with its hash.

A reader sees the whole folder or none of it, and only as it was published.

    <folder>/model.onnx, ...
    <folder>/package.json       the seal: schema, facts, sha256 of each file
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddpipe.errors import CorruptObject, NoSuchObject, ParameterError
from ddpipe.storage.base import Store
from ddpipe.storage.open import open_store

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Folder:
    """A sealed folder.

    Attributes:
        store: Where it lies.
        facts: What its writer wrote on the seal.
        sha256: Hash of each file, by key.
    """

    store: Store
    facts: Mapping[str, Any]
    sha256: Mapping[str, str]

    def read(self, key: str) -> bytes:
        """A file's content, proven to be what was sealed; raises `CorruptObject`."""
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
    """A kind of sealed folder.

    Attributes:
        kind: What it is called: "evaluation".
        seal: Key of the seal: "evaluation.json".
        schema: The one schema that is written and read.
        maker: The command that makes one: "ddpipe evaluate".
    """

    kind: str
    seal: str
    schema: int
    maker: str

    def publish(self, store: Store, files: Mapping[str, bytes], facts: Mapping[str, Any]) -> Folder:
        """Write the files, then the seal; an older folder in this place loses its seal first."""
        store.delete(self.seal)
        for key, content in files.items():
            store.write(key, content)
        hashes = {key: sha256(content) for key, content in files.items()}
        store.write(self.seal, to_json({"schema": self.schema, "facts": facts, "sha256": hashes}))
        return Folder(store, facts, hashes)

    def open(self, uri: str) -> Folder:
        """The sealed folder at `uri`; its files are verified as they are read."""
        store = open_store(uri)
        which = f"{store.uri}/{self.seal}"
        try:
            seal = json.loads(store.read(self.seal))
            schema, folder = seal["schema"], Folder(store, {**seal["facts"]}, _hashes(seal["sha256"]))
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
        if schema != self.schema:
            raise ParameterError(
                what=f"this {self.kind} cannot be read",
                which=which,
                seen=f"its schema is {schema}, this ddpipe reads {self.schema}",
                do=f"Upgrade ddpipe, or create it again with `{self.maker}`.",
            )
        return folder


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
