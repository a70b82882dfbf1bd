"""`ddpipe prepare`: raw data -> a dataset version."""

from __future__ import annotations

from typing import Any

from ddpipe import workflow
from ddpipe.commands.results import CommandOutcome
from ddpipe.commands.shown import Document, Page
from ddpipe.commands.step import step_command
from ddpipe.data.manifest import store_of
from ddpipe.prepare.prepare import prepare
from ddpipe.prepare.report import data_report_html
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.runs import RunOptions
from ddpipe.steps import PREPARE, EncodeOptions


@step_command(PREPARE)
def prepare_command(**given: Any) -> CommandOutcome:  # noqa: ANN401 - the step's parameters
    """Run the step; its declaration describes it."""
    run, spec = RunOptions.picked(given).named, PrepareSpec.picked(given)
    helpers = workflow.helpers(EncodeOptions.picked(given))
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
