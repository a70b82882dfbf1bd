"""Registering: the entry says what the version's files say, and doing it again changes nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from onnx_packages import a_small_package
from registry_server import Registry, a_registry

from ddpipe.__main__ import cli
from ddpipe.errors import CorruptObject, NotRegistered, ParameterError
from ddpipe.model.history import ORIGIN, NamedModel
from ddpipe.serve.registry import PAUSES, Registered, entry_of, register
from ddpipe.storage import open_store

REASON = "accuracy 0.9 is better than 0.8"


@pytest.fixture
def version(tmp_path: Path) -> str:
    """URI of the champion of `toys`."""
    model = NamedModel(open_store(str(tmp_path / "store")), "toys")
    package = a_small_package(str(tmp_path / "package"))
    origin = {"run": "s3://bucket/runs/night-7", "decision": "promote", "reason": REASON}
    made = model.publish(package, origin)
    model.promote(made, against=None, reason=REASON)
    return made.uri


@pytest.fixture
def registry() -> Iterator[Registry]:
    with a_registry() as running:
        yield running


def registered(uri: str, registry: Registry, pauses: list[float] | None = None) -> Registered:
    paused: list[float] = [] if pauses is None else pauses
    return register(entry_of(uri), registry.url, {}, paused.append)


def test_entry_has_scores_lineage_verdict_and_run(version: str, registry: Registry) -> None:
    registered(version, registry)
    (model,), (made,), (artifact,) = map(
        registry.all, ("registered_model", "model_version", "model_artifact")
    )
    assert (model["name"], made["registeredModelId"]) == ("toys", model["id"])
    assert (made["name"], made["description"]) == (version[-12:], REASON)
    properties = {name: next(iter(value.values())) for name, value in made["customProperties"].items()}
    scores = json.loads((Path(version) / "metrics.json").read_text())["scores"]
    assert properties["accuracy"] == scores["accuracy"]["value"]
    assert properties["dataset_id"] == "d" * 64
    assert (properties["verdict"], properties["promotions"]) == ("promote", "1")
    assert artifact["uri"] == version
    assert artifact["modelFormatName"] == "onnx"
    assert (artifact["modelSourceGroup"], artifact["modelSourceId"]) == ("s3://bucket/runs", "night-7")


def test_registering_twice_makes_one_entry_and_keeps_what_others_added(
    version: str, registry: Registry
) -> None:
    first = registered(version, registry)
    (made,) = registry.all("model_version")
    added = {"metadataType": "MetadataStringValue", "string_value": "yes"}
    made["customProperties"]["reviewed"] = added
    made["state"] = "ARCHIVED"
    assert registered(version, registry) == first
    (after,) = registry.all("model_version")
    assert after["customProperties"]["reviewed"]["string_value"] == "yes"
    assert after["state"] == "ARCHIVED"
    assert len(registry.all("model_artifact")) == len(registry.all("registered_model")) == 1


def test_registration_that_ended_half_way_is_completed(version: str, registry: Registry) -> None:
    registered(version, registry)
    registry.objects["model_artifact"].clear()
    registered(version, registry)
    assert [one["uri"] for one in registry.all("model_artifact")] == [version]


@pytest.mark.parametrize("status", [503, 409, 400])
def test_registry_that_is_busy_is_tried_again(version: str, registry: Registry, status: int) -> None:
    registry.failures = [(status, '{"message": "later"}')] * 2
    pauses: list[float] = []
    registered(version, registry, pauses)
    assert pauses == list(PAUSES[:2])


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        ((403, '{"message": "no rights"}'), "403 Forbidden.*no rights"),
        ((503, '{"message": "away"}'), "503 Service Unavailable"),
        ((200, "<html>a page</html>"), "html"),
        ((200, '{"name": 7}'), "not a model registry's"),
    ],
)
def test_what_the_registry_answers_is_reported(
    version: str, registry: Registry, answer: tuple[int, str], seen: str
) -> None:
    registry.failures = [answer] * (len(PAUSES) + 1)
    with pytest.raises(NotRegistered, match=seen) as failed:
        registered(version, registry)
    assert "The model itself stands" in failed.value.do
    assert f"ddpipe models register {version} --registry {registry.url}" in failed.value.do


def test_registry_that_is_away_fails_after_bounded_attempts(version: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    pauses: list[float] = []
    with pytest.raises(NotRegistered, match="does not answer"):
        register(entry_of(version), url, {}, pauses.append)
    assert pauses == list(PAUSES)


def test_a_missing_token_is_named(version: str, tmp_path: Path) -> None:
    environment = {"KF_PIPELINES_SA_TOKEN_PATH": str(tmp_path / "missing")}
    with pytest.raises(ParameterError, match=r"KF_PIPELINES_SA_TOKEN_PATH=.*missing.*cannot be read"):
        register(entry_of(version), "https://127.0.0.1:1", environment)


def test_token_is_not_sent_without_encryption(version: str, registry: Registry, tmp_path: Path) -> None:
    """The file is not even read."""
    environment = {"KF_PIPELINES_SA_TOKEN_PATH": str(tmp_path / "missing")}
    assert register(entry_of(version), registry.url, environment, print).model == "toys"


def test_package_that_is_no_version_is_rejected(tmp_path: Path) -> None:
    a_small_package(str(tmp_path / "package"))
    with pytest.raises(ParameterError, match="it is no version of a model"):
        entry_of(str(tmp_path / "package"))


def test_version_whose_origin_is_damaged_is_rejected(version: str) -> None:
    (Path(version) / ORIGIN).write_text("[]")
    with pytest.raises(CorruptObject, match="not a JSON object"):
        entry_of(version)


def test_command_takes_the_name_of_a_champion(version: str, registry: Registry, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    wanted = ["models", "register", "toys@champion", "--store", store, "--registry", registry.url, "--json"]
    result = CliRunner().invoke(cli, wanted)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["uri"] == version
    outputs = {"version_id": tmp_path / "id", "registered_version": tmp_path / "entry"}
    writing = [part for name, path in outputs.items() for part in ("--write", name, str(path))]
    by_engine = ["models", "register", "--model", version, "--registry", registry.url, *writing]
    assert CliRunner().invoke(cli, by_engine).exit_code == 0
    (made,) = registry.all("model_version")
    assert outputs["version_id"].read_text() == made["id"]
    assert json.loads(outputs["registered_version"].read_text())["uri"] == version


def test_command_lists_all_that_is_missing_or_wrong() -> None:
    result = CliRunner().invoke(cli, ["models", "register", "--registry", "minio:9000"])
    assert "--model is missing" in result.stderr
    assert "--registry is 'minio:9000', not an http:// or https:// URL" in result.stderr
