"""One process at a time works on a folder, and a dead one does not block it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from processes import until

from ddpipe.errors import ParameterError
from ddpipe.storage import Store, open_store
from ddpipe.storage import lease as lease_module
from ddpipe.storage.files import FileStore
from ddpipe.storage.lease import _Lease, _machine, lease

SOON = {"renewal": 0.05, "patience": 2.0}
"""An object store reports times in whole seconds."""


def leases(store: Store) -> list[str]:
    return [item.key for item in store.list("lease-")]


def left_behind(store: Store, host: str, pid: int, machine: str = "0") -> None:
    """The lease of a process that cannot renew it any more."""
    store.write(f"lease-{host}.{pid}.{machine}", b"7")


def test_a_second_process_is_refused_while_the_first_lives(store_uri: str) -> None:
    store = open_store(store_uri)
    with lease(store, **SOON):
        with (
            pytest.raises(ParameterError, match=rf"process {os.getpid()} on .* renews its lease"),
            lease(store, **SOON),
        ):
            pytest.fail("both hold it")
        assert len(leases(store)) == 1


def test_afterwards_nothing_is_left(store_uri: str) -> None:
    store = open_store(store_uri)
    for _ in range(2):
        with lease(store, **SOON):
            assert len(leases(store)) == 1
    assert leases(store) == []


def test_a_process_of_this_machine_that_is_gone_blocks_nobody(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left_behind(store, socket.gethostname(), gone.pid, _machine())
    with lease(store, renewal=60, patience=3600):
        assert len(leases(store)) == 1


def test_an_equal_host_name_is_not_the_same_machine(tmp_path: Path) -> None:
    """Of two containers with one name, in pid namespaces of their own."""
    store = open_store(str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left_behind(store, socket.gethostname(), gone.pid, "0123456789ab")
    own = _Lease(store)
    own.renew()
    assert len(own.others(3600)) == 1


@pytest.mark.parametrize("fact", ["_BOOT", "_NAMESPACE"])
def test_process_ids_mean_the_same_in_one_start_and_namespace(
    fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = lease_module._machine(), tmp_path / "other"
    if fact == "_BOOT":
        other.write_text("another start")
    else:
        other.symlink_to("pid:[1]")
    monkeypatch.setattr(lease_module, fact, other)
    assert lease_module._machine() != here


PAUSED = """
import sys, time
from pathlib import Path
from ddpipe.storage import open_store
from ddpipe.storage.files import FileStore
from ddpipe.storage.lease import lease
from ddpipe.errors import ParameterError
folder = Path(sys.argv[1])
try:
    with lease(open_store(str(folder)), renewal=0.05, patience=0.3):
        (folder / "ready").touch()
        time.sleep(60)
except ParameterError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_a_paused_holder_learns_that_another_took_over(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", PAUSED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        until((tmp_path / "ready").exists)
        holder.send_signal(signal.SIGSTOP)
        with lease(store, renewal=0.05, patience=0.3):
            holder.send_signal(signal.SIGCONT)
            output, _ = holder.communicate()
            assert len(leases(store)) == 1
    assert holder.returncode == ParameterError.exit_code
    assert "another process may be working on the run" in output


def test_a_pause_between_look_and_renewal_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewal restores the lease that another process has deleted in between."""
    store = open_store(str(tmp_path))
    write = FileStore.write

    def paused(self: FileStore, key: str, data: bytes) -> None:
        if data == b"3":  # the second renewal by the keeper
            store.delete(key)
            left_behind(store, "elsewhere", 7, "0123456789ab")
            time.sleep(0.4)
        write(self, key, data)

    monkeypatch.setattr(FileStore, "write", paused)
    with pytest.raises(ParameterError, match="another process may be working on the run"):  # noqa: SIM117
        with lease(store, renewal=0.01, patience=0.3):
            time.sleep(30)
    assert leases(store) == ["lease-elsewhere.7.0123456789ab"]


def test_a_process_that_ignores_interrupts_is_interrupted(tmp_path: Path) -> None:
    """As every process that a shell script starts in the background."""
    store = open_store(str(tmp_path))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(ParameterError, match="may be working on"), lease(store, **SOON):  # noqa: PT012
            store.delete(leases(store)[0])
            time.sleep(30)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_lease_lost_in_a_thread_fails_in_the_end(tmp_path: Path) -> None:
    """Only the main thread can be interrupted."""
    store = open_store(str(tmp_path))
    errors: list[ParameterError] = []

    def work() -> None:
        try:
            with lease(store, **SOON):
                (key,) = leases(store)
                store.delete(key)
                until(lambda: all(thread.name != "lease" for thread in threading.enumerate()))
        except ParameterError as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert [error.what for error in errors] == ["another process may be working on the run"]


def test_a_folder_that_was_emptied_has_no_holder(tmp_path: Path) -> None:
    """Between the renewal and the look, by a person or a bucket's lifecycle rule."""
    assert _Lease(open_store(str(tmp_path))).others(20) == {}


def test_a_lease_of_another_machine_may_be_alive(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left_behind(store, "elsewhere.example", gone.pid)
    left_behind(store, socket.gethostname(), os.getpid())
    own = _Lease(store)
    own.renew()
    assert len(own.others(3600)) == 2
    assert own.key not in own.others(3600)


@pytest.mark.parametrize(("age", "void"), [(19, False), (21, True)])
def test_a_lease_is_as_old_as_the_store_says(tmp_path: Path, age: float, void: bool) -> None:
    store = open_store(str(tmp_path))
    left_behind(store, "elsewhere.example", 1)
    own = _Lease(store)
    own.renew()
    now = (tmp_path / own.key).stat().st_mtime
    os.utime(tmp_path / "lease-elsewhere.example.1.0", (now - age, now - age))
    assert len(own.others(20)) == (not void)
    assert len(leases(store)) == 2 - void


def test_a_lease_that_is_renewed_shows_that_its_holder_lives(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    own, other = _Lease(store), _Lease(store)
    own.renew()
    other.renew()
    before = own.others(20)
    other.renew()
    assert own.others(20).keys() == before.keys() == {other.key}
    assert own.others(20) != before


def test_the_holder_renews_until_it_is_done(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with lease(store, **SOON):
        (key,) = leases(store)
        began = store.read(key)
        until(lambda: store.read(key) != began)


def test_a_machine_that_is_silent_for_long_enough_has_lost_it(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    left_behind(store, "elsewhere.example", 1)
    with lease(store, renewal=0.05, patience=0.3):
        assert len(leases(store)) == 1
