"""Run the training pipeline on this machine: the compiled steps, each in a process of its own.

The pipeline engine runs in a process group of its own, so that a request to stop reaches the running step,
which saves its state; the engine itself has no way to stop a step. If this process dies without a word, its
end of a pipe closes, and the engine passes the same request on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddpipe.errors import Interrupted, TrainingError, from_dict
from ddpipe.runs import Run
from ddpipe.signals import passing_on
from ddpipe.stage import ERROR, TOLD, VOICE
from ddpipe.storage import open_store
from ddpipe.summary import Summary, summary
from ddpipe.train.recipe import Recipe

_ENGINE = (sys.executable, "-m", "ddpipe.pipelines.local")
_STDERR = 2  # the file itself: a notebook's sys.stderr has none
_LAST_LINES = 20


def run_training(run: Run, source: Mapping[str, Any], recipe: Recipe, processes: int) -> Summary:
    """Run all four steps; what they say goes to standard error, without the engine's chatter.

    Args:
        run: The run's folder.
        source: The pipeline's parameters for preparing data, by name (PrepareSpec).
        recipe: How to train.
        processes: Training processes.

    Raises:
        DdpipeError: The error of the step that failed.
        Interrupted: Told to stop (SIGTERM, SIGINT); the same again goes on.
    """
    for folder in (source["store"], run.uri):
        open_store(folder).check_writable()
    parameters = {
        "run_name": run.name,
        "runs": run.uri.rpartition("/")[0],
        **source,
        "backend": "local",
        "processes": processes,
        **asdict(recipe),
    }
    with tempfile.TemporaryDirectory(prefix="ddpipe-") as scratch:
        error, log = Path(scratch, "error.json"), Path(scratch, "engine.log")
        with (
            _listening(Path(scratch, "voice")) as voice,
            log.open("wb") as chatter,
            subprocess.Popen(  # noqa: S603 - our own module, no shell
                [*_ENGINE, scratch, json.dumps(parameters)],
                env={**os.environ, VOICE: str(voice), ERROR: str(error)},
                stdin=subprocess.PIPE,
                stdout=chatter,
                stderr=chatter,
                start_new_session=True,
            ) as engine,
            passing_on(lambda: os.killpg(engine.pid, signal.SIGTERM)) as told,
        ):
            code = engine.wait()
        if error.exists():
            raise from_dict(json.loads(error.read_text()))
        last_words = "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
    if told:
        raise Interrupted(
            what="the run was interrupted",
            which=run.uri,
            seen="told to stop between two saved states",
            do="Run the same again to go on from the last one.",
        )
    if code:
        raise TrainingError(
            what="the run failed",
            which=run.uri,
            seen=f"a step ended without naming a reason; the last lines:\n{last_words}",
            do="This is a bug: report it with these lines.",
        )
    return summary(run)


@contextlib.contextmanager
def _listening(pipe: Path) -> Iterator[Path]:
    """A named pipe; what is written to it, by however many processes, appears on standard error.

    Where standard error is closed (`ddpipe run | head`), it is still read, or the steps would wait for ever.
    """
    os.mkfifo(pipe)
    # Opened for both, so that neither end waits for the other; closing it lets the listener come to an end.
    held = os.open(pipe, os.O_RDWR)
    heard = pipe.open("rb", buffering=0)

    def listen() -> None:
        for said in iter(lambda: heard.read(1 << 16), b""):
            with contextlib.suppress(OSError):
                os.write(_STDERR, said)

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield pipe
    finally:
        os.close(held)
        listener.join()
        heard.close()


def _engine(scratch: str, parameters: dict[str, Any]) -> None:
    """The other process: hand the pipeline to the engine's local runner."""
    from kfp import local  # noqa: PLC0415 - a second that only this process needs

    from ddpipe.pipelines.training import training  # noqa: PLC0415 - as above

    threading.Thread(target=_stop_with_the_parent, daemon=True).start()
    # The whole group gets the signal: the running step stops, and one that starts after it reads it here.
    signal.signal(signal.SIGTERM, lambda *_: os.environ.update({TOLD: "yes"}))
    warnings.filterwarnings("ignore", module=r"kfp\.")
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=scratch, raise_on_error=True)
    try:
        training(**parameters)
    except RuntimeError as error:
        sys.exit(str(error))


def _stop_with_the_parent() -> None:
    os.read(0, 1)  # nothing is ever written: this returns when the parent is gone
    os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    _engine(sys.argv[1], json.loads(sys.argv[2]))
