"""What a run prints at its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from evaluation_runs import a_record

from ddpipe import summary as module
from ddpipe.runs import Run
from ddpipe.summary import Summary, summary

DONE = Summary(
    run="runs/first",
    dataset_id="d" * 64,
    reused=False,
    unchanged_since="",
    trained="128 images seen: 0.1 epochs of 1,280; the 2 minutes were up",
    metrics={"test": {"accuracy": {"value": 0.9, "low": 0.8, "high": 0.95}}},
    warnings=["the scores are a rough guess"],
    mistakes=[{"sample": "cat/1.jpg", "expected": "cat", "predicted": "dog", "probability": 0.98765}],
    data_report="runs/first/data.html",
    report="runs/first/report.html",
    model="runs/my first/model",
    gate={},
    seconds={"prepare": 1.25, "train": 12.0},
)


def test_the_end_names_scores_mistakes_and_the_next_command() -> None:
    lines = DONE.text().splitlines()
    for expected in (
        "steps     prepare 1.2 s, train 12.0 s",
        "trained   128 images seen: 0.1 epochs of 1,280; the 2 minutes were up",
        "  accuracy 0.9000   95 % interval 0.8000 to 0.9500",
        "note      the scores are a rough guess",
        "  cat/1.jpg  expected cat, predicted dog (probability 0.9877)",
        "predict   ddpipe predict 'runs/my first/model' picture.png",
    ):
        assert expected in lines


def test_a_run_whose_gate_kept_the_champion_has_nothing_to_predict_with() -> None:
    kept = replace(DONE, model="", gate={"decision": "fail", "reason": "no better"})
    assert "gate      fail: no better" in kept.text()
    assert "ddpipe predict" not in kept.text()


def test_no_mistakes_are_named_as_such() -> None:
    assert "no mistakes on the test images" in replace(DONE, mistakes=[]).text()


def test_a_score_that_is_undefined_is_not_silently_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.named(str(tmp_path), "first")
    for step in ("prepare", "train"):
        with run.step(step) as facts:
            facts.update(dataset_id="d" * 64, reused=False)
    evaluation = a_record().evaluation
    metrics = replace(evaluation.metrics, undefined={"macro_auc": "every image shows 'ant'"})
    monkeypatch.setattr(module, "load_evaluation", lambda _: replace(evaluation, metrics=metrics))
    monkeypatch.setattr(module, "training_record", lambda _: {"history": [{}]})
    monkeypatch.setattr(module, "worst_mistakes", lambda *_: [])
    assert "note      no macro_auc: every image shows 'ant'" in summary(run).text().splitlines()
