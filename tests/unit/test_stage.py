"""A step's process says what it does, and leaves its error where it was asked to."""

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

from ddpipe.errors import Interrupted, SourceError, from_dict
from ddpipe.stage import ERROR, TOLD, VOICE

STEP = """
import logging
from ddpipe.errors import SourceError
from ddpipe.stage import on_stage
with on_stage():
    logging.getLogger("ddpipe.prepare").info("decoding")
    raise SourceError(what="no dataset", which="photos", seen="it is empty", do="Add images.")
"""


def a_failing_step(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", STEP],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_step_ends_with_prose_and_the_errors_code() -> None:
    done = a_failing_step()
    assert done.returncode == SourceError.exit_code
    assert done.stderr == "decoding\nSourceError: no dataset: photos: it is empty. Add images.\n"


def test_whoever_started_it_gets_the_error_and_every_word(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "voice")
    heard: list[str] = []
    listener = threading.Thread(target=lambda: heard.append((tmp_path / "voice").read_text()))
    listener.start()
    done = a_failing_step(**{VOICE: str(tmp_path / "voice"), ERROR: str(tmp_path / "error.json")})
    listener.join(timeout=10)
    assert heard == ["decoding\n"]
    assert done.stderr == ""
    error = from_dict(json.loads((tmp_path / "error.json").read_text()))
    assert isinstance(error, SourceError)
    assert logging.getLogger("ddpipe").propagate, "only the step's own process is set up"


def test_a_step_of_a_stopped_run_does_not_begin() -> None:
    done = a_failing_step(**{TOLD: "yes"})
    assert (done.returncode, done.stderr) == (Interrupted.exit_code, "")
