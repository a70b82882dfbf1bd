"""Encoding by several processes, on any machines: one surveys and assigns, N encode, one publishes.

    <store>/scratch/<name>/<key>/shares.json      the seal: which samples to encode, and how
    <store>/scratch/<name>/<key>/shares/K.npz     the samples of share K
    <store>/scratch/<name>/<key>/shards/, datasets/   what was encoded so far, and entries about it

What the helpers write are ordinary shards and entries, in a folder of their own. The process that publishes
copies the images from there into the shards that it would have written alone, so the version is the same one.
A helper that is started again skips what is stored, and what no helper has encoded, the publisher encodes:
lost helpers cost time only. The key is a hash of the assignment: a step that is retried finds its folder.

    python -m ddpipe.prepare.sharing FOLDER SHA256      encodes the share of pod number $RANK
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import sys
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from ddpipe.data.catalogue import SCRATCH
from ddpipe.data.npy import array_of
from ddpipe.errors import CorruptObject
from ddpipe.prepare.encoding import Encoding, encoding_of
from ddpipe.prepare.entries import Entry, read_entries
from ddpipe.prepare.packing import Packer
from ddpipe.prepare.planning import PackingPlan, Stored, located
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.sources import Survey, open_source
from ddpipe.sources.samples import Samples
from ddpipe.storage import Store
from ddpipe.storage.sealed import Format

log = logging.getLogger(__name__)

SHARES = Format(kind="assignment of shares", seal="shares.json", schema=1, maker="ddpipe prepare")

AT_ONCE = 8  # objects that are deleted at the same time


@dataclass(frozen=True, slots=True)
class Helpers:
    """Up to `count` processes that encode: `run` calls `encode_share` for each share."""

    count: int
    run: Callable[[str, str, int], None]  # the folder's URI, its seal's hash, and the number of shares


class Helped:
    """What helpers encode for one prepare, if it has any."""

    def __init__(self, helpers: Helpers | None, spec: PrepareSpec, survey: Survey, store: Store) -> None:
        self._helpers, self._spec, self._survey, self._store = helpers, spec, survey, store
        self._folders: list[Store] = []

    def encoded(self, plans: Iterable[PackingPlan], encoding: Encoding) -> list[Stored]:
        """What they have encoded of that which would have to be read; only its images are to be used."""
        rows = np.concatenate([plan.unread for plan in plans])
        if not self._helpers or not len(rows):
            return []
        folder = self._assigned(self._survey.samples.take(rows), encoding, self._helpers)
        self._folders.append(folder)
        found = located(read_entries(folder, self._spec.name), self._survey.samples)
        return [replace(one, scratch=folder) for one in found]

    def clear(self) -> None:
        """Remove what is in the dataset's own shards by now."""
        for folder in self._folders:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(folder.delete, [info.key for info in folder.list()]))

    def _assigned(self, samples: Samples, encoding: Encoding, helpers: Helpers) -> Store:
        """Have the helpers encode these samples; returns the folder with what they did."""
        count = min(helpers.count, len(samples))
        bounds = [len(samples) * number // count for number in range(count + 1)]
        parts = [samples.take(slice(*bounds[number : number + 2])) for number in range(count)]
        files = {_share(number): _written(part) for number, part in enumerate(parts)}
        facts = {
            "spec": self._spec.to_dict(),
            "encoding": dict(encoding.facts),
            "shape": self._survey.shape,
            "shares": count,
        }
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for content in files.values():
            key.update(hashlib.sha256(content).digest())
        folder = self._store.child(f"{SCRATCH}{self._spec.name}/{key.hexdigest()[:16]}/")
        if not folder.exists(SHARES.seal):
            SHARES.publish(folder, files, facts)
        log.info("%d samples are encoded by %d processes: %s", len(samples), count, folder.uri)
        helpers.run(folder.uri, hashlib.sha256(folder.read(SHARES.seal)).hexdigest(), count)
        return folder


def encode_share(uri: str, sha256: str, number: int) -> int:
    """Encode one share, except for what is stored already; samples that cannot be read are left out."""
    folder = SHARES.open(uri)
    if hashlib.sha256(folder.seal).hexdigest() != sha256:
        raise CorruptObject(
            what="shares cannot be encoded",
            which=f"{uri}/{SHARES.seal}",
            seen="it is not the assignment that this process was started for",
            do="Run prepare again, and find out who can write to the store.",
        )
    facts = folder.facts
    spec = PrepareSpec.from_dict(facts["spec"])
    encoding = encoding_of(facts["encoding"], spec.reading)
    samples = _read(folder.read(_share(number)))
    shape = tuple(facts["shape"]) if facts["shape"] else None
    survey = Survey(classes=(), samples=samples, shape=shape)
    source = open_source(spec.source, spec.source_path, spec.columns)
    packer = Packer(source, survey, folder.store, spec.name, remote="://" in spec.source_path)
    left = np.flatnonzero(~_done(samples, read_entries(folder.store, spec.name), encoding))
    packer.pack({"": PackingPlan.of(left)}, encoding, keep_going=True)
    encoded = len(left) - len(packer.problems)
    log.info("share %d: %d of %d samples encoded", number, encoded, len(samples))
    return encoded


def _done(samples: Samples, entries: list[Entry], encoding: Encoding) -> NDArray[np.bool_]:
    """Which samples an earlier process of the share has stored."""
    done = np.zeros(len(samples), np.bool_)
    for one in located(entries, samples):
        if one.entry.encoding == encoding.facts:
            same = (one.rows >= 0) & (samples.stamps[one.rows] == one.entry.members.stamps)
            done[one.rows[same]] = True
    return done


def _share(number: int) -> str:
    return f"shares/{number}.npz"


def _written(samples: Samples) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **{field.name: getattr(samples, field.name) for field in fields(samples)})
    return buffer.getvalue()


def _read(data: bytes) -> Samples:
    with zipfile.ZipFile(io.BytesIO(data)) as columns:
        return Samples(*(array_of(columns, field.name) for field in fields(Samples)))


def main() -> None:
    """Encode the share with this process's number."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    _, uri, sha256 = sys.argv
    encode_share(uri, sha256, int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
