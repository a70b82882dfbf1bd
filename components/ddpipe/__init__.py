"""Image classifiers, and your own scripts, trained here or as Kubeflow Pipelines components.

    result = ddpipe.run("photos", minutes=5)        raw data to a model; also prepare, train, evaluate, export
    ddpipe.open("photos").loader("train")           its images, for a loop of your own
    ddpipe.load_model("runs/first/model")           what a run has exported
    ddpipe.launch(function, nodes=4)                a function as a job; ddpipe.attach(name) finds it again
    ddpipe.report(step=3, of=10, loss=0.5)          how far a script of your own is

Editors read the signatures from __init__.pyi, which `make reference` writes from the declarations.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any

_STEPS = ("prepare", "train", "evaluate", "export")  # functions that have the names of packages
# What `import ddpipe` offers, and the module of each: imported when it is used, as most processes do not.
PUBLIC = {
    **dict.fromkeys(("run", *_STEPS), "ddpipe.api"),
    "open": "ddpipe.train.reading",
    "load_model": "ddpipe.serve.predictor",
    "launch": "ddpipe.notebook.entry",
    "report": "ddpipe.processes.reports",
    "attach": "ddpipe.notebook.entry",
}


class _CallablePackage(ModuleType):
    """A package that is also the function of its name."""

    def __call__(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - those of the function
        return self._function(*args, **options)

    @property
    def _function(self) -> Any:  # noqa: ANN401 - as above
        return getattr(import_module("ddpipe.api"), self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> Any:  # noqa: ANN401 - as above
        return self._function.__signature__


class _Ddpipe(ModuleType):
    """This module. Python makes an imported package an attribute of its parent, in place of the function."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _STEPS and isinstance(value, ModuleType):
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Ddpipe


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the functions
    if name == "__version__":
        return version("ddpipe")
    if name not in PUBLIC:
        raise AttributeError(f"module 'ddpipe' has no attribute {name!r}")
    try:
        return getattr(import_module(PUBLIC[name]), name)
    except ModuleNotFoundError as error:
        from ddpipe.errors import error_for_missing_package  # noqa: PLC0415 - `import ddpipe` imports nothing

        raise error_for_missing_package(f"ddpipe.{name}", error) from None


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])
