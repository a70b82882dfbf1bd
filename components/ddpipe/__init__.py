"""Distributed PyTorch training as Kubeflow Pipelines components.

From a notebook: `ddpipe.launch(function, …)` returns a handle, `ddpipe.attach(name)` returns it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpipe.notebook.handle import Handle
    from ddpipe.notebook.packing import Work


def launch(work: Work, **options: Any) -> Handle:  # noqa: ANN401 - typed in notebook/handle.py
    """Launch a function or a script, and return its handle."""
    from ddpipe.notebook.handle import launch as launched  # noqa: PLC0415 - most processes need none of it

    return launched(work, **options)


def attach(name: str, runs: str = "runs") -> Handle:
    """Return the handle of an earlier launch."""
    from ddpipe.notebook.handle import attach as attached  # noqa: PLC0415 - as above

    return attached(name, runs)
