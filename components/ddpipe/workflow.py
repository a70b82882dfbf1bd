"""The four steps of a run, recorded: what every door (CLI, KFP, notebook) calls.

    prepare ──▶ train ──▶ evaluate ──▶ export

Each function does one step, notes time and outcome in the run's folder, and returns what the step returns.
Steps are imported where they are called: whoever launches must not wait for torch, nor have it.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from ddpipe.runs import Run
from ddpipe.storage import exists, open_store, write_uri

if TYPE_CHECKING:
    from ddpipe.launch.job import JobOptions, Owner
    from ddpipe.model.evaluation import Evaluation
    from ddpipe.model.package import ModelPackage
    from ddpipe.prepare.prepare import Prepared
    from ddpipe.prepare.spec import PrepareSpec
    from ddpipe.train.recipe import Recipe

_log = logging.getLogger(__name__)


def prepare(run: Run, spec: PrepareSpec) -> Prepared:
    """Bring raw data into a dataset version, unless it is there unchanged, and write a page about it."""
    from ddpipe.data.manifest import store_of
    from ddpipe.prepare.prepare import prepare as step
    from ddpipe.prepare.report import data_report_html

    with run.step("prepare") as facts:
        prepared = step(spec)
        page = data_report_html(prepared.manifest, store_of(prepared.manifest_uri))
        write_uri(run.data_report, page.encode())
        facts.update(
            dataset=prepared.manifest_uri,
            dataset_id=prepared.dataset_id,
            reused=prepared.reused,
            skipped=len(prepared.skipped),
        )
    return prepared


def train(run: Run, dataset: str, recipe: Recipe, processes: int = 1) -> dict[str, Any]:
    """Train with `processes` processes on this machine, going on from the run's last checkpoint.

    Returns:
        What the training wrote about itself (training.json).
    """
    from ddpipe.launch.local import run_local

    arguments = ["--dataset", dataset, "--output", run.training, "--recipe", recipe.to_json()]
    with run.step("train") as facts:
        run_local("ddpipe.train", arguments, processes)
        record = training_record(run)
        facts.update(processes=processes, **record["final"])
    return record


def launch(
    run: Run,
    dataset: str,
    recipe: Recipe,
    *,
    owner: Owner,
    options: JobOptions,
) -> dict[str, Any]:
    """Train by a job on the cluster and wait for it; SIGTERM deletes the job and ends this process.

    Args:
        run: Where the job's results go.
        dataset: URI of the dataset version's manifest.
        recipe: How to train.
        owner: The step of the pipeline run that owns the job.
        options: What was chosen about the job.

    Returns:
        What the training wrote about itself (training.json).
    """
    from ddpipe.launch.cluster import connect
    from ddpipe.launch.job import TrainingJob, training_command
    from ddpipe.launch.launcher import launch as step

    with run.step("train") as facts:
        cluster = connect()
        job = TrainingJob(
            owner=owner,
            namespace=cluster.namespace,
            command=training_command(dataset, run.training, recipe.to_json()),
            outputs=(f"{run.training}/training.json",),
            **options.to_dict(),
        )
        outcome = step(job, cluster, exists=exists, is_process=True)
        record = training_record(run)
        facts.update(job=outcome.name, nodes=options.nodes, **record["final"])
    return record


def clean_up(pipeline: str, run_id: str) -> list[str]:
    """Remove the jobs of a pipeline run that is over, but those that were to be kept.

    What cannot be removed is logged and no error: it says nothing of how the run itself ended.

    Returns:
        Names of the removed jobs.
    """
    from ddpipe.errors import LaunchError
    from ddpipe.launch.cluster import connect
    from ddpipe.launch.orphans import sweep
    from ddpipe.launch.retrying import answered

    try:
        cluster = connect()
        swept = answered(
            lambda: sweep(cluster, cluster.namespace, pipeline=pipeline, run=run_id, say=_log.warning),
            f"the jobs of namespace {cluster.namespace}",
        )
    except LaunchError as error:
        _log.error("the run's jobs could not be removed: %s", error)
        return []
    return [job.name for job in swept.removed]


def evaluate(run: Run, dataset: str) -> Evaluation:
    """Score the run's model on the test split, and write the report as far as the run has come."""
    from ddpipe.evaluate.evaluate import evaluate as step

    with run.step("evaluate") as facts:
        evaluation = step(run.training, dataset, run.evaluation)
        facts.update(evaluation.headline())
    _publish_report(run)
    return evaluation


def export(run: Run, dataset: str) -> ModelPackage:
    """Export the run's evaluated model, and write the whole report."""
    from ddpipe.export.export import export as step

    with run.step("export") as facts:
        package = step(run.training, dataset, run.evaluation, run.model)
        facts.update(model=run.model, model_id=package.model_id)
    _publish_report(run, exported=True)
    return package


def _publish_report(run: Run, *, exported: bool = False) -> None:
    from ddpipe.evaluate.report import gather, render

    seconds = {record["step"]: record["seconds"] for record in run.steps()}
    record = gather(run.name, run.training, run.evaluation, run.model if exported else None, seconds)
    write_uri(run.report, render(record).encode())


def training_record(run: Run) -> dict[str, Any]:
    """What the finished training of a run wrote about itself (training.json)."""
    record: dict[str, Any] = json.loads(open_store(run.training).read("training.json"))
    return record
