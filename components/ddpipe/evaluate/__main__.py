"""One rank of the evaluation: alone, or under torchrun.

python -m ddpipe.evaluate --training runs/a/training --dataset .../manifest.json --output runs/a/evaluation
torchrun --nproc-per-node 2 -m ddpipe.evaluate ...
"""

from __future__ import annotations

import click

from ddpipe.processes.machine import keep_memory, search_rarely


@click.command()
@click.option("--training", required=True, help="Output of a finished training.")
@click.option("--dataset", required=True, help="Manifest of the dataset version that it was trained on.")
@click.option("--output", required=True, help="Folder for metrics and predictions.")
@click.option("--spec", default="{}", help="JSON object of evaluation parameters.")
@click.option(
    "--network", default="", help="Function of the user's own network, the only one that may be imported."
)
def main(training: str, dataset: str, output: str, spec: str, network: str) -> None:
    """Score a trained model on the test split, every sample exactly once."""
    search_rarely()
    keep_memory()
    from ddpipe.distributed import run_rank  # noqa: PLC0415 - torch, after `search_rarely`
    from ddpipe.evaluate.evaluate import evaluate  # noqa: PLC0415
    from ddpipe.evaluate.spec import EvaluateSpec  # noqa: PLC0415

    run_rank(lambda: evaluate(training, dataset, output, EvaluateSpec.from_json(spec), network))


if __name__ == "__main__":
    main()
