"""What each engine is given of a step is what its UI and API server accept (KFP 1.5, 1.7 and 2.17)."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ddpipe.__main__ import cli
from ddpipe.commands.results import (
    Classification,
    Document,
    Page,
    Scores,
    metadata_of_v2,
    metrics_of_v1,
    views_of_v1,
)
from ddpipe.errors import NotWritable, ParameterError
from ddpipe.model.metrics import TITLES

METRIC_NAME = r"[a-zA-Z]([-_a-zA-Z0-9]{0,62}[a-zA-Z0-9])?"
CLASSES = ("cat, big", 'the "dog"')
CLASSIFIED = Classification(CLASSES, ((1, 2), (3, 4)), (0.0, 1.0), (0.5, 1.0), (0.9, 0.1))


def views(*shown: Any) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = json.loads(views_of_v1(shown))["outputs"]
    return outputs


def rows_of(view: dict[str, Any]) -> list[list[str]]:
    return list(csv.reader(view["source"].splitlines()))


def test_all_scores_have_names_that_the_engine_stores() -> None:
    shown = json.loads(metrics_of_v1([Page(""), Scores(dict.fromkeys(TITLES, 0.5))]))["metrics"]
    assert [one["name"] for one in shown] == list(TITLES)
    assert all(re.fullmatch(METRIC_NAME, one["name"]) for one in shown)


def test_metrics_are_limited_to_what_the_engine_stores() -> None:
    many = Scores({f"m{n}": n for n in range(60)})
    assert len(json.loads(metrics_of_v1([many]))["metrics"]) == 50


def test_a_confusion_matrix_has_a_row_per_pair_of_classes() -> None:
    view, _ = views(CLASSIFIED)
    assert rows_of(view) == [
        ["cat, big", "cat, big", "1"],
        ["cat, big", 'the "dog"', "2"],
        ['the "dog"', "cat, big", "3"],
        ['the "dog"', 'the "dog"', "4"],
    ]
    assert view["labels"] == list(CLASSES)
    assert [column["name"] for column in view["schema"]] == ["target", "predicted", "count"]


def test_a_roc_curve_has_the_columns_that_the_ui_looks_for() -> None:
    _, view = views(CLASSIFIED)
    assert [column["name"] for column in view["schema"]] == ["fpr", "tpr", "thresholds"]
    assert rows_of(view) == [["0.0", "0.5", "0.9"], ["1.0", "1.0", "0.1"]]


def test_event_files_are_shown_where_the_ui_can_reach_them() -> None:
    assert json.loads(views_of_v1([], "/data/run"))["outputs"] == []
    found = json.loads(views_of_v1([], "s3://b/run"))["outputs"]
    assert found == [{"type": "tensorboard", "source": "s3://b/run"}]


def test_kfp_2_gets_metadata_by_name_and_uri() -> None:
    def listed(name: str) -> dict[str, Any]:
        return {"artifacts": [{"name": f"{name}-1", "uri": f"minio://b/{name}", "type": {}}]}

    shown = {
        "scores": Scores({"accuracy": 0.9}),
        "classification": CLASSIFIED,
        "version": Document(b"{}", {"dataset_id": "abc"}),
        "page": Page("<html>"),
    }
    engines_own = "executor-logs"
    artifacts = {name: listed(name) for name in (*shown, engines_own)}
    given = {"outputs": {"outputFile": "/tmp/out.json", "artifacts": artifacts}}  # noqa: S108
    target, content = metadata_of_v2(json.dumps(given), shown)
    assert target == "/tmp/out.json"  # noqa: S108
    artifacts = {name: one["artifacts"][0] for name, one in json.loads(content)["artifacts"].items()}
    assert {name: one["uri"] for name, one in artifacts.items()} == {
        name: f"minio://b/{name}" for name in shown
    }
    assert artifacts["scores"]["metadata"] == {"accuracy": 0.9}
    assert artifacts["version"]["metadata"] == {"dataset_id": "abc"}
    assert artifacts["page"]["metadata"] == {}
    matrix = artifacts["classification"]["metadata"]["confusionMatrix"]
    assert [one["displayName"] for one in matrix["annotationSpecs"]] == list(CLASSES)
    assert [one["row"] for one in matrix["rows"]] == [[1, 2], [3, 4]]
    assert artifacts["classification"]["metadata"]["confidenceMetrics"][0] == {
        "confidenceThreshold": 0.9,
        "recall": 0.5,
        "falsePositiveRate": 0.0,
    }


def test_a_step_writes_its_results_where_the_engine_wants_them(tmp_path: Path) -> None:
    def written(name: str) -> Any:
        return (tmp_path / "outputs" / name).read_text()

    wanted = ("dataset", "dataset_id", "dataset_version", "data_report", "mlpipeline-ui-metadata")
    writing = [part for name in wanted for part in ("--write", name, str(tmp_path / "outputs" / name))]
    store, runs = str(tmp_path / "store"), str(tmp_path / "runs")
    ended = CliRunner().invoke(
        cli, ["prepare", "--run", "a", "--runs", runs, "--store", store, *writing], catch_exceptions=False
    )
    assert ended.exit_code == 0, ended.output
    last = ended.stdout.splitlines()[-1]
    assert re.fullmatch(
        r"dataset version [0-9a-f]{12} \(new: 1,797 images encoded\): train 1\d+, validation \d+, test \d+",
        last,
    )
    assert Path(written("dataset")).read_text() == written("dataset_version")
    assert re.fullmatch(r"[0-9a-f]{64}", written("dataset_id"))
    (page,) = json.loads(written("mlpipeline-ui-metadata"))["outputs"]
    assert (page["type"], page["storage"]) == ("web-app", "inline")
    assert "<html" in page["source"]
    assert page["source"] == written("data_report")


@pytest.mark.parametrize("command", ["prepare", "evaluate", "export", "launch"])
def test_unknown_results_are_rejected_before_any_work(command: str) -> None:
    ended = CliRunner().invoke(cli, [command, "--write", "horoscope", "/nowhere"])
    assert ended.exit_code == 2
    assert "horoscope" in ended.output


def test_unwritable_results_are_rejected_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store, result = tmp_path / "store", tmp_path / "file" / "result"
    ended = CliRunner().invoke(
        cli, ["prepare", "--run", "a", "--store", str(store), "--write", "dataset", str(result)]
    )
    assert ended.exit_code == NotWritable.exit_code
    assert f"cannot be written to: {tmp_path}/file: " in ended.output
    assert not store.exists()


def test_the_first_step_reports_problems_of_all_steps(tmp_path: Path) -> None:
    later = {
        "model": "resnet-9000",
        "epochs": "many",
        "batch_size": "0",
        "nodes": "2",
        "backend": "pytorchjob",
    }
    checks = [part for pair in later.items() for part in ("--check", *pair)]
    ended = CliRunner().invoke(
        cli, ["prepare", "--store", str(tmp_path / "store"), "--image-size", "-1", *checks]
    )
    assert ended.exit_code == ParameterError.exit_code
    for problem in (
        "image_size is -1",
        "model is 'resnet-9000'",
        "epochs is 'many'",
        "batch_size is 0",
        "image is",
    ):
        assert problem in ended.output, ended.output
    assert not (tmp_path / "store").exists()


def test_messages_in_an_engine_name_parameters_not_options(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    folder = str(tmp_path / "photos")
    table = ("--source", "csv", "--source-path", folder, "--table", "none.csv")
    wrong = ("prepare", "--store", str(tmp_path / "store"), *table)
    assert "--table" in CliRunner().invoke(cli, wrong).output
    inside = CliRunner().invoke(cli, [*wrong, "--write", "dataset", str(tmp_path / "result")]).output
    assert "Name the CSV file with table." in inside


def refused(tmp_path: Path, *arguments: str) -> str:
    """What prepare says; it has not begun."""
    ended = CliRunner().invoke(cli, ["prepare", "--store", str(tmp_path / "store"), *arguments])
    assert ended.exit_code == ParameterError.exit_code
    assert not (tmp_path / "store").exists()
    return ended.output


def test_a_pipeline_cannot_train_where_its_steps_run(tmp_path: Path) -> None:
    ended = refused(tmp_path, "--check", "backend", "local", "--check", "image", "mine:1")
    assert "backend is 'local'" in ended


def test_objects_of_later_options_are_checked_name_by_name(tmp_path: Path) -> None:
    train = {"label_smothing": 0.1, "momentum": 2, "epochs": 3, "keep": "failed"}
    ended = refused(
        tmp_path, "--check", "train_options", json.dumps(train), "--check", "cluster_options", "[1]"
    )
    for problem in (
        "'label_smothing' is not a parameter here; did you mean label_smoothing?",
        "epochs does not belong in train_options, but in train_epochs",
        "keep does not belong in train_options, but in cluster_options",
        "cluster_options is '[1]', not an object of names and values",
        "momentum is 2, not a number of at least 0 and less than 1",
    ):
        assert problem in ended, ended


def test_options_in_an_object_count_like_any_other(tmp_path: Path) -> None:
    ended = [
        json.loads(CliRunner().invoke(cli, ["prepare", "--store", str(tmp_path), "--json", *given]).stdout)
        for given in (["--options", '{"split_seed": 7}'], ["--split-seed", "7"])
    ]
    assert [one["reused"] for one in ended] == [False, True]


def test_options_in_an_object_are_validated_like_any_other(tmp_path: Path) -> None:
    options = json.dumps({"image_size": -1, "imagesize": 80, "split_seed": 3})
    ended = refused(tmp_path, "--split-seed", "5", "--options", options)
    for problem in (
        "image-size is -1, not a whole number from 0 to 4096",
        "'imagesize' is not a parameter here; did you mean image_size?",
        "split_seed is given twice: as an option of its own, and in --options or as an argument",
    ):
        assert problem in ended, ended
