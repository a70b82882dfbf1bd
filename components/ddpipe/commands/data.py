"""`ddpipe prepare` and `ddpipe data ls|show|verify|diff|rm|clean-up`: dataset versions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import ClassVar

import click

from ddpipe import workflow
from ddpipe.commands import in_columns, json_option, print_result, runs_option, store_option
from ddpipe.commands.options import options
from ddpipe.commands.results import CommandOutcome, Document, Page
from ddpipe.commands.step import step_command
from ddpipe.data.catalogue import (
    KEPT,
    clean_up,
    damage,
    difference,
    garbage,
    objects_of,
    per_class,
    shards_of,
)
from ddpipe.data.manifest import load_manifest, store_of
from ddpipe.data.versions import address, origin, remove, versions
from ddpipe.errors import DatasetError, DdpipeError, listed
from ddpipe.parameters import Between, Parameters, parameter
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.runs import RunOptions
from ddpipe.steps import PREPARE, EncodeOptions
from ddpipe.storage import existing_store, open_store
from ddpipe.validation import RunSettings

SHOWN = 10  # sample IDs of each kind that are printed; --json has them all
# Fields of a manifest that `show` prints with --json.
_SHOWN = (
    *("name", "dataset_id", "task", "classes", "shape", "mean", "std"),
    *("split_rule", "seed", "source", "skipped", "left_out"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanUpOptions(Parameters):
    """Which shards may be deleted."""

    what: ClassVar[str] = "the store cannot be cleaned up"

    # More hours are a typing error.
    grace: float = parameter(
        24.0, "Minimum age in hours of a shard that may be deleted.", Between(0, 100_000)
    )


@step_command(PREPARE)
def prepare_command(given: RunSettings) -> CommandOutcome:
    """Run the step; its declaration describes it."""
    from ddpipe.prepare.prepare import prepare
    from ddpipe.prepare.report import data_report_html

    run, spec = given.of(RunOptions).named, given.of(PrepareSpec)
    helpers = workflow.helpers(given.of(EncodeOptions))
    prepared = workflow.prepare(run, spec, helpers) if run else prepare(spec, helpers)
    manifest, address = prepared.manifest, prepared.manifest_uri
    facts = {
        **({"run": run.name, "training": run.training} if run else {}),
        "dataset": address,
        "dataset_id": prepared.dataset_id,
        "reused": prepared.reused,
        "encoded": prepared.encoded,
        "samples": {name: split.count for name, split in manifest.splits.items()},
        "skipped": prepared.skipped,
        "left_out": manifest.left_out,
        "seconds": round(prepared.seconds, 3),
    }
    state = "unchanged" if prepared.reused else f"new: {prepared.encoded:,} images encoded"
    counts = ", ".join(f"{name} {split.count}" for name, split in manifest.splits.items())
    return CommandOutcome(
        facts,
        address,
        f"dataset version {prepared.dataset_id[:12]} ({state}): {counts}",
        values={"dataset": address, "dataset_id": prepared.dataset_id},
        shown={
            "dataset_version": Document(
                manifest.to_json().encode(), {"dataset_id": prepared.dataset_id, "uri": address}
            ),
            "data_report": Page(data_report_html(manifest, store_of(address))),
        },
    )


@click.group("data")
def data_command() -> None:
    """List, show, verify, compare and clean up dataset versions.

    A version is given by the URI of its manifest, by its ID in --store or a unique prefix of it, or by the
    name of the dataset, for its newest version.
    """


@data_command.command("ls")
@click.argument("name", required=False)
@store_option
@json_option
def list_command(name: str | None, store: str) -> None:
    """List the versions of the dataset NAME, or of all datasets, the newest last."""
    found = versions(existing_store(store), name)
    facts = [asdict(version) | {"published": version.published.isoformat()} for version in found]
    rows = [
        (one.name, one.dataset_id[:12], *_in_short(one.uri), f"{one.published:%Y-%m-%d %H:%M}")
        for one in found
    ]
    head = ("NAME", "ID", "IMAGES", "CLASSES", "SOURCE", "PUBLISHED")
    none = f"no versions in {store}: `ddpipe prepare photos` makes one"
    print_result({"versions": facts}, in_columns(head, rows) or none)


@data_command.command("show")
@click.argument("dataset")
@store_option
@json_option
def show_command(dataset: str, store: str) -> None:
    """Describe the version DATASET."""
    manifest = load_manifest(dataset := address(dataset, store))
    size = sum(shard.bytes for shard in shards_of(manifest))
    facts = {
        **{name: getattr(manifest, name) for name in _SHOWN},
        "samples": {name: split.count for name, split in manifest.splits.items()},
        "per_class": {name: per_class(manifest, name) for name in manifest.splits},
        "shards": len(shards_of(manifest)),
        "bytes": size,
        "origin": (where := origin(manifest, store_of(dataset))),
    }
    height, width, channels = manifest.shape
    lines = [
        f"{manifest.name} {manifest.dataset_id}",
        f"{manifest.task}, {len(manifest.classes)} classes, {width} x {height} x {channels}",
        f"{len(shards_of(manifest))} shards, {_megabytes(size)}",
        f"from {' '.join([str(manifest.source.get('kind')), *where.values()])}",
        *(
            f"{name:>12}: {manifest.splits[name].count:,} "
            f"({', '.join(f'{label} {count:,}' for label, count in counts.items())})"
            for name, counts in facts["per_class"].items()
        ),
        *(f"    left out: {count:,} {reason}" for reason, count in manifest.left_out.items()),
    ]
    print_result(facts, "\n".join(lines))


@data_command.command("verify")
@click.argument("dataset")
@store_option
@json_option
def verify_command(dataset: str, store: str) -> None:
    """Read every shard and column of the version DATASET and compare its hash."""
    manifest = load_manifest(dataset := address(dataset, store))
    if problems := damage(objects_of(manifest), store_of(dataset)):
        raise DatasetError(
            what="the dataset version is damaged",
            which=dataset,
            seen=listed(list(problems.values())),
            do="Run the same `ddpipe prepare` again with --verify, which replaces them.",
        )
    count, size = len(shards_of(manifest)), sum(item.bytes for item in objects_of(manifest))
    print_result(
        {"shards": count, "bytes": size},
        f"{count} shards with ids and labels, {_megabytes(size)}: all intact",
    )


@data_command.command("diff")
@click.argument("old")
@click.argument("new")
@store_option
@json_option
def diff_command(old: str, new: str, store: str) -> None:
    """Show what changed from the version OLD to the version NEW, also which files have other content."""
    from ddpipe.prepare.entries import members_of

    both = [(load_manifest(uri), store_of(uri)) for uri in (address(old, store), address(new, store))]
    found = difference(*both)
    before, after = (
        {
            name: digest
            for parts in members_of(*one).values()
            for part in parts
            for name, digest in zip(part.ids.tolist(), part.sha256.tolist(), strict=True)
        }
        for one in both
    )
    compared = before.keys() & after.keys()
    changed = sorted(name.decode() for name in compared if before[name] != after[name])
    kept = sum(split.count for split in both[1][0].splits.values()) - len(found.added)
    unknown = f", {kept - len(compared):,} not compared: no record of their files" * (kept > len(compared))
    lines = [
        *_some("added", list(found.added)),
        *_some("removed", list(found.removed)),
        *_some("moved", [f"{name}: {a} -> {b}" for name, (a, b) in found.moved.items()]),
        *_some("relabeled", [f"{name}: {a} -> {b}" for name, (a, b) in found.relabelled.items()]),
        *_some(f"with other files{unknown}", changed),
        f"{_megabytes(found.shared_bytes)} in common",
    ]
    print_result({**asdict(found), "changed": changed}, "\n".join(lines))


@data_command.command("rm")
@click.argument("dataset")
@store_option
@runs_option
@json_option
def remove_command(dataset: str, store: str, runs: str) -> None:
    """Remove the version DATASET; `ddpipe data clean-up --delete` then deletes its shards.

    A version that a model was trained on is kept: it records which images the model has seen. So is one that
    an unfinished training in --runs needs.
    """
    from ddpipe.model.history import needed
    from ddpipe.model.training_record import unfinished

    dataset = address(dataset, store)
    place, dataset_id = store_of(dataset), dataset.rstrip("/").split("/")[-2]
    error = partial(DatasetError, what="a dataset version cannot be removed", which=dataset)
    if trainings := list(unfinished(open_store(runs), dataset_id)):
        raise error(
            seen=f"these trainings need it, and have not finished: {', '.join(trainings[:SHOWN])}",
            do="Let them finish, or delete their folders.",
        )
    if users := needed(place).get(dataset_id):
        raise error(
            seen=f"these versions of models were trained on it: {', '.join(users[:SHOWN])}",
            do="Remove those first: `ddpipe models rm`.",
        )
    remove(dataset)
    print_result({"removed": dataset}, f"removed {dataset}")


@data_command.command("clean-up")
@store_option
@options(CleanUpOptions)
@runs_option
@click.option("--delete", is_flag=True, help="Delete; without this option, only list what would be deleted.")
@json_option
def clean_up_command(store: str, runs: str, grace: float, delete: bool) -> None:
    """Find shards and files of models that no version uses, and leftovers; --delete deletes them.

    What killed processes did not finish writing, also in the runs, counts after a day: hidden files of a
    folder, and uploads to a bucket.
    """
    CleanUpOptions(grace=grace).validated()
    from ddpipe.model.history import leftovers

    place, now = existing_store(store), datetime.now(UTC)
    find = clean_up if delete else garbage
    half_published = list(leftovers(place, timedelta(hours=grace), now))
    objects = [*find(place, timedelta(hours=grace), now), *half_published]
    for info in half_published if delete else ():
        place.delete(info.key)
    keys = [info.key for info in objects]
    for folder in {place.uri: place, (other := open_store(runs)).uri: other}.values():
        unfinished = folder.unfinished(now - max(KEPT, timedelta(hours=grace)), delete=delete)
        keys += [info.key if folder is place else f"{folder.uri}/{info.key}" for info in unfinished]
        objects += unfinished
    size = sum(info.size for info in objects)
    verb = "deleted" if delete else "to delete (with --delete)"
    print_result(
        {"objects": keys, "bytes": size, "deleted": len(objects) if delete else 0},
        "\n".join([*keys, f"{len(objects)} objects, {_megabytes(size)} {verb}"]),
    )


def _in_short(uri: str) -> tuple[str, str, str]:
    """Images, classes and source of a version; a damaged one does not keep the others from being listed."""
    try:
        manifest = load_manifest(uri)
    except DdpipeError:
        return "damaged", "", ""
    images = sum(split.count for split in manifest.splits.values())
    return f"{images:,}", str(len(manifest.classes)), str(manifest.source.get("kind", ""))


def _some(verb: str, lines: list[str]) -> list[str]:
    more = [f"  … and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
    return [f"{len(lines):,} {verb}", *(f"  {line}" for line in lines[:SHOWN]), *more]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
