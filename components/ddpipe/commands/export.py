"""`ddpipe export`: an evaluated model -> a model package."""

from __future__ import annotations

from typing import Any

from ddpipe import workflow
from ddpipe.commands.results import CommandOutcome
from ddpipe.commands.shown import Document, Page
from ddpipe.commands.step import step_command
from ddpipe.export.spec import ExportSpec
from ddpipe.model.package import FORMAT, ONNX, SIGNATURE
from ddpipe.runs import RunOptions
from ddpipe.steps import EXPORT
from ddpipe.storage import read_uri


@step_command(EXPORT)
def export_command(dataset: str, **given: Any) -> CommandOutcome:  # noqa: ANN401 - the step's parameters
    """Run the step; its declaration describes it."""
    run = RunOptions.picked(given).required
    package = workflow.export(run, dataset, given["network"], ExportSpec.picked(given))
    facts = run.facts("export")
    place = facts.get("version_uri") or run.origin("export").model
    after_gate = ("version", "promoted")
    version: dict[str, Any] = {name: facts[name] for name in after_gate if name in facts}
    known = {
        "uri": place,
        "model_id": package.model_id,
        "framework": "onnx" if ONNX in package.folder.sha256 else "pytorch",
        "format": f"{FORMAT.kind} {FORMAT.schema}",
        **version,
        **({"verdict": run.facts("gate")["decision"]} if version else {}),
    }
    return CommandOutcome(
        {"model": place, **version},
        f"model package: {place}",
        values={"model": place},
        shown={
            "model_package": Document(package.folder.read(SIGNATURE), known),
            "report": Page(read_uri(run.report).decode()),
        },
    )
