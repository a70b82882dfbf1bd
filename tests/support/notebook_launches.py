"""Launches from a notebook, as their records say."""

from __future__ import annotations

from typing import Any

from ddpipe.notebook.folder import Launch
from ddpipe.notebook.machine import Machine, Secrets
from ddpipe.storage import Store

KEY_OF_LAUNCH = "ab" * 32


def a_launch(folder: Store, **changes: Any) -> Launch:
    """A recorded launch of a PyTorchJob in the namespace team, with its key on this machine."""
    options = {"image": "mine", "backend": "pytorchjob"}
    values: dict[str, Any] = {"backend": "pytorchjob", "namespace": "team", "options": options, **changes}
    launched = Launch(name="one", work="work", sha256="5" * 64, nodes=1, processes=1, **values)
    launched.write(folder)
    Machine(folder.uri).keep(Secrets(KEY_OF_LAUNCH))
    return launched
