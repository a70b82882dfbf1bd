"""`ddpipe models ls|show|promote|rollback|evaluate|register|rm`: models and their versions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ddpipe.commands import SectionedCommand, json_option, print_result, runs_option, store_option
from ddpipe.commands.results import CommandOutcome, Document
from ddpipe.commands.step import step_command
from ddpipe.data.manifest import SPLITS
from ddpipe.data.versions import address
from ddpipe.errors import ModelError
from ddpipe.model.history import ModelVersion, NamedModel, models
from ddpipe.model.package import ModelPackage, load_package
from ddpipe.serve.naming import package_uri
from ddpipe.serve.settings import RegisterOptions
from ddpipe.steps import REGISTER
from ddpipe.storage import existing_store, open_store, write_uri
from ddpipe.storage.sealed import to_json
from ddpipe.validation import RunSettings

SHOWN = 10  # promotions that are printed; --json has them all


@click.group("models")
def models_command() -> None:
    """List, show, promote, roll back and register the versions of models.

    A version is given as NAME@VERSION (a unique prefix of it is enough), or as NAME for the champion.
    """


@models_command.command("ls")
@click.argument("name", required=False)
@store_option
@json_option
def list_command(name: str | None, store: str) -> None:
    """List the versions of the model NAME, or of all models, the newest last."""
    place = existing_store(store)
    facts, lines = [], []
    for model in [NamedModel(place, name)] if name else models(place):
        champion = model.history().champion
        for version in model.versions():
            is_champion = champion is not None and champion.version == version.version
            scores = _scores(load_package(version.uri))
            facts.append({**_plain(version), "champion": is_champion, "scores": scores})
            first = "".join(f"{key} {value:.4f}  " for key, value in list(scores.items())[:1])
            mark = "  champion" if is_champion else ""
            lines.append(
                f"{version.name}@{version.version}  {version.published:%Y-%m-%d %H:%M}  {first}{version.uri}"
                f"{mark}"
            )
    print_result(
        {"versions": facts},
        "\n".join(lines)
        or f"no versions in {store}: a run with a gate makes them: `ddpipe run photos --gate-model photos`",
    )


@models_command.command("show")
@click.argument("version")
@store_option
@json_option
def show_command(version: str, store: str) -> None:
    """Describe VERSION and the promotions of its model, the newest first."""
    model, found = _found(version, store)
    package, history = load_package(found.uri), model.history()
    shape = " x ".join(map(str, package.signature.shape))
    promotions = [asdict(one) for one in reversed(history.promotions)]
    facts = {
        **_plain(found),
        "champion": history.champion is not None and history.champion.version == found.version,
        "model_id": package.model_id,
        "signature": package.signature.to_dict(),
        "scores": _scores(package),
        "lineage": package.lineage,
        "promotions": promotions,
    }
    lines = [
        f"{found.name}@{found.version}{'  champion' if facts['champion'] else ''}",
        f"published {found.published:%Y-%m-%d %H:%M}, {found.uri}",
        f"{package.signature.architecture}, {len(package.signature.classes)} classes, {shape}",
        *(f"  {name:24} {value:.4f}" for name, value in _scores(package).items()),
        "promotions",
        *(
            f"  {one.at}  {one.action:8}  {one.version}  {one.reason}"
            for one in list(reversed(history.promotions))[:SHOWN]
        ),
    ]
    print_result(facts, "\n".join(lines if promotions else [*lines[:-1], "never promoted"]))


@models_command.command("promote")
@click.argument("version")
@click.option("--reason", default="promoted by hand", help="Why, in a sentence, for the history.")
@store_option
@json_option
def promote_command(version: str, reason: str, store: str) -> None:
    """Make VERSION the champion of its model, without asking the gate."""
    model, found = _found(version, store)
    load_package(found.uri)  # a damaged package must not become the champion
    champion = model.history().champion
    made = model.promote(found, against=champion.version if champion else None, reason=reason)
    print_result({"name": model.name, **asdict(made)}, f"{model.name}@{made.version} is the champion")


@models_command.command("rollback")
@click.argument("name")
@click.option("--reason", default="", help="Why, in a sentence, for the history.")
@store_option
@json_option
def rollback_command(name: str, reason: str, store: str) -> None:
    """Make the previous champion of the model NAME the champion again."""
    made = NamedModel(open_store(store), name).rollback(reason)
    print_result({"name": name, **asdict(made)}, f"{name}@{made.version} is the champion again")


@models_command.command("evaluate", cls=SectionedCommand)
@click.argument("model")
@click.option(
    "--dataset", required=True, help="Dataset version: the URI of its manifest, or its ID in the store."
)
@click.option(
    "--split", default="test", type=click.Choice(SPLITS), help="Part of the dataset version that is scored."
)
@click.option("--output", required=True, help="Folder for the evaluation and its page, evaluation.html.")
@runs_option
@store_option
@json_option
def evaluate_command(model: str, dataset: str, split: str, output: str, runs: str, store: str) -> None:
    """Score MODEL on any split of any dataset version, with a page.

    MODEL is a package: a folder, s3:// URI, name of a run or NAME@VERSION. The dataset version has to have
    the same classes, and images of the same shape.
    """
    from ddpipe.evaluate.evaluate import assess
    from ddpipe.evaluate.report import gather_evaluation, render

    evaluation = assess(package_uri(model, runs, store), address(dataset, store), output, split)
    page = f"{evaluation.folder.store.uri}/evaluation.html"
    write_uri(page, render(gather_evaluation(output)).encode())
    scores = evaluation.headline()
    lines = [f"{name:24} {value:.4f}" for name, value in scores.items()]
    print_result({"evaluation": output, "page": page, **scores}, "\n".join([*lines, page]))


@step_command(REGISTER)
def register_command(given: RunSettings) -> CommandOutcome:
    """Run the step; its declaration describes it."""
    from ddpipe.serve.registry import entry_of, register

    entry = entry_of(package_uri(given["model"], given["runs"], given["store"]))
    found = register(entry, given.of(RegisterOptions).registry)
    return CommandOutcome(
        asdict(found),
        f"{found.model}@{found.version} is registered in {found.registry} as version {found.version_id} of "
        f"model {found.model_id}",
        values={"version_id": found.version_id},
        shown={
            "registered_version": Document(to_json(asdict(entry)), {**entry.properties, "uri": entry.uri})
        },
    )


models_command.add_command(register_command)


@models_command.command("rm")
@click.argument("version")
@store_option
@json_option
def remove_command(version: str, store: str) -> None:
    """Remove VERSION, which must not be the champion, with its package."""
    model, found = _found(version, store)
    if "@" not in version:
        raise ModelError(
            what="a version cannot be removed",
            which=version,
            seen="it names a model, not a version",
            do="Give NAME@VERSION; see `ddpipe models ls`.",
        )
    model.remove(found)
    print_result({"removed": found.uri}, f"removed {found.uri}")


def _found(version: str, store: str) -> tuple[NamedModel, ModelVersion]:
    name, _, wanted = version.partition("@")
    model = NamedModel(open_store(store), name)
    return model, model.find(wanted or "champion")


def _plain(version: ModelVersion) -> dict[str, Any]:
    return asdict(version) | {"published": version.published.isoformat()}


def _scores(package: ModelPackage) -> dict[str, float]:
    return {name: score.value for name, score in package.metrics.scores.items()}
