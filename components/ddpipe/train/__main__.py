"""One rank of a training, alone or under torchrun.

python -m ddpipe.train --dataset store/datasets/digits/<id>/manifest.json --output runs/a/training
torchrun --standalone --nproc-per-node 2 -m ddpipe.train --dataset … --output … --recipe '{"epochs": 30}'
"""

from __future__ import annotations

import os

import click

from ddpipe.processes.machine import keep_memory, launched_at, search_rarely


@click.command()
@click.option("--dataset", required=True, help="URI of the dataset version's manifest.")
@click.option("--output", required=True, help="Folder of this training: a path or s3://bucket/prefix.")
@click.option("--recipe", default="{}", show_default=True, help="Hyperparameters as a JSON object.")
@click.option("--find-processes", is_flag=True, help="Time the first steps; may end for another number.")
def main(dataset: str, output: str, recipe: str, *, find_processes: bool) -> None:
    """Train as one rank."""
    began = launched_at()
    search_rarely()
    keep_memory()
    from ddpipe.distributed import run_rank  # noqa: PLC0415 - torch, after `search_rarely`
    from ddpipe.processes.packing import run  # noqa: PLC0415
    from ddpipe.storage import read_uri  # noqa: PLC0415
    from ddpipe.train.recipe import Recipe  # noqa: PLC0415
    from ddpipe.train.train import train  # noqa: PLC0415

    def work() -> None:
        if own := os.environ.get("DDPIPE_OWN"):  # the user's functions: their address ends with their hash
            run(read_uri(own), own.rpartition("/")[2])
        train(dataset, output, Recipe.from_json(recipe), began=began, finds_processes=find_processes)

    run_rank(work)


if __name__ == "__main__":
    main()
