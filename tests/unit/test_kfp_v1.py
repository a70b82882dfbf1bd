"""What KFP 1.x is shown is what its UI and API server accept (read from their sources at 1.5 and 1.7)."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ddpipe.__main__ import cli
from ddpipe.commands import kfp_v1
from ddpipe.errors import NotWritable
from ddpipe.model.evaluation import TITLES

METRIC_NAME = r"[a-zA-Z]([-_a-zA-Z0-9]{0,62}[a-zA-Z0-9])?"


def rows_of(view: kfp_v1.View) -> list[list[str]]:
    return list(csv.reader(view["source"].splitlines()))


def test_all_scores_have_names_that_the_engine_stores() -> None:
    shown = json.loads(kfp_v1.metrics(dict.fromkeys(TITLES, 0.5)))["metrics"]
    assert [one["name"] for one in shown] == list(TITLES)
    assert all(re.fullmatch(METRIC_NAME, one["name"]) for one in shown)


def test_no_more_metrics_are_sent_than_the_engine_takes() -> None:
    assert len(json.loads(kfp_v1.metrics({f"m{n}": n for n in range(60)}))["metrics"]) == 50


def test_a_confusion_matrix_has_a_row_per_pair_of_classes_whatever_their_names() -> None:
    classes = ("cat, big", 'the "dog"')
    view = kfp_v1.confusion_matrix(classes, ((1, 2), (3, 4)))
    assert rows_of(view) == [
        ["cat, big", "cat, big", "1"],
        ["cat, big", 'the "dog"', "2"],
        ['the "dog"', "cat, big", "3"],
        ['the "dog"', 'the "dog"', "4"],
    ]
    assert view["labels"] == list(classes)
    assert [column["name"] for column in view["schema"]] == ["target", "predicted", "count"]


def test_a_roc_curve_has_the_columns_that_the_ui_looks_for() -> None:
    view = kfp_v1.roc((0, 1), (0.5, 1), (0.9, 0.1))
    assert [column["name"] for column in view["schema"]] == ["fpr", "tpr", "thresholds"]
    assert rows_of(view) == [["0", "0.5", "0.9"], ["1", "1", "0.1"]]


def test_a_step_writes_its_results_where_the_engine_wants_them(tmp_path: Path) -> None:
    def written(name: str) -> Any:
        return (tmp_path / "outputs" / name).read_text()

    wanted = ("dataset_id", "run", "training", "ui")
    writing = [part for name in wanted for part in ("--write", name, str(tmp_path / "outputs" / name))]
    store, runs = str(tmp_path / "store"), str(tmp_path / "runs")
    told = CliRunner().invoke(
        cli, ["prepare", "--run", "a", "--runs", runs, "--store", store, *writing], catch_exceptions=False
    )
    assert told.exit_code == 0, told.output
    assert (written("run"), written("training")) == ("a", f"{runs}/a/training")
    assert re.fullmatch(r"[0-9a-f]{64}", written("dataset_id"))
    (page,) = json.loads(written("ui"))["outputs"]
    assert (page["type"], page["storage"]) == ("web-app", "inline")
    assert "<html" in page["source"]


@pytest.mark.parametrize("command", ["prepare", "evaluate", "export", "launch"])
def test_a_result_that_a_command_does_not_have_is_refused_before_any_work(command: str) -> None:
    told = CliRunner().invoke(cli, [command, "--write", "horoscope", "/nowhere"])
    assert told.exit_code == 2
    assert "horoscope" in told.output


def test_a_result_that_can_not_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store, result = tmp_path / "store", tmp_path / "file" / "run"
    told = CliRunner().invoke(
        cli, ["prepare", "--run", "a", "--store", str(store), "--write", "run", str(result)]
    )
    assert told.exit_code == NotWritable.exit_code
    assert f"cannot be written to: {tmp_path}/file: " in told.output
    assert not store.exists()
