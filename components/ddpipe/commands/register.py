"""`ddpipe register MODEL`: a version of a model -> an entry of a Kubeflow Model Registry."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ddpipe.commands.results import Outcome
from ddpipe.commands.shown import Document
from ddpipe.commands.step import step_command
from ddpipe.serve.naming import package_uri
from ddpipe.serve.registration import entry_of
from ddpipe.serve.registry import register
from ddpipe.serve.spec import RegisterOptions
from ddpipe.steps import REGISTER
from ddpipe.storage.sealed import to_json


@step_command(REGISTER)
def register_command(model: str, runs: str, store: str, **given: Any) -> Outcome:  # noqa: ANN401 - the step's parameters
    """Run the step; its declaration describes it."""
    entry = entry_of(package_uri(model, runs, store))
    found = register(entry, RegisterOptions.picked(given).registry)
    return Outcome(
        asdict(found),
        f"{found.model}@{found.version} is registered in {found.registry} as version {found.version_id} of "
        f"model {found.model_id}",
        values={"version_id": found.version_id},
        shown={
            "registered_version": Document(to_json(asdict(entry)), {**entry.properties, "uri": entry.uri})
        },
    )
