"""What the machine of a launch knows of it: a stand-in for the launcher runs as a real process."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import until

from ddpipe.data.cache import default_cache
from ddpipe.notebook import machine as module
from ddpipe.notebook.machine import Machine, Secrets

URI = "s3://bucket/runs/one"
POPEN = subprocess.Popen


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """How the launcher was started; `script` is the Python code that runs as the launcher."""
    found: dict[str, Any] = {"script": "pass", "times": 0}

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        found.update(command=command, options=options, times=found["times"] + 1)
        found["process"] = POPEN([sys.executable, "-u", "-c", found["script"]], **options)
        process: subprocess.Popen[bytes] = found["process"]
        return process

    monkeypatch.setattr("ddpipe.notebook.machine.subprocess.Popen", popen)
    yield found
    if "process" in found:
        found["process"].kill()
        found["process"].wait()


def place() -> Path:
    return default_cache() / "launches" / hashlib.sha256(URI.encode()).hexdigest()[:16]


def test_secrets_are_kept_for_this_user_alone() -> None:
    machine = Machine(URI)
    assert machine.secrets() == Secrets(key="")
    machine.keep(Secrets("ab" * 32, {"env": {"TOKEN": "1"}}))
    machine.keep(Secrets("cd" * 32, {"env": {"TOKEN": "2"}}))
    assert Machine(URI).secrets() == Secrets("cd" * 32, {"env": {"TOKEN": "2"}})
    assert (place() / "secrets").stat().st_mode & 0o777 == 0o600
    assert Machine(URI + "2").secrets().key == ""


def test_new_keys_differ_and_are_not_printed() -> None:
    one, other = Secrets(), Secrets()
    assert one.key != other.key
    assert len(bytes.fromhex(one.key)) == 32
    assert one.key not in repr(one)


def test_a_launcher_is_a_process_of_its_own(started: dict[str, Any]) -> None:
    started["script"] = "import os; print(os.getsid(0) == os.getpid()); input()"
    machine = Machine(URI)
    machine.start("adopt")
    started["process"].wait()
    assert started["command"] == [sys.executable, "-m", "ddpipe.notebook.background", URI, "adopt"]
    assert machine.last_lines()[0] == "True", "an interrupt of the kernel would reach it"
    assert "EOFError" in machine.last_lines()[-1], "it would read what is typed into the notebook's terminal"


def test_a_launch_has_one_launcher(started: dict[str, Any]) -> None:
    started["script"] = "import time; time.sleep(60)"
    machine, other_kernel = Machine(URI), Machine(URI)
    assert not machine.is_launching()
    machine.start()
    other_kernel.start()
    assert started["times"] == 1
    assert machine.is_launching()
    assert other_kernel.is_launching()
    started["process"].kill()
    until(lambda: not other_kernel.is_launching())
    assert not machine.is_launching()
    other_kernel.start()
    assert started["times"] == 2


def test_stop_waits_for_the_launcher_to_end(started: dict[str, Any]) -> None:
    started["script"] = (
        "import signal, sys, time\n"
        "def end(*_):\n    time.sleep(0.5); print('removed'); sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, end); print('running'); time.sleep(60)"
    )
    machine = Machine(URI)
    machine.stop()  # there is none yet
    machine.start()
    until(lambda: machine.last_lines() == ["running"])
    Machine(URI).stop()
    assert machine.last_lines() == ["running", "removed"]
    assert not machine.is_launching()
    machine.stop()


def test_stop_does_not_wait_for_a_stuck_launcher_forever(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOPPING_SECONDS", 0.5)
    started["script"] = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('running'); time.sleep(60)"
    )
    machine = Machine(URI)
    machine.start()
    until(lambda: machine.last_lines() == ["running"])
    machine.stop()
    assert machine.is_launching()


def test_lines_follow_the_log_to_the_end_of_the_launcher(started: dict[str, Any]) -> None:
    started["script"] = (
        "import sys, time\n"
        "for text in ('one\\ntw', 'o\\n', 'three'):\n"
        "    sys.stdout.write(text); sys.stdout.flush(); time.sleep(0.4)"
    )
    machine = Machine(URI)
    assert list(machine.lines(follow=True)) == []
    machine.start()
    assert list(machine.lines(follow=True)) == ["one", "two", "three"]
    assert list(Machine(URI).lines(follow=False)) == ["one", "two", "three"]


def test_lines_so_far_do_not_wait(started: dict[str, Any]) -> None:
    started["script"] = "import time; print('one'); time.sleep(60)"
    machine = Machine(URI)
    machine.start()
    until(lambda: machine.last_lines() == ["one"])
    assert list(machine.lines(follow=False)) == ["one"]


def test_last_lines_are_the_end_of_a_long_log() -> None:
    machine = Machine(URI)
    assert machine.last_lines() == []
    place().mkdir(parents=True)
    (place() / "log").write_bytes(b"".join(b"%07d\n" % number for number in range(20000)) + b"\xff")
    lines = machine.last_lines()
    assert lines[-2:] == ["0019999", "�"]
    assert 2**16 / 8 - 1 <= len(lines) <= 2**16 / 8 + 1
    assert (place() / "log").stat().st_size > 2**16
