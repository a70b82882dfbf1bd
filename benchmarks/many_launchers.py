"""Many launchers as threads of one process: python many_launchers.py NUMBER launch OPTIONS... --run-id r ...

Each gets a run of its own. The last line is how many succeeded: "198 of 200".
"""

from __future__ import annotations

import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ddpipe.commands.jobs import job_of, launch_command
from ddpipe.errors import LaunchError
from ddpipe.jobs.job import TrainingJob
from ddpipe.kube.api import connect
from ddpipe.launching.launcher import launch


def main() -> None:
    """Launch all jobs, and wait for their ends."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    options = dict(launch_command.make_context("launch", sys.argv[3:]).params)
    del options["namespace"], options["check"]
    number, job = int(sys.argv[1]), job_of(connect().namespace, **options)
    jobs = [replace(job, owner=replace(job.owner, run_id=f"r{n}")) for n in range(number)]
    with ThreadPoolExecutor(number) as pool:
        right = sum(pool.map(_succeeds, jobs))
    print(f"{right} of {number}")  # noqa: T201


def _succeeds(job: TrainingJob) -> bool:
    try:
        launch(job, connect(), exists=lambda _: True)
    except LaunchError as error:
        print(error)  # noqa: T201
        return False
    return True


if __name__ == "__main__":
    main()
