"""What can run a training job's pods: each backend is one file here, and one line in BACKENDS."""

from __future__ import annotations

from collections.abc import Mapping

BACKENDS: Mapping[str, str] = {
    "trainjob": "ddpipe.launch.backends.trainjob",
    "pytorchjob": "ddpipe.launch.backends.pytorchjob",
    "indexedjob": "ddpipe.launch.backends.indexedjob",
}
"""The module of each backend, by name, in the order in which `auto` takes them.

Its `BACKEND` is a `launch.backend.Backend`.
"""

AUTO = "auto"
"""Whichever of these fits."""

LOCAL = "local"
"""In place of a backend: processes of this machine."""

CONTAINER = "pytorch"
"""The container that trains, in every kind of job, so that the same patch fits; PyTorchJobs insist on it."""
