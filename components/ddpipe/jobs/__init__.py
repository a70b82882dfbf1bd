"""What a training job is: pure values and functions, no I/O. Each backend is a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping

BACKENDS: Mapping[str, str] = {
    "trainjob": "ddpipe.jobs.trainjob",
    "pytorchjob": "ddpipe.jobs.pytorchjob",
    "indexedjob": "ddpipe.jobs.indexedjob",
}
"""The module of each backend, by name, in the order in which `auto` takes them.

Its `BACKEND` is a `jobs.backend.Backend`.
"""

AUTO = "auto"
"""Whichever of these fits."""

LOCAL = "local"
"""In place of a backend: processes of this machine."""

CONTAINER = "pytorch"
"""The container that trains, in every kind of job, so that the same patch fits; PyTorchJobs insist on it."""
