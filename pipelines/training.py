"""The training pipeline: raw data in, an evaluated and exported model out.

prepare ──▶ train ──▶ evaluate ──▶ export, and clean-up however they end
"""

from kfp import dsl, kubernetes

from ddpipe import steps

NAME = "ddpipe-training"
STORE_SECRET = "mlpipeline-minio-artifact"  # noqa: S105 - the name of a secret


def _give_store(task: dsl.PipelineTask) -> None:
    """The credentials of Kubeflow's own object store, where the namespace has them; never their values."""
    variables = {"accesskey": "AWS_ACCESS_KEY_ID", "secretkey": "AWS_SECRET_ACCESS_KEY"}
    kubernetes.use_secret_as_env(task, STORE_SECRET, variables, optional=True)


@dsl.pipeline(name=NAME, display_name="ddpipe: train a model")
def training(
    run_name: str = "",
    runs: str = "s3://mlpipeline/ddpipe/runs",
    store: str = "s3://mlpipeline/ddpipe/store",
    source: str = "digits",
    source_path: str = "",
    dataset_name: str = "",
    image_size: int = 0,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    split_seed: int = 0,
    image_format: str = "auto",
    quality: int = 90,
    folds: int = 0,
    fold: int = 0,
    table: str = "train.csv",
    image_column: str = "",
    label_columns: str = "",
    group_column: str = "",
    split_column: str = "",
    verify: bool = False,
    skip_bad: bool = False,
    backend: str = "pytorchjob",
    image: str = steps.TRAINER_IMAGE,
    nodes: int = 1,
    processes: int = 1,
    cpu: str = "1",
    memory: str = "4Gi",
    gpus: int = 0,
    s3_endpoint: str = "minio-service.kubeflow:9000",
    s3_secret: str = STORE_SECRET,
    model: str = "digits-cnn",
    epochs: int = 15,
    batch_size: int = 64,
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    warmup_fraction: float = 0.1,
    label_smoothing: float = 0.0,
    augmentation: str = "none",
    precision: str = "fp32",
    seed: int = 0,
    checkpoint_minutes: float = 5.0,
) -> None:
    """Train an image classifier: prepare the data, train, evaluate on the test split, export.

    Args:
        run_name: Name of the run's folder; an unfinished run of this name goes on. Empty: the run's id.
        runs: Folder of all runs: s3://bucket/prefix, or a path on a shared volume.
        store: Folder of all datasets: s3://bucket/prefix, or a path on a shared volume.
        source: Kind of raw data, such as digits, folder, ranzcr, webdataset, cifar10, mnist.
        source_path: Where the raw data lies, for sources that need it.
        dataset_name: Name of the dataset. Empty: the source's.
        image_size: Side in pixels that all images get. 0: the commonest size.
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
        backend: What trains: pytorchjob (the pods of a PyTorchJob), or local (the step itself, on a laptop).
        image: Image of the training pods; it has ddpipe and torch.
        nodes: Training pods.
        processes: Training processes per pod.
        cpu: CPUs per pod.
        memory: Memory per pod.
        gpus: GPUs per pod; one process per GPU is usual.
        s3_endpoint: Object store, as pods reach it.
        s3_secret: Secret with its accesskey and secretkey, in the run's namespace. Empty: none is needed.
        model: Network to train.
        epochs: Times that every sample is seen.
        batch_size: Samples in one step, over all processes together.
        learning_rate: Highest learning rate: reached after warm-up, then falling along a cosine to 0.
        momentum: Nesterov momentum of SGD; 0 is without.
        weight_decay: L2 penalty on all weights.
        warmup_fraction: Part of all steps in which the learning rate rises to its highest.
        label_smoothing: Part of the target that is spread evenly over all classes.
        augmentation: Random changes to training images: none, shift, shift-flip, shift-flip-cutout, photo.
        precision: Arithmetic of the network: fp32, or bf16 (mixed, with fp32 weights).
        seed: Decides the first weights and the order of the samples.
        checkpoint_minutes: Longest time between two checkpoints; every epoch ends with one anyway.
    """
    cleaned = steps.clean_up(pipeline=NAME, run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER, backend=backend)
    cleaned.set_caching_options(enable_caching=False)
    with dsl.ExitHandler(cleaned, name="steps"):
        prepared = steps.prepare(
            run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
            run_name=run_name,
            runs=runs,
            store=store,
            source=source,
            source_path=source_path,
            dataset_name=dataset_name,
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
        )
        # The engine can not see whether the data behind an address changed, nor whether a job still exists:
        # both steps find that out themselves, in seconds.
        prepared.set_caching_options(enable_caching=False)
        run, manifest = prepared.outputs["run"], prepared.outputs["manifest"]
        trained = steps.train(
            run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
            task_id=dsl.PIPELINE_TASK_ID_PLACEHOLDER,
            run=run,
            manifest=manifest,
            backend=backend,
            image=image,
            nodes=nodes,
            processes=processes,
            cpu=cpu,
            memory=memory,
            gpus=gpus,
            s3_endpoint=s3_endpoint,
            s3_secret=s3_secret,
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
        )
        trained.set_caching_options(enable_caching=False)
        evaluated = steps.evaluate(run=run, manifest=manifest).after(trained)
        exported = steps.export(run=run, manifest=manifest).after(evaluated)
        for task in (prepared, trained, evaluated, exported):
            _give_store(task)
