"""A training with a budget of minutes: several ranks decide alike, and a resumed one stays within it."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from training_ranks import SecondsOfAStep, SignalAtStep
from training_runs import RECIPE, STEPS_PER_EPOCH, digits, final, record, run

from ddpipe.errors import Interrupted

MINUTES, STEP_SECONDS = 600.0, 300.0
"""Hours, of which real processes use seconds: the launch and earlier attempts, which do not count steps."""

BUDGET = replace(RECIPE, minutes=MINUTES)


@pytest.mark.slow
def test_ranks_decide_alike_and_a_resumed_training_keeps_the_budget(tmp_path: Path) -> None:
    dataset, output = digits(tmp_path / "store"), str(tmp_path / "run" / "training")
    stop = SignalAtStep(1, 5, signal.SIGTERM)  # the first decision is taken at step 4
    ended = run(dataset, output, BUDGET, ranks=2, meddling=[SecondsOfAStep(STEP_SECONDS), stop])
    assert ended.codes == [Interrupted.exit_code] * 2
    stopped = final(output)
    # Ranks poll before step 0, and after a poll before step p at the latest before step 2 p + 2.
    assert 5 <= stopped.step <= 12
    assert stopped.schedule[0][1] > stopped.schedule[-1][1] > stopped.step
    assert run(dataset, output, BUDGET, ranks=2, meddling=[SecondsOfAStep(STEP_SECONDS)]).codes == [0, 0]
    done = record(output)
    assert done["schedule"][: len(stopped.schedule)] == stopped.schedule
    assert done["steps"] == done["schedule"][-1][1] == final(output).step == done["history"][-1]["step"]
    assert done["epochs"] == -(-done["steps"] // STEPS_PER_EPOCH)
    assert 0.9 < (done["steps"] - stopped.step) * STEP_SECONDS / (60 * MINUTES) <= 1
