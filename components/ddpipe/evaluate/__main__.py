"""One rank of the evaluation: alone, or under torchrun.

python -m ddpipe.evaluate --training runs/a/training --dataset .../manifest.json --output runs/a/evaluation
torchrun --nproc-per-node 2 -m ddpipe.evaluate ...
"""

from __future__ import annotations

import click

from ddpipe.distributed import run_rank
from ddpipe.evaluate.evaluate import evaluate


@click.command()
@click.option("--training", required=True, help="Output of a finished training.")
@click.option("--dataset", required=True, help="Manifest of the dataset version that it was trained on.")
@click.option("--output", required=True, help="Folder for metrics and predictions.")
@click.option("--batch-size", default=128, show_default=True, help="Samples per forward pass.")
def main(training: str, dataset: str, output: str, batch_size: int) -> None:
    """Score a trained model on the test split, every sample exactly once."""
    run_rank(lambda: evaluate(training, dataset, output, batch_size=batch_size))


if __name__ == "__main__":
    main()
