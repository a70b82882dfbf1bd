"""The dataset versions of a store: listed, found by their ids, removed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

from ddpipe.data.manifest import DATASET, DatasetManifest, manifest_key, store_of
from ddpipe.errors import DatasetError, NoSuchObject, StoreError, check_schema
from ddpipe.storage import Store, open_store, split_uri


@dataclass(frozen=True, slots=True)
class Version:
    """A dataset version of a store; `uri` is that of its manifest."""

    name: str
    dataset_id: str
    uri: str
    published: datetime


def versions(store: Store, name: str | None = None) -> list[Version]:
    """The versions of one dataset, or of all, the newest last."""
    found = []
    for info in store.list(f"datasets/{name}/" if name else "datasets/"):
        match PurePosixPath(info.key).parts:
            case (_, dataset, dataset_id, "manifest.json"):
                found.append(Version(dataset, dataset_id, f"{store.uri}/{info.key}", info.modified))
    return sorted(found, key=lambda version: (version.name, version.published))


def address(given: str, store: str) -> str:
    """The URI of a version's manifest, from this URI, an ID or a unique prefix of it, or a dataset's name."""
    if "/" in given:
        return given
    place = open_store(store)
    if DATASET.fullmatch(given) and (named := versions(place, given)):
        return named[-1].uri
    every = versions(place)
    found = [version for version in every if version.dataset_id.startswith(given)]
    if len(found) == 1:
        return found[0].uri
    unnamed = f"no dataset has the name {given}, and no version starts with it,"
    raise DatasetError(
        what=f"{f'more than one version starts with {given}' if found else unnamed} in {place.uri}",
        which=given,
        seen=", ".join(version.uri for version in found) or f"versions in the store: {len(every)}",
        do="See `ddpipe data ls`; give a longer prefix, another `store`, or the manifest's URI.",
    )


ORIGIN = "origin.json"  # beside a manifest, and no part of the version: where its raw data lies


def origin(manifest: DatasetManifest, store: Store) -> Mapping[str, str]:
    """Where the raw data of a version lay when it was published, as far as somebody has recorded it."""
    try:
        key = manifest_key(manifest.name, manifest.dataset_id).replace("manifest.json", ORIGIN)
        found = json.loads(store.read(key))
        check_schema(found, 1, f"{store.uri}/{key}")
        return {name: str(found[name]) for name in ("location", "table") if found.get(name)}
    except (StoreError, ValueError, AttributeError, RecursionError):
        return {}


def remove(uri: str) -> None:
    """Delete the manifest of a version, whole or damaged; its shards stay until they are cleaned up."""
    store_of(uri)
    folder, name = split_uri(uri)
    if not folder.exists(name):
        raise NoSuchObject(
            what="a dataset version cannot be removed",
            which=uri,
            seen="there is no such manifest",
            do="Check the URI: `ddpipe data ls` lists the versions of a store.",
        )
    folder.delete(name)
    folder.delete(ORIGIN)
