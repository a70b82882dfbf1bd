"""Where a model comes from, as far as only the one who started the process knows."""

from __future__ import annotations

from collections.abc import Mapping

SURROUNDINGS = {
    "run": "DDPIPE_RUN",
    "job": "DDPIPE_JOB",
    "image": "DDPIPE_IMAGE",
    "volumes": "DDPIPE_VOLUMES",
}
"""What is told, and the environment variables that tell it: a job's pods have them."""


def surroundings(environment: Mapping[str, str]) -> dict[str, str]:
    """Run, job, image and volumes of this process, as far as they are told."""
    return {name: environment[key] for name, key in SURROUNDINGS.items() if environment.get(key)}
