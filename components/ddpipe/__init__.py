"""Distributed PyTorch training as Kubeflow Pipelines components.

From a notebook: `ddpipe.launch(function, …)` returns a handle, `ddpipe.attach(name)` returns it again.
`ddpipe.load_model("runs/first/model").predict(["a.png"])` uses what a run has exported.

Editors read the signatures from __init__.pyi, which `make reference` writes from the declarations.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

PUBLIC = {
    "launch": "ddpipe.notebook.entry",
    "attach": "ddpipe.notebook.entry",
    "load_model": "ddpipe.serve.predictor",
}
"""What `import ddpipe` offers, and the module of each: imported when it is used, as most processes do not."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the functions
    if name not in PUBLIC:
        raise AttributeError(f"module 'ddpipe' has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])
