"""The KFP doors: each step as a pipeline component, thin around one call of the package.

A body runs in its own process, in an image that has ddpipe installed: it imports what it needs, calls one
function and hands the engine what it shows (parameters, metrics, confusion matrix, HTML). Datasets and models
stay in the object store; what travels between steps is their address.
"""

import os
from typing import Any, Dict, List, NamedTuple  # noqa: UP035 - kfp knows no others

from kfp import dsl
from kfp.dsl import HTML, ClassificationMetrics, Dataset, Metrics, Model, Output

REGISTRY, TAG = os.environ.get("DDPIPE_REGISTRY", "ghcr.io/ddpipe"), os.environ.get("DDPIPE_TAG", "0.1.0")
LAUNCHER_IMAGE = f"{REGISTRY}/ddpipe-launcher:{TAG}"
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
    image_format: str,
    quality: int,
    folds: int,
    fold: int,
    table: str,
    image_column: str,
    label_columns: str,
    group_column: str,
    split_column: str,
    verify: bool,
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
        source: Kind of raw data, such as digits, folder, ranzcr, webdataset, cifar10, mnist.
        source_path: Where the raw data lies, for sources that need it.
        dataset_name: Name of the dataset; empty: the source's.
        image_size: Side in pixels that all images get; 0: the commonest size.
        validation_fraction: Share of the validation split.
        test_fraction: Share of the test split; training gets the rest.
        split_seed: Decides which sample goes to which split.
        image_format: Raw (pixels), jpeg, or auto: raw for images of up to 96 pixels.
        quality: Quality of JPEGs, 1 to 95.
        folds: Pieces for cross-validation; 0: none.
        fold: Which piece is the validation split, from 0.
        table: Source csv: the CSV file, below the images or anywhere.
        image_column: Source csv: column that names the image. Empty: the first.
        label_columns: Source csv: one column of classes, or several of 0 and 1: a,b,c.
        group_column: Source csv: column of what stays in one split, such as a patient.
        split_column: Source csv: column of train, validation and test.
        verify: Read all files again, even where nothing says that they changed.
        skip_bad: Leave unreadable samples out, and list them, instead of refusing the data.
        dataset: The dataset version: a copy of its manifest.
        data_report: Class table and sample images of each split.

    Returns:
        The run's folder, the address of the dataset's manifest, the dataset's id.
    """
    from pathlib import Path

    from ddpipe import workflow
    from ddpipe.prepare.spec import PrepareSpec
    from ddpipe.runs import Run
    from ddpipe.stage import on_stage
    from ddpipe.storage import read_uri

    with on_stage():
        here = Run.named(runs, run_name or run_id)
        spec = PrepareSpec(
            source=source,
            source_path=source_path,
            dataset_name=dataset_name,
            store=store,
            image_size=image_size,
            validation_fraction=validation_fraction,
            test_fraction=test_fraction,
            split_seed=split_seed,
            image_format=image_format,
            quality=quality,
            folds=folds,
            fold=fold,
            table=table,
            image_column=image_column,
            label_columns=label_columns,
            group_column=group_column,
            split_column=split_column,
            verify=verify,
            skip_bad=skip_bad,
        ).validated()
        prepared = workflow.prepare(here, spec)
        Path(dataset.path).write_text(prepared.manifest.to_json())
        dataset.metadata.update(dataset_id=prepared.dataset_id, uri=prepared.manifest_uri)
        Path(data_report.path).write_bytes(read_uri(here.data_report))
    return (here.uri, prepared.manifest_uri, prepared.dataset_id)


@dsl.component(base_image=LAUNCHER_IMAGE, install_kfp_package=False)
def train(
    run_id: str,
    task_id: str,
    run: str,
    manifest: str,
    backend: str,
    image: str,
    nodes: int,
    processes: int,
    cpu: str,
    memory: str,
    gpus: int,
    s3_endpoint: str,
    s3_secret: str,
    model: str,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    warmup_fraction: float,
    label_smoothing: float,
    augmentation: str,
    precision: str,
    seed: int,
    checkpoint_minutes: float,
    metrics: Output[Metrics],
) -> str:
    """Train a model on a dataset version by distributed data parallelism, in the pods of a job or right here.

    Args:
        run_id: The pipeline run's id; with task_id the name of the job: a retry finds the same one.
        task_id: What tells loop iterations of one run apart.
        run: The run's folder.
        manifest: Address of the dataset's manifest.
        backend: What runs the training: pytorchjob, or local: this step itself.
        image: Image of the training pods.
        nodes: Training pods.
        processes: Training processes per pod.
        cpu: CPUs per pod.
        memory: Memory per pod.
        gpus: GPUs per pod.
        s3_endpoint: Object store as the pods reach it.
        s3_secret: Secret with its accesskey and secretkey; empty: none is needed.
        model: Network to train.
        epochs: Times that every sample is seen.
        batch_size: Samples in one step, over all processes together.
        learning_rate: Highest learning rate.
        momentum: Nesterov momentum of SGD; 0 is without.
        weight_decay: L2 penalty on all weights.
        warmup_fraction: Part of all steps in which the learning rate rises to its highest.
        label_smoothing: Part of the target that is spread evenly over all classes.
        augmentation: Random changes to training images: none, shift, shift-flip, shift-flip-cutout, photo.
        precision: Arithmetic of the network: fp32 or bf16.
        seed: Decides the first weights and the order of the samples.
        checkpoint_minutes: Longest time between two checkpoints.
        metrics: Loss and accuracy of the last epoch.

    Returns:
        The folder with checkpoints, metrics and event files.
    """
    from ddpipe import workflow
    from ddpipe.launch.job import JobOptions, Owner
    from ddpipe.runs import Run
    from ddpipe.stage import on_stage
    from ddpipe.train.recipe import Recipe

    with on_stage():
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
            augmentation=augmentation,
            precision=precision,
            seed=seed,
            checkpoint_minutes=checkpoint_minutes,
        ).validated()
        if backend == "local":
            record = workflow.train(here, manifest, recipe, processes)
        else:
            record = workflow.launch(
                here,
                manifest,
                recipe,
                owner=Owner(pipeline="ddpipe-training", run_id=run_id, task_id=task_id, step="train"),
                options=JobOptions(
                    backend=backend,
                    image=image,
                    nodes=nodes,
                    processes=processes,
                    cpu=cpu,
                    memory=memory,
                    gpus=gpus,
                    s3_secret=s3_secret,
                    s3_endpoint=s3_endpoint,
                ),
            )
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
    from ddpipe.runs import Run
    from ddpipe.stage import on_stage
    from ddpipe.storage import read_uri

    with on_stage():
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
        Path(report.path).write_bytes(read_uri(here.report))
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
    from ddpipe.model.package import SIGNATURE
    from ddpipe.runs import Run
    from ddpipe.stage import on_stage
    from ddpipe.storage import read_uri

    with on_stage():
        here = Run(run)
        package = workflow.export(here, manifest)
        Path(model.path).write_bytes(package.folder.read(SIGNATURE))
        model.metadata.update(uri=here.model, model_id=package.model_id)
        Path(report.path).write_bytes(read_uri(here.report))
    return here.model


@dsl.component(base_image=LAUNCHER_IMAGE, install_kfp_package=False)
def pytorch_job(
    pipeline: str,
    run_id: str,
    task_id: str,
    step: str,
    image: str,
    command: List[str],  # noqa: UP006 - kfp knows no other
    env: Dict[str, str],  # noqa: UP006
    nodes: int,
    processes: int,
    cpu: str,
    memory: str,
    gpus: int,
    metrics: Output[Metrics],
    outputs: List[str] = [],  # noqa: B006, UP006 - a value of the interface, never changed
    volumes: List[str] = [],  # noqa: B006, UP006
    s3_endpoint: str = "minio-service.kubeflow:9000",
    s3_secret: str = "",
    node_selector: Dict[str, str] = {},  # noqa: B006, UP006
    tolerations: List[Dict[str, str]] = [],  # noqa: B006, UP006
    priority_class: str = "",
    service_account: str = "",
    queue: str = "",
    scheduling: Dict[str, str] = {},  # noqa: B006, UP006
    labels: Dict[str, str] = {},  # noqa: B006, UP006
    annotations: Dict[str, str] = {},  # noqa: B006, UP006
    deadlines: Dict[str, float] = {},  # noqa: B006, UP006
    restart: str = "Never",
    max_restarts: int = 3,
    success: str = "all",
    keep: str = "never",
    patch: Dict[str, Any] = {},  # noqa: B006, UP006
) -> str:
    """Run any image and command as a PyTorchJob and wait for it: green if and only if it succeeded.

    Args:
        pipeline: Name of the pipeline: jobs that its earlier runs left behind are removed.
        run_id: The pipeline run's id; with task_id and step the job's name: a retry finds the same.
        task_id: What tells loop iterations of one run apart.
        step: Name of the step.
        image: Image of the pods.
        command: Command of the pods with its arguments; it finds PET_*, RANK, WORLD_SIZE, MASTER_ADDR.
        env: Further environment variables.
        nodes: Pods.
        processes: Training processes per pod, for torchrun.
        cpu: CPUs per pod.
        memory: Memory per pod.
        gpus: GPUs per pod.
        metrics: The numbers of the last progress line (name=value).
        outputs: URIs that must exist before the job counts as a success.
        volumes: What is mounted: claim:NAME:PATH, secret:NAME:PATH, config:NAME:PATH; :ro for reading only.
        s3_endpoint: Object store, as pods reach it.
        s3_secret: Secret with its accesskey and secretkey; empty: none is needed.
        node_selector: Labels that nodes must have.
        tolerations: Tolerations, as in a pod.
        priority_class: Priority class of the pods.
        service_account: Service account of the pods.
        queue: Kueue queue.
        scheduling: The operator's schedulingPolicy.
        labels: Further labels of job and pods.
        annotations: Further annotations of job and pods.
        deadlines: Seconds for a stage: reconciled, scheduled, pulled, running, finished.
        restart: Which failed replicas start again: Never, OnFailure, ExitCode, Always.
        max_restarts: How often they do.
        success: Whose success counts: all, or rank0.
        keep: Which ended jobs stay on the cluster: never, failed, always.
        patch: Strategic merge patch of the pod template, for anything unusual.

    Returns:
        Name of the job.
    """
    from ddpipe.launch.cluster import connect
    from ddpipe.launch.job import Owner, TrainingJob
    from ddpipe.launch.launcher import launch
    from ddpipe.stage import on_stage
    from ddpipe.storage import exists

    with on_stage():
        cluster = connect()
        job = TrainingJob(
            owner=Owner(pipeline=pipeline, run_id=run_id, task_id=task_id, step=step),
            namespace=cluster.namespace,
            image=image,
            command=command,
            env=env,
            nodes=nodes,
            processes=processes,
            cpu=cpu,
            memory=memory,
            gpus=gpus,
            outputs=outputs,
            volumes=volumes,
            s3_secret=s3_secret,
            s3_endpoint=s3_endpoint,
            node_selector=node_selector,
            tolerations=tolerations,
            priority_class=priority_class,
            service_account=service_account,
            queue=queue,
            scheduling=scheduling,
            labels=labels,
            annotations=annotations,
            deadlines=deadlines,
            restart=restart,
            max_restarts=max_restarts,
            success=success,
            keep=keep,
            patch=patch,
        )
        outcome = launch(job, cluster, exists=exists, is_process=True)
        for name, value in outcome.metrics.items():
            metrics.log_metric(name, value)
    return outcome.name


@dsl.component(base_image=LAUNCHER_IMAGE, install_kfp_package=False)
def clean_up(pipeline: str, run_id: str, backend: str = "pytorchjob") -> int:
    """Remove what a run has left on the cluster: the last step, however the others ended.

    A launcher removes its own job; one that was killed for good could not.

    Args:
        pipeline: Name of the pipeline.
        run_id: The pipeline run's id.
        backend: What ran the training; local leaves nothing on a cluster.

    Returns:
        How many jobs were removed; those that were to be kept stay.
    """
    from ddpipe import workflow
    from ddpipe.stage import on_stage

    with on_stage():
        return 0 if backend == "local" else len(workflow.clean_up(pipeline, run_id))
