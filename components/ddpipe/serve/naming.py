"""Which package a person means by MODEL: a folder, an s3:// URI, the name of a run, or NAME@VERSION."""

from __future__ import annotations

from ddpipe.errors import NoSuchObject
from ddpipe.model.history import address
from ddpipe.model.package import FORMAT
from ddpipe.runs import NAME, Run
from ddpipe.storage import open_store


def package_uri(model: str, runs: str, store: str) -> str:
    """The URI of a package."""
    if "@" in model and (version := address(model, store)):
        return version
    if open_store(model).exists(FORMAT.seal):
        return model
    if NAME.fullmatch(model):
        run = Run.named(runs, model).origin("export")
        if open_store(run.model).exists(FORMAT.seal):
            return run.model
        model = f"{model}, and {run.model}"
    raise NoSuchObject(
        what="there is no finished model package",
        which=model,
        seen=f"it has no {FORMAT.seal}, which is written last",
        do=f"Give a folder or s3:// URI, the name of a run in {runs}, or NAME@champion. `{FORMAT.maker}` "
        "makes a package.",
    )
