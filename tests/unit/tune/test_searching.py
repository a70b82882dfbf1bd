"""A search: its trials are real processes that follow a script."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import scripted_study
import scripted_trial
from processes import until
from scripted_study import RECIPE, facts, search

from ddpipe.errors import CorruptObject, Interrupted, ParameterError, TrialsFailed
from ddpipe.tune.study import SETTINGS, Settings, Study
from ddpipe.tune.trials import FILE, Ledger, Trial


def test_the_first_trial_has_the_values_of_the_recipe(tmp_path: Path) -> None:
    trials, best = search(tmp_path, 6).run()
    assert trials[0].values == {"learning_rate": 0.02, "label_smoothing": 0.0, "optimizer": "sgd"}
    assert best.score == max(trial.score or 0 for trial in trials if trial.state == "complete")
    assert best.score >= (trials[0].score or 1)


def test_the_first_trial_is_proposed_if_the_recipe_is_outside_of_the_space(tmp_path: Path) -> None:
    trials, _ = search(tmp_path, 1, replace(RECIPE, learning_rate=0.9)).run()
    assert 0.001 <= trials[0].values["learning_rate"] <= 0.4


def test_equal_seeds_give_equal_studies(tmp_path: Path) -> None:
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    for folder in (one, two, other):
        folder.mkdir()
    first = facts(search(one, 4).run()[0])
    assert facts(search(two, 4).run()[0]) == first
    assert facts(search(other, 2, replace(RECIPE, seed=4)).run()[0]) != first[:2]


def test_bad_trials_stop_early(tmp_path: Path) -> None:
    trials, _ = search(tmp_path, 9).run()
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert pruned
    assert all(len(trial.curve) < RECIPE.epochs for trial in pruned)
    assert all(trial.score == trial.curve[-1] for trial in pruned)


def test_a_longer_search_begins_with_the_same_trials(tmp_path: Path) -> None:
    first = facts(search(tmp_path, 3).run()[0])
    assert facts(search(tmp_path, 5).run()[0])[:3] == first


def test_trials_run_at_the_same_time_as_far_as_allowed(tmp_path: Path) -> None:
    running = search(tmp_path, 6, parallel=3, pruning="none")
    most: list[int] = []
    start = running.start

    def counted(*given: object) -> object:
        most.append(len(running.running) + 1)
        return start(*given)  # type: ignore[arg-type]

    running.start = counted  # type: ignore[assignment]
    trials, _ = running.run()
    assert len(trials) == 6
    assert max(most) == 3


def test_a_failed_trial_has_its_cause_and_the_search_continues(tmp_path: Path) -> None:
    trials, best = search(
        tmp_path, 4, replace(RECIPE, learning_rate=0.9), search=["learning_rate=0.3,0.9,0.1"]
    ).run()
    failed = [trial for trial in trials if trial.state == "failed"]
    assert "the loss is nan" in failed[0].error
    assert best.values["learning_rate"] != 0.9


def test_a_search_ends_after_too_many_failures(tmp_path: Path) -> None:
    wrong = search(tmp_path, 20, search=["learning_rate=0.6..1"])
    with pytest.raises(TrialsFailed, match="4 of 4 trials failed") as raised:
        wrong.run()
    assert "the loss is nan" in raised.value.seen


def test_values_that_do_not_go_together_fail_one_trial(tmp_path: Path) -> None:
    trials, _ = search(tmp_path, 3, replace(RECIPE, strategy="fsdp"), search=["optimizer=sgd,muon"]).run()
    failed = [trial for trial in trials if trial.state == "failed"]
    assert failed
    assert all("optimizer=muon" in trial.error and "fsdp" in trial.error for trial in failed)


def test_a_trial_stopped_by_others_is_resumed_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*given: object) -> object:
        process = scripted_trial.started(*given)  # type: ignore[arg-type]
        run = process.run
        with pytest.raises(Interrupted), run.step("train"):
            raise Interrupted(what="interrupted", which=run.uri, seen="a signal", do="Run it again.")
        process._process.kill()
        process._process.wait()
        return process

    interrupted = search(tmp_path, 3)
    interrupted.start = stopped  # type: ignore[assignment]
    with pytest.raises(Interrupted, match="trial 0 was stopped from outside"):
        interrupted.run()
    trials, _ = search(tmp_path, 3).run()
    assert [trial.state for trial in trials] == ["complete"] * 3


def test_an_interrupted_search_stops_its_trials(tmp_path: Path) -> None:
    process = begun(tmp_path, 50, "none")
    until_journal(tmp_path, 3)
    os.kill(process.pid, signal.SIGTERM)
    process.wait()
    until(lambda: not any(is_trial(path, tmp_path) for path in Path("/proc").glob("[0-9]*/cmdline")))


@pytest.mark.slow
def test_a_killed_search_continues_to_the_same_result(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    expected = facts(search(whole, 8).run()[0])
    numbers = random.Random(5)
    for _ in range(4):
        process = begun(killed, 8, "median")
        until_journal(killed, 1)
        time.sleep(numbers.uniform(0, 1.5))
        process.kill()
        process.wait()
    assert facts(search(killed, 8).run()[0]) == expected


def test_half_a_line_in_the_journal_is_removed(tmp_path: Path) -> None:
    before = facts(search(tmp_path, 2).run()[0])
    journal = tmp_path / FILE
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 4, "wor')
    Path(f"{journal}.lock").symlink_to(journal)
    assert facts(search(tmp_path, 2).trials()) == before
    assert facts(search(tmp_path, 3).run()[0])[:2] == before


def test_a_trial_is_in_the_ledger_before_it_starts(tmp_path: Path) -> None:
    space = search(tmp_path, 1).space
    number = Ledger(tmp_path, space).begin({"learning_rate": 0.1, "label_smoothing": 0.0, "optimizer": "sgd"})
    (found,) = map(Trial.of, Ledger(tmp_path, space).trials())
    assert (found.number, found.state) == (number, "running")


def settings(**changed: object) -> Settings:
    given: dict[str, object] = {
        "search": ["learning_rate=0.1..1"],
        "recipe": RECIPE.shaping(),
        "dataset": "a",
        "dataset_id": "1",
        "sampler": "tpe",
        "pruning": "none",
        "processes": 1,
    }
    return Settings(**{**given, **changed})  # type: ignore[arg-type]


def test_a_study_continues_with_the_same_settings_only(tmp_path: Path) -> None:
    study = Study.named(str(tmp_path / "one"))
    study.check(settings())
    study.check(settings())
    other = replace(RECIPE, epochs=9).shaping()
    with pytest.raises(ParameterError) as raised:
        study.check(settings(recipe=other, sampler="random"))
    assert "epochs was 4, is now 9" in raised.value.seen
    assert "sampler was 'tpe', is now 'random'" in raised.value.seen


MALFORMED = [b"", b"\xff\n", b"[]\n", b"3\n", b"{}\n", b'{"recipe": 1}\n', b"[" * 200_000 + b"\n"]


@pytest.mark.parametrize("content", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_settings_of_a_study_are_rejected(tmp_path: Path, content: bytes) -> None:
    study = Study.named(str(tmp_path / "one"))
    study.check(settings())
    (tmp_path / "one" / SETTINGS).write_bytes(content)
    with pytest.raises(CorruptObject, match=rf"one/{SETTINGS}: the file is malformed"):
        study.check(settings())


@pytest.mark.parametrize("content", [*MALFORMED[1:], b'{"op_code": 99}\n', b'{"op_code": 0}\n'])
def test_a_malformed_journal_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(CorruptObject, match=rf"{FILE}: the file is malformed"):
        Ledger(tmp_path, search(tmp_path, 1).space)


@pytest.mark.parametrize("study", ["s3://bucket/studies/one", "studies/..", "a b"])
def test_a_study_has_a_plain_name_in_a_local_folder(study: str) -> None:
    with pytest.raises(ParameterError, match="the study cannot be stored"):
        Study.named(study)


def begun(folder: Path, trials: int, pruning: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, scripted_study.__file__, str(folder), str(trials), pruning]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def until_journal(folder: Path, lines: int) -> None:
    path = folder / FILE
    until(lambda: path.exists() and path.read_bytes().count(b"\n") >= lines)


def is_trial(path: Path, folder: Path) -> bool:
    try:
        return str(folder).encode() in path.read_bytes() and b"scripted_trial" in path.read_bytes()
    except OSError:
        return False
