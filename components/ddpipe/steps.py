"""The steps of a run as an engine sees them: a command, its inputs and its results.

    prepare (──▶ tune) ──▶ train ──▶ evaluate (──▶ gate) ──▶ export (──▶ deploy, register)
    pytorch_job: any image and command      clean_up

Commands get their options from here, pipeline components their inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from ddpipe.evaluate.spec import EvaluateSpec, GateSpec
from ddpipe.jobs import ALONE, BACKENDS, LOCAL
from ddpipe.jobs.job import Owner
from ddpipe.jobs.options import JobOptions, LaunchOptions, Restart
from ddpipe.parameters import AUTO, Between, OneOf, OrAuto, Parameter, Parameters, declared, parameter
from ddpipe.prepare.spec import PrepareSpec
from ddpipe.runs import RunOptions
from ddpipe.search import SearchOptions
from ddpipe.serve.settings import DeployOptions, ModelOptions, PredictOptions, RegisterOptions
from ddpipe.train.recipe import Recipe, StartingRecipe

REUSE = "reuse"  # use an earlier model instead of training the same one again
VERSION = "the name of a dataset (its newest version), an ID or a unique prefix of it, or a manifest's URI"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(Parameters):
    """Where the objects of s3:// URIs are."""

    heading: ClassVar[str] = "Object store"

    s3_endpoint: str = parameter(
        "",
        "Object store as host:port (default: S3_ENDPOINT, or AWS; inside Kubernetes, Kubeflow's own).",
        form="storage_endpoint",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions(Parameters):
    """Which dataset version a step works on."""

    heading: ClassVar[str] = "Data"

    dataset: str = parameter(None, f"Dataset version: {VERSION}.", common=True)
    store: str = parameter(
        "store", "URI of the dataset store, for a dataset that is given by its ID.", form="storage_datasets"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedDatasetOptions(DatasetOptions):
    """The dataset version of a run, for a step that follows training."""

    dataset: str = parameter(
        "", f"Dataset version: {VERSION} (default: that on which the run was trained).", common=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions(Parameters):
    """The network of a model that is read from a store."""

    heading: ClassVar[str] = "Network"

    network: str = parameter(
        "",
        "Network that was trained, needed for a function of your own (package.module:function): only the "
        "function named here is imported, never one that a file names.",
        form="train_model",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions(JobOptions):
    """Where training runs: on this machine, or in the pods of a job."""

    backend: str = parameter(
        LOCAL,
        f"Where to train: {LOCAL} (on this machine), or in the pods of a job: {', '.join(BACKENDS)}, or "
        f"{AUTO} (the first that the cluster has and the account may use).",
        OneOf((LOCAL, AUTO, *BACKENDS)),
        form="cluster_backend",
    )

    processes: int = parameter(
        0,
        "Training processes, per pod or on this machine; 0 means one per GPU, or one if there is none; "
        f"{AUTO} finds how many are fastest on the processors of this machine, by the first steps.",
        OrAuto(Between(0, 256)),
    )

    @property
    def finds_processes(self) -> bool:
        """Whether it is to be found how many processes train fastest on this machine."""
        return self.backend == LOCAL and not self.gpus and isinstance(self.processes, str)

    def conflicts(self) -> Iterator[str]:
        """What is wrong with a job's options together; nothing without a job."""
        if self.backend != LOCAL:
            if isinstance(self.processes, str):
                yield f"`processes` {AUTO} is for a training on this machine; pods need a number"
            yield from JobOptions.conflicts(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAnywhereOptions(LaunchOptions):
    """Where a command of the user's own runs: in the pods of a job, or on this machine."""

    backend: str = parameter(
        AUTO,
        f"Kind of job that runs the pods: {', '.join(BACKENDS)}, or {AUTO} (the first that the cluster has "
        f"and the account may use); or {LOCAL}: nodes x processes ranks on this machine.",
        OneOf((AUTO, LOCAL, *BACKENDS)),
        form="cluster_backend",
    )

    def conflicts(self) -> Iterator[str]:
        """What is wrong with a job's options together; without a job, options that only pods have."""
        if self.backend != LOCAL:
            yield from LaunchOptions.conflicts(self)
            return
        for item in declared(LaunchOptions):
            here = item.name in {"backend", "nodes", "processes", "command"}
            if not here and getattr(self, item.name) != item.default:
                yield f"`{item.name}` is for the pods of a job, not for {LOCAL}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeOptions(JobOptions):
    """Which processes encode the images of a dataset version: this one, or the pods of a job."""

    # No parameters here: what trains may need GPUs and an operator, what encodes never does.
    backend: str = ALONE
    nodes: int = 1
    gpus: int = 0
    encode_nodes: int = parameter(
        0,
        "Number of pods that read and encode the images, with a job's options; 0 means that this process "
        "does it alone. The version is the same.",
        Between(0, 10_000),
    )

    @property
    def job(self) -> JobOptions:
        """The job; the pods work alone, so a lost one is replaced without the others."""
        given = {item.name: getattr(self, item.name) for item in declared(JobOptions)}
        own = {"backend": ALONE, "nodes": self.encode_nodes, "min_nodes": 0, "gpus": 0}
        return JobOptions(**{**given, **own, "restart": Restart.EXIT_CODE.value})

    def conflicts(self) -> Iterator[str]:
        """What is wrong with the job's options; nothing without a job."""
        if self.encode_nodes:
            yield from self.job.problems()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseOptions(Parameters):
    """What to do instead of repeating an earlier training."""

    heading: ClassVar[str] = "Run"

    if_unchanged: str = parameter(
        "train",
        "What to do if data, recipe and code match an earlier run: train again, or reuse its model.",
        OneOf(("train", REUSE)),
        form="train_if_unchanged",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions(Parameters):
    """Which jobs to remove."""

    pipeline: str = parameter("", "Only jobs of this pipeline.")
    run_id: str = parameter("", "Remove only the jobs of this run, including running ones.")


class Image(StrEnum):
    """The images of ddpipe, in which steps run and models are served."""

    LAUNCHER = "launcher"
    TRAINER = "trainer"
    PREDICTOR = "predictor"


class Kind(StrEnum):
    """Kinds of results: text and numbers are inputs of later steps, the engine shows the others."""

    TEXT = "text"
    NUMBER = "number"
    DATASET = "dataset"
    MODEL = "model"
    METRICS = "metrics"
    CLASSIFICATION = "classification"
    PAGE = "page"

    @property
    def is_value(self) -> bool:
        """Whether it can be an input of later steps."""
        return self in {Kind.TEXT, Kind.NUMBER}


@dataclass(frozen=True, slots=True)
class StepResult:
    """A result of a step."""

    name: str  # different from all parameters of the step, and from all results that other steps show
    kind: Kind
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step."""

    name: str
    words: str = ""  # those after `ddpipe` on the command line; empty for the name
    image: Image
    groups: tuple[type[Parameters], ...]  # its parameters; if two have the same name, the first one counts
    results: tuple[StepResult, ...]
    help: str
    subject: str = ""  # the parameter that the command also takes as an argument; empty for none

    @property
    def command(self) -> list[str]:
        """The words of its command."""
        return (self.words or self.name).split()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its parameters, each name once."""
        found = {item.name: item for group in reversed(self.groups) for item in declared(group)}
        names = dict.fromkeys(item.name for group in self.groups for item in declared(group))
        return tuple(found[name] for name in names)


PREPARE = Step(
    name="prepare",
    image=Image.TRAINER,
    groups=(PrepareSpec, EncodeOptions, RunOptions, StoreOptions),
    results=(
        StepResult("dataset", Kind.TEXT, "URI of the dataset version's manifest, the input of later steps."),
        StepResult("dataset_id", Kind.TEXT, "SHA-256 that identifies the version."),
        StepResult("dataset_version", Kind.DATASET, "The dataset version, as a copy of its manifest."),
        StepResult(
            "data_report", Kind.PAGE, "HTML report on the dataset: classes, samples, sizes and duplicates."
        ),
    ),
    help="Turn raw data into a dataset version: decoded once, split and content-addressed. Unchanged data is "
    "verified, not written again.",
    subject="source_path",
)
TRAIN = Step(
    name="train",
    image=Image.LAUNCHER,
    groups=(DatasetOptions, RunOptions, ReuseOptions, StartingRecipe, Recipe, JobOptions, Owner),
    results=(
        StepResult("training", Kind.TEXT, "Folder with checkpoints, metrics and event files."),
        StepResult("train_metrics", Kind.METRICS, "Loss and scores of the last epoch."),
    ),
    help="Train a model on a dataset version, in the pods of a job. A repeated call resumes from the last "
    "checkpoint.",
)
# The same on the command line; the engine's step runs in an image that cannot train.
TRAIN_ANYWHERE = replace(
    TRAIN,
    groups=(DatasetOptions, RunOptions, ReuseOptions, StartingRecipe, Recipe, TrainOptions, Owner),
    help="Train a model on a dataset version, on this machine or in the pods of a job. A repeated call "
    "resumes from the last checkpoint.",
    subject="dataset",
)
TUNE = Step(
    name="tune",
    words="tune --on katib",
    image=Image.LAUNCHER,
    groups=(DatasetOptions, RunOptions, SearchOptions, StartingRecipe, Recipe, JobOptions, Owner),
    results=(
        StepResult("best_recipe", Kind.TEXT, "The best recipe, the input `recipe` of train."),
        StepResult("tune_metrics", Kind.METRICS, "Score of the best trial on the validation split."),
    ),
    help="Search hyperparameters with Katib: its trials are jobs. A repeated call continues the same search.",
)
EVALUATE = Step(
    name="evaluate",
    image=Image.TRAINER,
    groups=(TrainedDatasetOptions, RunOptions, EvaluateSpec, NetworkOptions, StoreOptions),
    results=(
        StepResult("evaluation", Kind.TEXT, "Folder with metrics and predictions."),
        StepResult("score", Kind.NUMBER, "Accuracy, or macro AUC for a multilabel dataset."),
        StepResult("test_metrics", Kind.METRICS, "Scores on the test split."),
        StepResult("roc_and_confusion", Kind.CLASSIFICATION, "Confusion matrix and ROC curve."),
        StepResult("evaluation_report", Kind.PAGE, "HTML report on the run so far."),
    ),
    help="Evaluate a run's model on the test split, every sample exactly once.",
    subject="run",
)
GATE = Step(
    name="gate",
    image=Image.TRAINER,
    groups=(TrainedDatasetOptions, RunOptions, GateSpec, StoreOptions),
    results=(
        StepResult("decision", Kind.TEXT, "promote or keep; the step fails if the model is rejected."),
        StepResult("to_export", Kind.TEXT, "yes if the model is to be exported, otherwise no."),
        StepResult(
            "gate_metrics", Kind.METRICS, "Scores of the new model and of the champion on the same images."
        ),
        StepResult("gate_report", Kind.PAGE, "HTML report on the run so far, with the verdict."),
    ),
    help="Compare a run's evaluated model with the champion on the same images, and decide whether it is to "
    "replace it. The export promotes it.",
    subject="run",
)
EXPORT = Step(
    name="export",
    image=Image.TRAINER,
    groups=(TrainedDatasetOptions, RunOptions, NetworkOptions, StoreOptions),
    results=(
        StepResult("model", Kind.TEXT, "Folder of the model package."),
        StepResult("model_package", Kind.MODEL, "The model package, as a copy of its signature."),
        StepResult("report", Kind.PAGE, "HTML report on the whole run."),
    ),
    help="Export a run's evaluated model as safetensors and ONNX, and check that both give the same output.",
    subject="run",
)
DEPLOY = Step(
    name="deploy",
    image=Image.LAUNCHER,
    groups=(ModelOptions, DeployOptions, StoreOptions),
    results=(
        StepResult("url", Kind.TEXT, "Address of the service inside the cluster."),
        StepResult("previous", Kind.TEXT, "Package that the service used before; empty for none."),
    ),
    help="Serve a model on the cluster, as a KServe InferenceService or a Deployment, and wait until its "
    "pods answer. If they do not, the previous model is restored and the exit code is 39.",
    subject="model",
)
PREDICT = Step(
    name="predict",
    image=Image.TRAINER,
    groups=(ModelOptions, PredictOptions, StoreOptions),
    results=(
        StepResult("predicted", Kind.TEXT, "Folder with predictions.csv and summary.json."),
        StepResult("prediction_metrics", Kind.METRICS, "Numbers of images, and of unreadable ones."),
        StepResult("predictions_page", Kind.PAGE, "HTML page with shares and the least sure answers."),
    ),
    help="Predict images (files, folders, CSV files of paths or s3:// URIs): a line for each, or, with a "
    "table, a folder of all predictions and a page. Images that cannot be read are listed, the others "
    "answered, and the exit code is 15.",
    subject="model",
)
REGISTER = Step(
    name="register",
    words="models register",
    image=Image.LAUNCHER,
    groups=(ModelOptions, RegisterOptions, StoreOptions),
    results=(
        StepResult("version_id", Kind.TEXT, "ID of the version in the registry."),
        StepResult("registered_version", Kind.MODEL, "The version, as its entry in the registry."),
    ),
    help="Register a version of a model in a Kubeflow Model Registry, with its scores, lineage and run. "
    "Registering again updates the entry.",
    subject="model",
)
PYTORCH_JOB = Step(
    name="pytorch_job",
    words="launch",
    image=Image.LAUNCHER,
    groups=(LaunchOptions, Owner),
    results=(
        StepResult("job", Kind.TEXT, "Name of the job."),
        StepResult("job_metrics", Kind.METRICS, "Numbers from the last progress line (name=value)."),
    ),
    help="Run any image and command as a training job and wait for it. The step succeeds if and only if the "
    "job succeeded and its outputs exist.",
)
LAUNCH_ANYWHERE = replace(PYTORCH_JOB, groups=(LaunchAnywhereOptions, Owner))
"""The same on the command line, where the ranks may be processes of this machine."""
CLEAN_UP = Step(
    name="clean_up",
    words="jobs clean-up",
    image=Image.LAUNCHER,
    groups=(SweepOptions,),
    results=(),
    help="Remove the jobs that a run left on the cluster. Runs last, even if another step failed.",
)
# The steps whose parameters the first step can validate.
LATER = (TUNE, TRAIN, EVALUATE, GATE, EXPORT, DEPLOY, REGISTER)
