"""Where a model comes from: what only the environment of the process says."""

from __future__ import annotations

from collections.abc import Mapping

SURROUNDINGS = {
    "run": "DDPIPE_RUN",
    "job": "DDPIPE_JOB",
    "image": "DDPIPE_IMAGE",
    "volumes": "DDPIPE_VOLUMES",
}
"""Facts, and the environment variables that hold them; the pods of a job have them."""


def surroundings(environment: Mapping[str, str]) -> dict[str, str]:
    """Run, job, image and volumes of this process, as far as the environment names them."""
    return {name: environment[key] for name, key in SURROUNDINGS.items() if environment.get(key)}
