"""The report of a study."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ddpipe.search.space import parsed
from ddpipe.train.recipe import Recipe
from ddpipe.tune.report import MOST, Findings, render
from ddpipe.tune.study import Study
from ddpipe.tune.trials import Trial

SPACE = parsed(["learning_rate=log(0.01,1)", "batch_size=16..64", "optimizer=sgd,adamw"])


def trial(number: int, score: float | None, state: str = "complete", error: str = "") -> Trial:
    return Trial(
        number=number,
        state=state,
        values={"learning_rate": 0.1, "batch_size": 16 + number % 40, "optimizer": "sgd"},
        score=score,
        curve=[] if score is None else [score / 2, score],
        seconds=1.5,
        error=error,
    )


def findings(*trials: Trial) -> Findings:
    return Findings(
        study=Study(Path("studies/<b>")),
        space=SPACE,
        base=Recipe(epochs=2),
        metric="validation_accuracy",
        trials=trials,
        best=max(trials, key=lambda one: one.score or 0),
        importance={"learning_rate": 0.75, "batch_size": 0.25},
        seconds=4.0,
    )


def test_a_report_has_recipe_trials_and_figures() -> None:
    page = render(findings(trial(0, 0.5), trial(1, 0.75), trial(2, 0.25, "pruned")))
    assert "ddpipe run --recipe studies/" in page
    assert "reached 0.5000" in page
    assert "1 trial stopped early" in page
    assert page.count("<svg") == 2
    assert "epochs=2" in page
    assert re.search(r"learning_rate</td><td>75", page)
    assert re.findall(r"<td>(\d)</td><td class=.text.>", page) == ["1", "0", "2"]
    assert re.search(r">training</th>\s*<th>learning_<wbr>rate</th>", page)  # a long name takes two lines


def test_a_report_fetches_nothing_and_escapes_every_name() -> None:
    page = render(findings(trial(0, 0.5), trial(1, None, "failed", "<script>alert(1)</script>")))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;" in page
    assert not re.search(r"(src|href)=\"http", page.replace("xlink:href", ""))


def test_a_report_of_one_trial_is_complete() -> None:
    assert "too few complete trials" in render(replace(findings(trial(0, 0.5)), importance={}))


def test_a_report_shows_a_limited_number_of_trials() -> None:
    page = render(findings(*(trial(number, 0.5 + number / 1000) for number in range(MOST + 30))))
    assert "and 30 others" in page
    assert page.count('<td class="text">complete</td>') == MOST
