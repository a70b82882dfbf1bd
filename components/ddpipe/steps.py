"""The KFP doors: each step as a pipeline component, thin around one call of the package.

A body runs in its own process, in an image that has ddpipe installed: it imports what it needs, calls one
function and hands the engine what it shows (parameters, metrics, confusion matrix, HTML). Datasets and models
stay in the object store; what travels between steps is their address.
"""

import os
from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, ClassificationMetrics, Dataset, Metrics, Model, Output

REGISTRY, TAG = os.environ.get("DDPIPE_REGISTRY", "ghcr.io/ddpipe"), os.environ.get("DDPIPE_TAG", "0.1.0")
TRAINER_IMAGE = f"{REGISTRY}/ddpipe-trainer:{TAG}"


@dsl.component(base_image=TRAINER_IMAGE, install_kfp_package=False)
def prepare(
    run_id: str,
    run_name: str,
    runs: str,
    store: str,
    source: str,
    source_path: str,
    dataset_name: str,
    image_size: int,
    validation_fraction: float,
    test_fraction: float,
    split_seed: int,
    skip_bad: bool,
    dataset: Output[Dataset],
    data_report: Output[HTML],
) -> NamedTuple("Prepared", [("run", str), ("manifest", str), ("dataset_id", str)]):
    """Bring raw data into a dataset version; unchanged data is proven unchanged and not written again.

    Args:
        run_id: The pipeline run's id: the name of the run's folder unless run_name is given.
        run_name: Name of the run's folder.
        runs: Folder of all runs, a path or s3://.
        store: Folder of all datasets, a path or s3://.
        source: Kind of raw data: digits, folder.
        source_path: Where the raw data lies, for sources that need it.
        dataset_name: Name of the dataset; empty: the source's.
        image_size: Side in pixels that all images get; 0: the commonest size.
        validation_fraction: Share of the validation split.
        test_fraction: Share of the test split; training gets the rest.
        split_seed: Decides which sample goes to which split.
        skip_bad: Leave unreadable samples out, and list them, instead of refusing the data.
        dataset: The dataset version: a copy of its manifest.
        data_report: Class table and sample images of each split.

    Returns:
        The run's folder, the address of the dataset's manifest, the dataset's id.
    """
    from pathlib import Path

    from ddpipe import workflow
    from ddpipe.errors import tidy_exit
    from ddpipe.prepare import PrepareSpec
    from ddpipe.runs import Run

    with tidy_exit():
        here = Run.named(runs, run_name or run_id)
        spec = PrepareSpec(
            source=source,
            path=source_path or None,
            name=dataset_name or source,
            store=store,
            seed=split_seed,
            fractions=(1 - validation_fraction - test_fraction, validation_fraction, test_fraction),
            image_size=image_size or None,
            skip_bad=skip_bad,
        )
        prepared = workflow.prepare(here, spec)
        Path(dataset.path).write_text(prepared.manifest.to_json())
        dataset.metadata.update(dataset_id=prepared.dataset_id, uri=prepared.manifest_uri)
        Path(data_report.path).write_text(workflow.data_report(prepared))
    return (here.uri, prepared.manifest_uri, prepared.dataset_id)


@dsl.component(base_image=TRAINER_IMAGE, install_kfp_package=False)
def train(
    run: str,
    manifest: str,
    processes: int,
    model: str,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    warmup_fraction: float,
    label_smoothing: float,
    precision: str,
    seed: int,
    checkpoint_minutes: float,
    metrics: Output[Metrics],
) -> str:
    """Train a model on a dataset version by distributed data parallelism.

    Args:
        run: The run's folder.
        manifest: Address of the dataset's manifest.
        processes: Training processes on this machine.
        model: Network to train.
        epochs: Times that every sample is seen.
        batch_size: Samples in one step, over all processes together.
        learning_rate: Highest learning rate.
        momentum: Nesterov momentum of SGD; 0 is without.
        weight_decay: L2 penalty on all weights.
        warmup_fraction: Part of all steps in which the learning rate rises to its highest.
        label_smoothing: Part of the target that is spread evenly over all classes.
        precision: Arithmetic of the network: fp32 or bf16.
        seed: Decides the first weights and the order of the samples.
        checkpoint_minutes: Longest time between two checkpoints.
        metrics: Loss and accuracy of the last epoch.

    Returns:
        The folder with checkpoints, metrics and event files.
    """
    from ddpipe import workflow
    from ddpipe.errors import tidy_exit
    from ddpipe.runs import Run
    from ddpipe.train.recipe import Recipe

    with tidy_exit():
        here = Run(run)
        recipe = Recipe(
            model=model,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            warmup_fraction=warmup_fraction,
            label_smoothing=label_smoothing,
            precision=precision,
            seed=seed,
            checkpoint_minutes=checkpoint_minutes,
        ).validated()
        record = workflow.train(here, manifest, recipe, processes)
        for name, value in record["final"].items():
            metrics.log_metric(name, value)
    return here.training


@dsl.component(base_image=TRAINER_IMAGE, install_kfp_package=False)
def evaluate(
    run: str,
    manifest: str,
    metrics: Output[Metrics],
    classification: Output[ClassificationMetrics],
    report: Output[HTML],
) -> NamedTuple("Evaluated", [("evaluation", str), ("accuracy", float)]):
    """Score the trained model on the test split, every sample exactly once.

    Args:
        run: The run's folder.
        manifest: Address of the dataset's manifest.
        metrics: Accuracy, macro F1, log loss, macro AUC.
        classification: Confusion matrix and ROC curve.
        report: The report for people, as far as the run has come.

    Returns:
        The folder with metrics and predictions, and the test accuracy.
    """
    from pathlib import Path

    from ddpipe import workflow
    from ddpipe.errors import tidy_exit
    from ddpipe.runs import Run

    with tidy_exit():
        here = Run(run)
        evaluation = workflow.evaluate(here, manifest)
        for name, value in evaluation.headline().items():
            metrics.log_metric(name, value)
        classes = [scores.name for scores in evaluation.metrics.classes]
        matrix = [list(row) for row in evaluation.metrics.confusion_matrix]
        classification.log_confusion_matrix(classes, matrix)
        roc = evaluation.metrics.roc
        classification.log_roc_curve(
            list(roc.false_positive_rate), list(roc.true_positive_rate), list(roc.threshold)
        )
        Path(report.path).write_text(workflow.report(here))
    return (here.evaluation, evaluation.headline()["accuracy"])


@dsl.component(base_image=TRAINER_IMAGE, install_kfp_package=False)
def export(
    run: str,
    manifest: str,
    model: Output[Model],
    report: Output[HTML],
) -> str:
    """Export the evaluated model, checked against the trained one, and write the run's report.

    Args:
        run: The run's folder.
        manifest: Address of the dataset's manifest.
        model: The model package: a copy of its signature.
        report: The report for people.

    Returns:
        The folder of the model package.
    """
    from pathlib import Path

    from ddpipe import workflow
    from ddpipe.errors import tidy_exit
    from ddpipe.model.package import SIGNATURE
    from ddpipe.runs import Run

    with tidy_exit():
        here = Run(run)
        package = workflow.export(here, manifest)
        Path(model.path).write_bytes(package.folder.read(SIGNATURE))
        model.metadata.update(uri=here.model, model_id=package.model_id)
        Path(report.path).write_text(workflow.report(here))
    return here.model
