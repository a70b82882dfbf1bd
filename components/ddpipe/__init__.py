"""Distributed PyTorch training as Kubeflow Pipelines components.

From a notebook: `ddpipe.launch(function, …)` gives a handle, `ddpipe.attach(name)` gives it again.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a callable package and a function
    """What notebooks need, imported when it is asked for: most processes start without it."""
    if name == "launch":
        return importlib.import_module("ddpipe.launch")
    if name == "attach":
        return importlib.import_module("ddpipe.launch.notebook").attach
    raise AttributeError(name)
