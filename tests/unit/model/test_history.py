"""The versions of a model, and which of them is the champion."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from model_packages import a_package
from promotions import a_version, one_wins
from samples import a_manifest

from ddpipe.__main__ import cli
from ddpipe.errors import DatasetError, ModelError, ParameterError, PromotionLost
from ddpipe.model.history import ModelVersion, NamedModel, address, leftovers, needed
from ddpipe.model.package import FORMAT, load_package
from ddpipe.storage import open_store, write_uri
from ddpipe.storage.files import FileStore
from ddpipe.storage.s3 import S3Store


def _model(store_uri: str) -> NamedModel:
    return NamedModel(open_store(store_uri), "toys")


def _promoted(model: NamedModel, *versions: ModelVersion) -> None:
    for version in versions:
        champion = model.history().champion
        model.promote(version, against=champion.version if champion else None, reason="better")


def _facts(*arguments: str) -> Any:
    result = CliRunner().invoke(cli, ["models", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_version_is_a_whole_package(store_uri: str, tmp_path: Path) -> None:
    model = _model(store_uri)
    version = a_version(model, tmp_path)
    assert load_package(version.uri).signature.classes == ("ball", "kite")
    assert version.uri == f"{model.store.uri}/models/toys/versions/{version.version}"


def test_the_same_package_is_the_same_version(store_uri: str, tmp_path: Path) -> None:
    model = _model(store_uri)
    first = a_version(model, tmp_path)
    again = model.publish(load_package(str(tmp_path / "ball-kite")), {"run": "runs/second"})
    assert again == first
    assert json.loads(model.folder.read(f"versions/{first.version}/version.json"))["run"] == "runs/first"


def test_a_changed_package_does_not_become_a_version(store_uri: str, tmp_path: Path) -> None:
    package = load_package(a_package(str(tmp_path / "model"), a_manifest()))
    (tmp_path / "model" / "model.onnx").write_bytes(b"another")
    model = _model(store_uri)
    with pytest.raises(Exception, match="changed after it was published"):
        model.publish(package, {})
    assert model.versions() == []


def test_a_promotion_is_kept_in_the_history(store_uri: str, tmp_path: Path) -> None:
    model = _model(store_uri)
    first, second = a_version(model, tmp_path), a_version(model, tmp_path, ("a", "b"))
    _promoted(model, first, second)
    assert [one.version for one in model.history().promotions] == [first.version, second.version]
    assert address("toys", store_uri) == address("toys@champion", store_uri) == second.uri
    assert address(f"toys@{first.version[:6]}", store_uri) == first.uri
    assert address("s3://bucket/model", store_uri) is None


def test_a_promotion_against_a_former_champion_is_lost(store_uri: str, tmp_path: Path) -> None:
    model = _model(store_uri)
    first, second = a_version(model, tmp_path), a_version(model, tmp_path, ("a", "b"))
    _promoted(model, first)
    with pytest.raises(PromotionLost, match=first.version):
        model.promote(second, against=None, reason="was compared with none")
    model.promote(first, against=None, reason="a repeated step")  # is the champion already
    assert [one.version for one in model.history().promotions] == [first.version]


def test_one_of_two_concurrent_promotions_wins(store_uri: str, tmp_path: Path) -> None:
    one_wins(_model(store_uri), tmp_path)


def test_a_rollback_restores_the_champion_before(store_uri: str, tmp_path: Path) -> None:
    model = _model(store_uri)
    versions = [a_version(model, tmp_path, (name, "b")) for name in ("a", "c", "d")]
    _promoted(model, *versions)
    assert model.rollback().version == versions[1].version
    assert model.rollback().version == versions[0].version
    with pytest.raises(ModelError, match="first champion"):
        model.rollback()
    assert len(model.history().promotions) == 5
    _promoted(model, versions[2])
    assert model.rollback().version == versions[0].version


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"schema": 0}', b'{"schema": 1, "promotions": [{"version": "../x"}]}']
)
def test_a_damaged_history_is_an_error(tmp_path: Path, content: bytes) -> None:
    model = _model(str(tmp_path))
    model.folder.write("champion.json", content)
    with pytest.raises(ModelError, match="malformed"):
        model.history()


def test_a_vanished_champion_is_named(store_uri: str, tmp_path: Path) -> None:
    model = _model(store_uri)
    version = a_version(model, tmp_path)
    _promoted(model, version)
    model.folder.delete(f"versions/{version.version}/package.json")
    with pytest.raises(ModelError, match="no version of a model matches"):
        address("toys", store_uri)


@pytest.mark.parametrize("name", ["", "../up", "a/b", "Ä", "x" * 64])
def test_a_name_that_leads_elsewhere_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ParameterError, match="name of the model"):
        NamedModel(open_store(str(tmp_path)), name)


def test_files_of_half_published_versions_are_garbage(store_uri: str, tmp_path: Path) -> None:
    model = _model(store_uri)
    a_version(model, tmp_path)
    model.folder.write("versions/0123456789ab/model.onnx", b"half")
    later = datetime.now(UTC) + timedelta(hours=2)
    found = [info.key for info in leftovers(model.store, timedelta(hours=1), later)]
    assert found == ["models/toys/versions/0123456789ab/model.onnx"]
    assert list(leftovers(model.store, timedelta(hours=3), later)) == []


def test_a_dataset_that_a_version_needs_is_kept(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    version = a_version(_model(store), tmp_path)
    assert needed(open_store(store)) == {"d" * 64: [f"toys@{version.version}"]}
    uri = f"{store}/datasets/toys/{'d' * 64}/manifest.json"
    write_uri(uri, b"{}")
    result = CliRunner().invoke(cli, ["data", "rm", uri])
    assert result.exit_code == DatasetError.exit_code
    assert f"toys@{version.version}" in result.stderr


def test_the_commands_list_promote_and_remove(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    model = _model(store)
    first, second = a_version(model, tmp_path), a_version(model, tmp_path, ("a", "b"))
    assert _facts("promote", f"toys@{first.version}", "--store", store)["action"] == "promote"
    assert _facts("promote", f"toys@{second.version}", "--store", store, "--reason", "x")["reason"] == "x"
    listed = _facts("ls", "--store", store)["versions"]
    assert {one["version"]: one["champion"] for one in listed} == {first.version: False, second.version: True}
    assert _facts("show", "toys", "--store", store)["promotions"][0]["version"] == second.version
    assert _facts("rollback", "toys", "--store", store)["version"] == first.version
    assert _facts("rm", f"toys@{second.version}", "--store", store)["removed"] == second.uri
    refused = CliRunner().invoke(cli, ["models", "rm", f"toys@{first.version}", "--store", store])
    assert refused.exit_code == ModelError.exit_code


def _beside(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """The next swap of a store comes second: `act` is done before it."""
    for kind in (FileStore, S3Store):
        swap = kind.swap

        def second(*given: Any, swap: Callable[..., bool] = swap) -> bool:
            monkeypatch.undo()
            act()
            return swap(*given)

        monkeypatch.setattr(kind, "swap", second)


def test_a_version_that_is_promoted_meanwhile_is_not_removed(
    store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(store_uri)
    first, second = a_version(model, tmp_path), a_version(model, tmp_path, ("a", "b"))
    _promoted(model, first)
    with monkeypatch.context() as patched:
        _beside(patched, lambda: _promoted(model, second))
        with pytest.raises(PromotionLost, match="not removed"):
            model.remove(second)
    assert load_package(model.find("champion").uri)


def test_a_version_that_is_removed_meanwhile_is_not_promoted(
    store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(store_uri)
    first, second = a_version(model, tmp_path), a_version(model, tmp_path, ("a", "b"))
    _promoted(model, first)
    with monkeypatch.context() as patched:
        _beside(patched, lambda: model.remove(second))
        with pytest.raises(PromotionLost):
            _promoted(model, second)
    assert model.find("champion").version == first.version
    again = a_version(model, tmp_path, ("a", "b"))
    assert again.version == second.version
    _promoted(model, again)
    assert load_package(model.find("champion").uri)


def test_a_removal_that_was_killed_keeps_its_version_from_being_promoted(
    store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(store_uri)
    version = a_version(model, tmp_path)
    delete = type(model.store).delete

    def killed(store: Any, key: str) -> None:
        if key == FORMAT.seal:
            raise KeyboardInterrupt
        delete(store, key)

    with monkeypatch.context() as patched:
        patched.setattr(type(model.store), "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            model.remove(version)
    with pytest.raises(ModelError, match="models rm"):
        _promoted(model, model.find(version.version))
    model.remove(version)
    assert model.versions() == []


def test_models_are_listed_without_torch(tmp_path: Path) -> None:
    code = "import sys; import ddpipe.commands.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
