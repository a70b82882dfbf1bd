"""The steps of a run, recorded: what every entry point (command line, engine, notebook) calls.

    prepare ──▶ train ──▶ evaluate (──▶ gate) ──▶ export

Each function runs one step, records its time and outcome in the run's folder, and returns the step's result.
Steps are imported where they are called: launching needs neither torch nor the time to import it.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpipe.errors import GateFailed, ParameterError, ReplicaFailed
from ddpipe.jobs import LOCAL
from ddpipe.model.training_record import CHOICE, MEMORY, METRICS, RECORD, parts_of, training_record
from ddpipe.parameters import AUTO
from ddpipe.runs import Run
from ddpipe.steps import TrainOptions
from ddpipe.storage import exists, open_store, write_uri
from ddpipe.tracker import LONG, tracked

if TYPE_CHECKING:
    from ddpipe.data.manifest import DatasetManifest
    from ddpipe.evaluate.spec import EvaluateSpec, GateSpec
    from ddpipe.jobs.job import Owner
    from ddpipe.jobs.options import JobOptions
    from ddpipe.launching.launcher import Outcome
    from ddpipe.model.evaluation import Evaluation
    from ddpipe.model.package import ModelPackage
    from ddpipe.model.verdict import Verdict
    from ddpipe.prepare.prepare import Prepared
    from ddpipe.prepare.sharing import Helpers
    from ddpipe.prepare.spec import PrepareSpec
    from ddpipe.steps import EncodeOptions
    from ddpipe.train.recipe import Recipe

_log = logging.getLogger(__name__)


def helpers(options: EncodeOptions) -> Helpers | None:
    """The pods that encode for a prepare; None if it works alone."""
    # SIGTERM deletes their job and ends this process.
    if not options.encode_nodes:
        return None
    from ddpipe.prepare.sharing import Helpers

    return Helpers(options.encode_nodes, partial(_encode, options.job))


def _encode(options: JobOptions, folder: str, sha256: str, shares: int) -> None:
    """Run a job in which pod K encodes share K; a retry of the step adopts it."""
    from ddpipe.jobs.job import Owner

    owner = Owner(pipeline="prepare", run_id=sha256[:16], step="encode")
    command = ("python", "-m", "ddpipe.prepare.sharing", folder, sha256)
    _run_job(replace(options, nodes=shares), owner=owner, command=command)


def _run_job(options: JobOptions, **own: Any) -> Outcome:
    from ddpipe.jobs.job import TrainingJob
    from ddpipe.kube.api import connect
    from ddpipe.launching.launcher import launch

    cluster = connect()
    job = TrainingJob(namespace=cluster.namespace, **options.to_dict(), **own)
    return launch(job, cluster, exists=exists, is_process=True)


def prepare(run: Run, spec: PrepareSpec, helpers: Helpers | None = None) -> Prepared:
    """Turn raw data into a dataset version, unless that exists already, and write a report on it."""
    with run.step("prepare") as facts:
        from ddpipe.prepare.checks import refuse_results_inside
        from ddpipe.prepare.prepare import prepare as step

        facts.update(run.facts("prepare"))
        spec = spec.validated().with_detected_source()
        refuse_results_inside(spec, run.uri)
        prepared = step(spec, helpers)
        _use(run, facts, prepared.manifest_uri, prepared.manifest, reused=prepared.reused)
        facts.update(encoded=prepared.encoded)
    return prepared


def use(run: Run, dataset: str) -> None:
    """Use an existing dataset version instead of preparing one, and write a report on it."""
    with run.step("prepare") as facts:
        from ddpipe.data.manifest import load_manifest

        facts.update(run.facts("prepare"))
        _use(run, facts, dataset, load_manifest(dataset), reused=True)


def _use(run: Run, facts: dict[str, Any], uri: str, manifest: DatasetManifest, *, reused: bool) -> None:
    """Record the dataset version of the run; its facts so far name the one of earlier attempts."""
    from ddpipe.data.manifest import store_of
    from ddpipe.prepare.report import data_report_html

    before = facts.get("dataset_id")
    # Another version is rejected once training has begun, before anything is overwritten.
    if before not in (None, manifest.dataset_id) and exists(f"{run.training}/"):
        raise ParameterError(
            what="the run cannot be resumed",
            which=run.uri,
            seen=f"it was trained on another dataset version: {before}; this is {manifest.dataset_id}",
            do="Give the new run another name with `run`, or delete the folder to start again.",
        )
    write_uri(run.data_report, data_report_html(manifest, store_of(uri)).encode())
    facts.update(dataset=uri, dataset_id=manifest.dataset_id, reused=reused, skipped=len(manifest.skipped))


def train(
    run: Run, dataset: str, recipe: Recipe, options: TrainOptions, owner: Owner, *, reuse: bool = False
) -> dict[str, Any]:
    """Train on this machine or in a job on the cluster, from the run's last checkpoint if there is one."""
    # With a job, SIGTERM deletes the job and ends this process.
    with run.step("train") as facts:
        from ddpipe.reuse import reuse_keys, unchanged_since, with_latest_weights

        keys = reuse_keys(dataset, recipe, options)
        has_begun = exists(f"{run.training}/")
        if reuse and not has_begun and (found := unchanged_since(run, keys)):
            _log.info("nothing changed since run %s: its trained model is reused", found)
            facts.update(same_as=found.run.name, since=str(found))
            record = training_record(found.run.training)
        else:
            recipe = with_latest_weights(run, recipe, keys, dataset)
            measured = (run.training, METRICS) if has_begun else (run.folder, keys.latest)
            while True:
                try:
                    facts.update(_trained(run, dataset, recipe, options, owner, measured))
                    break
                except ReplicaFailed as error:
                    _take_in_parts(run, recipe, options, error)  # raises the error the second time
            facts.update(notes=keys.keys)
            record = training_record(run.training)
        facts.update(record["final"])
    return record


def _trained(
    run: Run, dataset: str, recipe: Recipe, options: TrainOptions, owner: Owner, measured: tuple[str, str]
) -> dict[str, object]:
    """Train, or resume; facts about the processes. `measured` is where the memory is that it took before."""
    if options.backend == LOCAL:
        return {"processes": _train_here(run, dataset, recipe, options)}
    from ddpipe.jobs.job import training_command
    from ddpipe.processes.packing import packed_functions
    from ddpipe.reuse import peak_memory
    from ddpipe.train.recipe import own_functions

    if call := packed_functions(own_functions(recipe.to_dict()).values()):
        write_uri(own := f"{run.uri}/own/{call.sha256}", call.content)
    launched = _run_job(
        options,
        owner=owner if owner.run_id else replace(owner, run_id=run.name),
        command=training_command(dataset, run.training, recipe.to_json()),
        outputs=(f"{run.training}/training.json",),
        unhashed=[{"name": "DDPIPE_OWN", "value": own}] if call else [],
        peak_memory=peak_memory(*measured),
    )
    return {"job": launched.name, "nodes": launched.nodes}


def _take_in_parts(run: Run, recipe: Recipe, options: TrainOptions, error: ReplicaFailed) -> None:
    """After too little memory, have each batch taken in two parts; raise the error if that was done."""
    store = open_store(run.training)
    if not error.lacked_memory or not store.exists(CHOICE):
        raise error
    chosen = json.loads(store.read(CHOICE))["values"].get("batch_size", recipe.batch_size)
    share = chosen / options.processes_per_pod / (1 if options.backend == LOCAL else options.nodes)
    if parts_of(store) > 1:
        do = f"Resume it with more memory, or start a new run with `batch_size` {max(1, chosen // 4)}."
        seen = (
            f"{error.seen}\nIn parts of {math.ceil(share / 2)} images for each process it is still too much"
        )
        raise ReplicaFailed(what=error.what, which=error.which, seen=seen, do=do) from error
    store.write(MEMORY, json.dumps({"parts": 2}).encode())
    _log.warning(
        "%s: out of memory with %d images for each process; training starts once more, in two parts for each "
        "batch of %d, which is as large as before",
        error.which,
        math.ceil(share),
        chosen,
    )


def _train_here(run: Run, dataset: str, recipe: Recipe, options: TrainOptions) -> int:
    """Train on this machine; the number of processes, of the last ones if that was to be found."""
    from ddpipe.jobs.options import Restart
    from ddpipe.processes.local import run_local
    from ddpipe.processes.machine import cpus
    from ddpipe.processes.progress import followed
    from ddpipe.train.paces import next_number, paces_of

    store, finds = open_store(run.training), options.finds_processes
    arguments = ["--dataset", dataset, "--output", run.training, "--recipe", recipe.to_json()]
    restarts = options.max_restarts if options.restart != Restart.NEVER else 0
    if finds:
        arguments.append("--find-processes")
    with followed(lambda: store.read("progress.txt")):
        while True:
            number = next_number(paces_of(store), cpus()) if finds else options.processes_per_pod
            run_local("ddpipe.train", arguments, number, restarts)
            if not finds or store.exists(RECORD):
                return number


def dataset_of(run: Run, dataset: str, store: str) -> str:
    """The URI of the dataset version of a step that follows training: by default that of the training."""
    from ddpipe.data.versions import address

    if dataset:
        return address(dataset, store)
    if not run.has_begun:
        raise ParameterError(
            what="there is no such run",
            which=run.uri,
            seen="the folder is empty, or does not exist",
            do="Check `run` and `runs`; `ddpipe runs ls` lists the runs of a folder.",
        )
    return str(training_record(run.origin("train").training)["dataset"])


def evaluate(run: Run, dataset: str, spec: EvaluateSpec, network: str = "") -> Evaluation:
    """Evaluate the run's model on the test split, and write the report on the run so far."""
    trained = run.origin("train")
    with run.step("evaluate") as facts:
        from ddpipe.model.evaluation import load_evaluation

        earlier = load_evaluation(trained.evaluation) if trained != run else None
        is_same = earlier is not None and spec.test_time_views in {AUTO, earlier.subject.views}
        if earlier and is_same:
            evaluation = earlier
            facts.update(same_as=trained.name)
        else:
            from ddpipe.evaluate.evaluate import evaluate as step

            evaluation = step(trained.training, dataset, run.evaluation, spec, network)
        facts.update(evaluation.headline())
    _publish_report(run)
    return evaluation


def gate(run: Run, dataset: str, spec: GateSpec) -> Verdict:
    """Decide whether the run's model is to replace the champion, and write the report on the run so far."""
    evaluated = run.origin("evaluate")
    with run.step("gate") as facts:
        from ddpipe.evaluate.gate import gate as step

        verdict = step(run.origin("train").training, dataset, evaluated.evaluation, run.gate, spec)
        facts.update(
            model=verdict.model,
            decision=verdict.decision,
            reason=verdict.reason,
            champion=verdict.champion,
            export=verdict.promoted,
        )
        _publish_report(run, gated=True)
        if verdict.decision == "fail":
            raise GateFailed(
                what="the gate rejects the model",
                which=f"{verdict.model}, from run {run.uri}",
                seen=verdict.reason,
                do=f"Read {run.report}; train a better model, or change the requirements of the gate.",
            )
    return verdict


def export(run: Run, dataset: str, network: str = "") -> ModelPackage:
    """Export the run's evaluated model, write the whole report, and make the run available to later ones."""
    # If the gate decided so, the package becomes a version of the model, and the champion.
    evaluated = run.origin("evaluate")
    with run.step("export") as facts:
        if evaluated != run:
            from ddpipe.model.package import load_package

            package = load_package(evaluated.model)
            facts.update(same_as=evaluated.name)
        else:
            from ddpipe.export.export import export as step

            package = step(run.origin("train").training, dataset, run.evaluation, run.model, network)
        facts.update(model=evaluated.model, model_id=package.model_id)
        if run.facts("gate"):
            facts.update(_promoted(run, dataset, package))
    _publish_report(run, exported=True, gated=bool(run.facts("gate")))
    if keys := run.facts("train").get("notes"):
        _offer(run, keys, package)
    return package


def _promoted(run: Run, dataset: str, package: ModelPackage) -> dict[str, Any]:
    """Make the package a version of its model and, if the gate says so, the champion."""
    from ddpipe.data.manifest import store_of
    from ddpipe.model.history import NamedModel
    from ddpipe.model.verdict import load_verdict

    verdict = load_verdict(run.gate)
    model = NamedModel(store_of(dataset), verdict.model)
    version = model.publish(package, {"run": run.uri, "decision": verdict.decision, "reason": verdict.reason})
    if verdict.promoted:
        model.promote(version, against=verdict.champion or None, reason=verdict.reason, run=run.uri)
        _log.info("%s@%s is the champion: %s", model.name, version.version, verdict.reason)
    return {"version": version.version, "version_uri": version.uri, "promoted": verdict.promoted}


def _offer(run: Run, keys: list[str], package: ModelPackage) -> None:
    """Record the run, whose results are all its own, for later runs."""
    from ddpipe.model.evaluation import FORMAT as EVALUATION
    from ddpipe.model.package import FORMAT as PACKAGE
    from ddpipe.reuse import record
    from ddpipe.storage.sealed import sha256

    store = open_store(run.uri)
    checkpoint = training_record(run.training)["checkpoint"]
    sealed = {"evaluation": EVALUATION.open(run.evaluation).sha256, "model": package.folder.sha256}
    small = ("training/training.json", f"evaluation/{EVALUATION.seal}", f"model/{PACKAGE.seal}")
    files = {f"{place}/{key}": value for place, hashes in sealed.items() for key, value in hashes.items()}
    files |= {key: sha256(store.read(key)) for key in small}
    files[f"training/{checkpoint['file']}"] = checkpoint["sha256"]
    record(run, keys, files)


def _publish_report(run: Run, *, exported: bool = False, gated: bool = False) -> None:
    from ddpipe.evaluate.report import gather, render
    from ddpipe.model.package import FORMAT as PACKAGE

    seconds = {record["step"]: record["seconds"] for record in run.steps()}
    package = run.origin("export").model if exported else None
    record = gather(
        run.name,
        run.origin("train").training,
        run.origin("evaluate").evaluation,
        package,
        seconds,
        since=run.facts("train").get("since", ""),
        gate_uri=run.gate if gated else None,
        data_page=run.data_report.rpartition("/")[2] if "://" not in run.uri else "",
    )
    page = render(record).encode()
    write_uri(run.report, page)
    with tracked(run.uri, LONG) as tracker:
        tracker.files("", ["report.html"], lambda _: page)
        if package:
            tracker.files("model", [*PACKAGE.open(package).sha256, PACKAGE.seal], open_store(package).read)
