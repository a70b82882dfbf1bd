"""`ddpipe export`: an evaluated model -> a model package."""

from __future__ import annotations

from typing import Any

from ddpipe import workflow
from ddpipe.commands.results import Outcome
from ddpipe.commands.shown import Document, Page
from ddpipe.commands.step import step_command
from ddpipe.model.package import SIGNATURE
from ddpipe.runs import RunOptions
from ddpipe.steps import EXPORT
from ddpipe.storage import read_uri


@step_command(EXPORT)
def export_command(dataset: str, **given: Any) -> Outcome:  # noqa: ANN401 - the step's parameters
    """Run the step; its declaration describes it."""
    run = RunOptions.picked(given).required
    package = workflow.export(run, dataset, given["network"])
    place = run.origin("export").model
    return Outcome(
        {"model": place},
        f"model package: {place}",
        values={"model": place},
        shown={
            "model_package": Document(
                package.folder.read(SIGNATURE), {"uri": place, "model_id": package.model_id}
            ),
            "report": Page(read_uri(run.report).decode()),
        },
    )
