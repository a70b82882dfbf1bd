"""What can run a training job's pods: each backend is one file here, and one line in BACKENDS."""

from __future__ import annotations

from collections.abc import Mapping

BACKENDS: Mapping[str, str] = {
    "trainjob": "ddpipe.launch.backends.trainjob",
    "pytorchjob": "ddpipe.launch.backends.pytorchjob",
    "indexedjob": "ddpipe.launch.backends.indexedjob",
}
"""The module of each backend, by name; its `BACKEND` is a `launch.backend.Backend`."""

LOCAL = "local"
"""In place of a backend: processes of this machine."""
