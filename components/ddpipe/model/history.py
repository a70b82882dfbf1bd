"""The history of a model: its versions, and which of them is the champion.

<store>/models/<name>/versions/<version>/…              a model package (package.py), never changed
<store>/models/<name>/versions/<version>/version.json   where it comes from
<store>/models/<name>/champion.json                     the promotions; the last one is in force

A version's name is the start of its package's SHA-256, so the same package is the same version, however often
it is published. champion.json is replaced by compare-and-swap: of two promotions at once, one succeeds.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from ddpipe.data.manifest import DATASET
from ddpipe.data.typed import typed
from ddpipe.errors import (
    ModelError,
    NoAccess,
    NoSuchObject,
    NotWritable,
    ParameterError,
    PromotionLost,
    check_schema,
)
from ddpipe.model.package import FORMAT, ModelPackage
from ddpipe.storage import ObjectInfo, Store, open_store
from ddpipe.storage.sealed import sha256, to_json
from ddpipe.tracker import tracked

_log = logging.getLogger(__name__)

SCHEMA = 1
CHAMPION, ORIGIN = "champion.json", "version.json"
SERVICES = "services/"  # folder of one file for each service: the version that it has

MOST_PROMOTIONS = 500  # in champion.json; older ones are dropped
NAME = DATASET  # a model's name is a part of paths, like a dataset's

_VERSION = re.compile(r"[0-9a-f]{12}")
_REFERENCE = re.compile(rf"(?P<name>{DATASET.pattern})(@(?P<version>champion|[0-9a-f]{{1,12}}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """A complete version of a model: 12 hex digits, and the folder of its package."""

    name: str
    version: str
    uri: str
    published: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A version became the champion; `package` is the SHA-256 of its seal, `run` is empty for a person."""

    version: str
    package: str
    at: str
    action: str = "promote"
    reason: str = ""
    run: str = ""
    nonce: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The promotions of a model, the oldest first; `content` is champion.json as it was read."""

    promotions: tuple[Promotion, ...] = ()
    content: bytes | None = None
    removed: tuple[str, ...] = ()  # versions that are, or may be, on their way out: none of them is promoted

    @property
    def champion(self) -> Promotion | None:
        """The promotion in force; None if no version was ever promoted."""
        return self.promotions[-1] if self.promotions else None


@dataclass(frozen=True, slots=True)
class NamedModel:
    """One model of a dataset store."""

    store: Store
    name: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ParameterError(
                what="the name of the model is not valid",
                which=repr(self.name),
                seen="a name consists of lower-case letters, digits, '.', '_' and '-', at most 63",
                do="Choose another name.",
            )

    @property
    def folder(self) -> Store:
        """Everything about this model."""
        return self.store.child(f"models/{self.name}")

    def uri(self, version: str) -> str:
        """Of a version's package."""
        return f"{self.folder.uri}/versions/{version}"

    def versions(self) -> list[ModelVersion]:
        """Its complete versions, the newest last."""
        found = []
        for info in self.folder.list("versions/"):
            match info.key.split("/"):
                case [_, version, FORMAT.seal] if _VERSION.fullmatch(version):
                    found.append(
                        ModelVersion(
                            name=self.name, version=version, uri=self.uri(version), published=info.modified
                        )
                    )
        return sorted(found, key=lambda one: one.published)

    def find(self, version: str) -> ModelVersion:
        """A version by its name or a unique prefix of it; "champion" is the one in force."""
        versions = self.versions()
        wanted = self._required().version if version == "champion" else version
        found = [one for one in versions if one.version.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        raise ModelError(
            what=f"{'more than one' if found else 'no'} version of a model matches",
            which=f"{self.name}@{version}",
            seen=", ".join(one.version for one in found or versions) or f"{self.folder.uri} has no version",
            do="See `ddpipe models ls`, or roll back with `ddpipe models rollback`."
            if version == "champion"
            else "See `ddpipe models ls`.",
        )

    def history(self) -> History:
        """Its promotions; none for a model without champion.json."""
        try:
            content = self.folder.read(CHAMPION)
        except NoSuchObject:
            return History()
        try:
            values = json.loads(content)
            check_schema(values, SCHEMA, f"{self.folder.uri}/{CHAMPION}", oldest=SCHEMA)
            promotions = tuple(typed(Promotion, one) for one in values["promotions"])
            if wrong := [one.version for one in promotions if not _VERSION.fullmatch(one.version)]:
                raise ValueError(f"{wrong[0]!r} is not a version")  # noqa: TRY301
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ModelError(
                what="the champion of a model is not known",
                which=f"{self.folder.uri}/{CHAMPION}",
                seen=f"the file is malformed: {error}",
                do="Restore the file from a backup.",
            ) from error
        return History(promotions=promotions, content=content, removed=tuple(values.get("removed", ())))

    def publish(self, package: ModelPackage, origin: Mapping[str, Any]) -> ModelVersion:
        """Copy a package to be a version; one that is there already is left as it is."""
        seal = package.folder.seal
        version = sha256(seal)[:12]
        place = self.folder.child(f"versions/{version}")
        if not place.exists(FORMAT.seal):
            for key in package.folder.sha256:
                place.write(key, package.folder.read(key))
            place.write(ORIGIN, to_json({"package": sha256(seal), **origin}))
            place.write(FORMAT.seal, seal)  # last: a version without it does not exist
        while version in (before := self.history()).removed:
            self._swap(before, before.promotions, [one for one in before.removed if one != version])
        return self.find(version)

    def promote(
        self,
        version: ModelVersion,
        *,
        against: str | None,
        reason: str,
        run: str = "",
        action: str = "promote",
    ) -> Promotion:
        """Make a version the champion, if the champion is still the one that it was compared with."""
        before = self.history()
        current = before.champion
        if current and current.version == version.version:
            return current
        if version.version in before.removed:
            raise ModelError(
                what="a version was not promoted",
                which=f"{self.name}@{version.version}",
                seen="`ddpipe models rm` is removing it, or was stopped while it did",
                do="Export the model again, or finish the removal.",
            )
        made = Promotion(
            version=version.version,
            package=sha256(open_store(version.uri).read(FORMAT.seal)),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            action=action,
            reason=reason,
            run=run,
        )
        # Two gates may have compared with the same champion: only the first swap of what both read succeeds.
        same = (current.version if current else None) == against
        if not (same and self._swap(before, (*before.promotions, made), before.removed)):
            now = self.history().champion
            raise PromotionLost(
                what="a version was not promoted",
                which=f"{self.name}@{version.version}",
                seen=f"the champion is {now.version if now else 'missing'} by now, and this version was "
                f"compared with {against or 'none'}",
                do="Compare it with the new champion: run the gate, or the command, again.",
            )
        with suppress(NoSuchObject, KeyError):  # a version of before, or from elsewhere
            origin = json.loads(open_store(version.uri).read(ORIGIN))["run"]
            with tracked(origin, given="") as tracker:
                tracker.champion(f"{self.name}@{version.version}")
        return made

    def rollback(self, reason: str = "") -> Promotion:
        """Make the champion before the present one the champion again."""
        current = self._required()
        # Rolling back twice goes back by two: what a rollback left is passed over.
        stack: list[Promotion] = []
        for one in self.history().promotions:
            if one.action == "rollback":
                while stack and stack[-1].version != one.version:
                    stack.pop()
            else:
                stack.append(one)
        if len(stack) < 2:  # noqa: PLR2004 - the champion, and one before it
            raise ModelError(
                what="a model cannot be rolled back",
                which=self.name,
                seen=f"{current.version} is the first champion of its history",
                do="Promote another version with `ddpipe models promote`; see `ddpipe models ls`.",
            )
        return self.promote(
            self.find(stack[-2].version),
            against=current.version,
            reason=reason or f"rolled back from {current.version}",
            action="rollback",
        )

    def note_service(self, service: str, version: str) -> None:
        """Keep a version that a service has from being removed, in place of its former one."""
        try:
            self.folder.write(f"{SERVICES}{service}", version.encode())
        except (NoAccess, NotWritable) as error:  # who deploys may only need to read
            _log.warning("it is not noted that %s has %s@%s: %s", service, self.name, version, error.seen)

    def remove(self, version: ModelVersion) -> None:
        """Delete a version's package, its seal first."""
        before, wanted = self.history(), version.version.encode()
        serving = [info.key for info in self.folder.list(SERVICES) if self.folder.read(info.key) == wanted]
        if serving or (before.champion and before.champion.version == version.version):
            raise ModelError(
                what="a version cannot be removed",
                which=f"{self.name}@{version.version}",
                seen=f"it was deployed: {', '.join(serving)}" if serving else "it is the champion",
                do="Deploy another version there first; if that service is gone, delete its file from "
                f"{self.folder.uri}."
                if serving
                else "Promote or roll back to another version first.",
            )
        # A promotion that has read the same history fails after this, and one that was faster lets this fail.
        removed = dict.fromkeys((*before.removed, version.version))
        if not self._swap(before, before.promotions, removed):
            raise PromotionLost(
                what="a version was not removed",
                which=f"{self.name}@{version.version}",
                seen="a version was promoted or removed meanwhile",
                do="See `ddpipe models ls`, then run the command again.",
            )
        place = open_store(version.uri)
        place.delete(FORMAT.seal)
        for info in list(place.list()):
            place.delete(info.key)

    def _swap(self, before: History, promotions: Sequence[Promotion], removed: Iterable[str]) -> bool:
        """Replace champion.json if it is as it was read."""
        kept = [asdict(one) for one in promotions[-MOST_PROMOTIONS:]]
        values = {"schema": SCHEMA, "promotions": kept, "removed": [*removed][-MOST_PROMOTIONS:]}
        return self.folder.swap(CHAMPION, before.content, to_json(values))

    def _required(self) -> Promotion:
        champion = self.history().champion
        if champion is None:
            raise ModelError(
                what="a model has no champion",
                which=f"{self.name} in {self.store.uri}",
                seen="no version of it was promoted",
                do="Promote one with `ddpipe models promote`, or name another model or store: "
                "`ddpipe models ls`.",
            )
        return champion


def models(store: Store) -> list[NamedModel]:
    """The models of a store that have a version or a champion, by name."""
    parts = (info.key.split("/") for info in store.list("models/"))
    names = {one[1] for one in parts if len(one) > 2 and NAME.fullmatch(one[1])}  # noqa: PLR2004 - models/NAME/…
    return [NamedModel(store, name) for name in sorted(names)]


def address(reference: str, store: str) -> str | None:
    """The URI of the package that NAME, NAME@champion or NAME@VERSION names; None for other text."""
    if not (named := _REFERENCE.fullmatch(reference)):
        return None
    return NamedModel(open_store(store), named["name"]).find(named["version"] or "champion").uri


def version_at(uri: str) -> tuple[NamedModel, str] | None:
    """The model and the version whose package is at a URI; None for another package."""
    store, _, rest = uri.rstrip("/").rpartition("/models/")
    match rest.split("/"):
        case [name, "versions", version] if store and NAME.fullmatch(name) and _VERSION.fullmatch(version):
            return NamedModel(open_store(store), name), version
    return None


def needed(store: Store) -> Mapping[str, list[str]]:
    """By the ID of a dataset version, the model versions that were trained on it."""
    found: dict[str, list[str]] = {}
    for model in models(store):
        for version in model.versions():
            dataset = FORMAT.open(version.uri).facts.get("dataset_id")
            found.setdefault(str(dataset), []).append(f"{model.name}@{version.version}")
    return found


def leftovers(store: Store, grace: timedelta, now: datetime) -> Iterator[ObjectInfo]:
    """Old files of versions that were never complete, or were removed half-way."""
    for model in models(store):
        prefix = f"models/{model.name}/versions/"
        files = list(store.list(prefix))
        whole = {f"{prefix}{one.version}/" for one in model.versions()}
        for info in files:
            folder = info.key[: info.key.find("/", len(prefix)) + 1]
            if folder not in whole and now - info.modified > grace:
                yield info
