"""What a training job is: pure values and functions, no I/O. Each backend is a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping

BACKENDS: Mapping[str, str] = {
    "trainjob": "ddpipe.jobs.trainjob",
    "pytorchjob": "ddpipe.jobs.pytorchjob",
    "indexedjob": "ddpipe.jobs.indexedjob",
}
"""The module of each backend, by name, in the order in which `auto` tries them.

Its `BACKEND` is a `jobs.backend.Backend`.
"""

ALONE = "indexedjob"  # the one for pods that work alone: a lost one is replaced, the others do not notice
LOCAL = "local"  # instead of a backend: processes on this machine
# The container that trains, in every kind of job, so that one patch fits all; PyTorchJobs require it.
CONTAINER = "pytorch"
JOB_VARIABLE = "DDPIPE_JOB"  # the variable that the container that trains has, and no other
