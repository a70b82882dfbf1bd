"""What can run a training job's pods: each backend is one file here, and one line in BACKENDS."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpipe.launch.backend import Backend

BACKENDS: Mapping[str, str] = {"pytorchjob": "ddpipe.launch.backends.pytorchjob"}
"""The module of each backend, by name; its `BACKEND` is a `launch.backend.Backend`."""


def backend(name: str) -> Backend:
    """The backend of this name; its module is imported now."""
    found: Backend = import_module(BACKENDS[name]).BACKEND
    return found


def all_backends() -> tuple[Backend, ...]:
    """Every backend."""
    return tuple(map(backend, BACKENDS))
