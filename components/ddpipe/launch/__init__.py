"""A training job -> its outcome. From Python the package itself is called: see launch/notebook.py.

handle = ddpipe.launch(function, nodes=2, args={"epochs": 3}, runs="s3://bucket/runs", image="…")
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Launch(ModuleType):
    """This package, callable."""

    def __call__(self, *given: Any, **options: Any) -> Any:  # noqa: ANN401 - launch/notebook.py types them
        """Launch a function or a script, and give its handle."""
        from ddpipe.launch.notebook import launch  # noqa: PLC0415 - no other launcher pays for it

        return launch(*given, **options)


sys.modules[__name__].__class__ = _Launch
