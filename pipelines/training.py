"""The training pipeline: raw data in, an evaluated and exported model out.

prepare ──▶ train ──▶ evaluate ──▶ export
"""

from kfp import dsl

from ddpipe import steps


@dsl.pipeline(name="ddpipe-training", display_name="ddpipe: train a model")
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
    skip_bad: bool = False,
    processes: int = 1,
    model: str = "digits-cnn",
    epochs: int = 15,
    batch_size: int = 64,
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    warmup_fraction: float = 0.1,
    label_smoothing: float = 0.1,
    precision: str = "fp32",
    seed: int = 0,
    checkpoint_minutes: float = 5.0,
) -> None:
    """Train an image classifier: prepare the data, train, evaluate on the test split, export.

    Args:
        run_name: Name of the run's folder; an unfinished run of this name goes on. Empty: the run's id.
        runs: Folder of all runs: s3://bucket/prefix, or a path on a shared volume.
        store: Folder of all datasets: s3://bucket/prefix, or a path on a shared volume.
        source: Kind of raw data: digits, folder.
        source_path: Where the raw data lies, for sources that need it.
        dataset_name: Name of the dataset. Empty: the source's.
        image_size: Side in pixels that all images get. 0: the commonest size.
        validation_fraction: Share of the validation split.
        test_fraction: Share of the test split; training gets the rest.
        split_seed: Decides which sample goes to which split.
        skip_bad: Leave unreadable samples out, and list them, instead of refusing the data.
        processes: Training processes.
        model: Network to train.
        epochs: Times that every sample is seen.
        batch_size: Samples in one step, over all processes together.
        learning_rate: Highest learning rate: reached after warm-up, then falling along a cosine to 0.
        momentum: Nesterov momentum of SGD; 0 is without.
        weight_decay: L2 penalty on all weights.
        warmup_fraction: Part of all steps in which the learning rate rises to its highest.
        label_smoothing: Part of the target that is spread evenly over all classes.
        precision: Arithmetic of the network: fp32, or bf16 (mixed, with fp32 weights).
        seed: Decides the first weights and the order of the samples.
        checkpoint_minutes: Longest time between two checkpoints; every epoch ends with one anyway.
    """
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
        skip_bad=skip_bad,
    )
    # The engine can not see whether the data behind an address changed, nor whether a job still exists: both
    # steps find that out themselves, in seconds.
    prepared.set_caching_options(enable_caching=False)
    run, manifest = prepared.outputs["run"], prepared.outputs["manifest"]
    trained = steps.train(
        run=run,
        manifest=manifest,
        processes=processes,
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
    )
    trained.set_caching_options(enable_caching=False)
    evaluated = steps.evaluate(run=run, manifest=manifest).after(trained)
    steps.export(run=run, manifest=manifest).after(evaluated)
