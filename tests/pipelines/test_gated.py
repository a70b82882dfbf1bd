"""Runs with a gate, as a user starts them: the first is promoted, a better one, too, a worse one is not."""

import json
from pathlib import Path
from typing import Any

import commands_here
import pytest

from ddpipe.errors import GateFailed
from ddpipe.model.history import NamedModel
from ddpipe.storage import open_store

pytestmark = pytest.mark.slow


def ddpipe(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = commands_here.ddpipe(folder, *arguments, "--json")
    return done.exit_code, json.loads(done.stdout)


def gated(folder: Path, name: str, *options: str) -> tuple[int, dict[str, Any]]:
    return ddpipe(folder, "run", "--run", name, "--gate-model", "digits", *options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("gated")
    return folder, {
        "short": gated(folder, "short", "--epochs", "1"),
        "long": gated(folder, "long", "--epochs", "8"),
        "worse": gated(folder, "worse", "--epochs", "2", "--seed", "3"),
        "rejected": gated(folder, "rejected", "--epochs", "1", "--gate-minimum", "0.999"),
    }


def page(folder: Path, name: str) -> str:
    return " ".join((folder / "runs" / name / "report.html").read_text().split())


def test_a_first_and_a_better_model_are_promoted(runs: Any) -> None:
    folder, done = runs
    assert [done[name][1]["gate"]["decision"] for name in ("short", "long")] == ["promote", "promote"]
    history = NamedModel(open_store(str(folder / "store")), "digits").history()
    assert [Path(one.run).name for one in history.promotions] == ["short", "long"]
    assert "This model replaces the champion:" in page(folder, "long")
    assert done["long"][1]["gate"]["champion"] == history.promotions[0].version


def test_a_worse_model_is_kept_out_and_not_exported(runs: Any) -> None:
    folder, done = runs
    code, summary = done["worse"]
    assert (code, summary["gate"]["decision"], summary["model"]) == (0, "keep", "")
    assert not (folder / "runs/worse/model").exists()
    assert "The champion stays:" in page(folder, "worse")
    assert "only the champion about" in page(folder, "worse")


def test_a_rejected_model_ends_the_run_with_its_reason(runs: Any) -> None:
    folder, done = runs
    code, error = done["rejected"]
    assert (code, error["error"]) == (GateFailed.exit_code, "GateFailed")
    assert "at least 0.999 is required" in error["seen"]
    assert "This model is rejected:" in page(folder, "rejected")


def test_a_promotion_that_came_too_late_is_an_error(runs: Any) -> None:
    """A run was kept out; the gate now lets it in, and before it is exported somebody else promotes."""
    folder, _ = runs
    model = NamedModel(open_store(str(folder / "store")), "digits")
    dataset = json.loads((folder / "runs/worse/steps/prepare.json").read_text())["facts"]["dataset"]
    gate = ("gate", "--run", "worse", "--dataset", dataset, "--gate-model", "digits", "--gate-gain", "-1")
    assert ddpipe(folder, *gate)[1]["decision"] == "promote"
    first, *_, last = model.history().promotions
    model.promote(model.find(first.version), against=last.version, reason="meanwhile")
    code, error = ddpipe(folder, "export", "--run", "worse", "--dataset", dataset)
    assert (code, error["error"]) == (37, "PromotionLost")
    assert ddpipe(folder, *gate)[0] == 0
