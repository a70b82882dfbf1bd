"""A launcher as a process of its own, as a pipeline engine runs it."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forked import Forked
from place import IMAGE, PATIENCE, Place

SMALL = ("--cpu", "50m", "--memory", "64Mi", "--shared-memory", "16Mi")
RUNNING = r"running: 2 of 2 pods"


@dataclass(frozen=True)
class Ended:
    """How a launcher ended: exit code, all it wrote, and how long it took."""

    code: int
    text: str
    seconds: float

    @property
    def message(self) -> str:
        """What it said itself in the end: neither remarks on the way nor anybody's log."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("["))


class Step:
    """`ddpipe launch …` in a place; what it writes is collected as it comes."""

    def __init__(self, place: Place, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._began = time.monotonic()
        self._written = b""
        self._changed = threading.Condition()
        self._deaf = False
        reader, writer = os.pipe()
        environment = {**os.environ, "KUBECONFIG": str(place.kubeconfig), **environment}
        command = place.rival(arguments) if place.rival else [sys.executable, "-m", "ddpipe", *arguments]
        self.process = (
            Forked(arguments, writer, environment)
            if place.forks
            else subprocess.Popen(command, stdout=writer, stderr=writer, env=environment)
        )
        os.close(writer)
        self._reader = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return self._written.decode()

    def saw(self, pattern: str, seconds: float = PATIENCE) -> None:
        """Wait until it has written this."""
        with self._changed:
            found = self._changed.wait_for(lambda: re.search(pattern, self.text), seconds)
        assert found, f"{pattern!r} never came:\n{self.text}"

    def kill(self) -> Ended:
        """SIGKILL, and nothing else."""
        self.process.send_signal(signal.SIGKILL)
        return self.end()

    def stop_listening(self) -> None:
        """Close our end of its output."""
        self._deaf = True
        self._reader.join()

    def terminate(self, grace: float = 0.5) -> Ended:
        """As Argo does it: SIGTERM, and SIGKILL half a second later.

        Time in which a process waits for a CPU does not count: cluster, step and other tests share few.
        """
        began, stalled = time.monotonic(), _stalled()
        self.process.send_signal(signal.SIGTERM)
        # At most ten times as long: what a step does after seconds is another test's.
        while self.process.poll() is None and (
            time.monotonic() - began < grace + min(_stalled() - stalled, 9 * grace)
        ):
            time.sleep(0.02)
        self.process.kill()
        return self.end()

    def end(self, seconds: float = PATIENCE) -> Ended:
        """Wait for its own end."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it did not end within {seconds} s:\n{self.text}") from None
        taken = time.monotonic() - self._began
        self._reader.join(5)
        return Ended(self.process.returncode, self.text, taken)

    def _read(self, reader: int) -> None:
        while not self._deaf:
            if not select.select([reader], [], [], 0.05)[0]:
                continue
            chunk = os.read(reader, 2**16)
            if not chunk:
                break
            with self._changed:
                self._written += chunk
                self._changed.notify_all()
        os.close(reader)


def _stalled() -> float:
    """Seconds in which some process of this machine waited for a CPU (Linux pressure stall information)."""
    with suppress(OSError):
        if found := re.match(r"some .*total=(\d+)", Path("/proc/pressure/cpu").read_text()):
            return int(found[1]) / 1e6
    return 0


def launch(
    place: Place, script: str, *options: str, run: str = "r1", nodes: int = 2, **environment: str
) -> Step:
    """Start a launcher of a two-pod job whose pods run a shell script."""
    chosen = place.chosen(options)
    size = ("--image", IMAGE, "--nodes", str(nodes), "--run-id", run, *SMALL)
    arguments = ["launch", *chosen, *size, *options]
    return Step(place, [*arguments, "--", "sh", "-c", script], environment)
