"""The ranks of any script, each watched by a thread of its own: one that keeps others waiting is named.

    10:00:00  rank 0 waits in its collective 76    rank 1 sleeps
    10:01:00  rank 0 calls the roll                rank 1 answers: its calls, and 75 as its last collective
    10:01:30  both end if torchrun may start them again, and rank 1 has not worked meanwhile

A script may have its reasons to wait, such as one rank that evaluates. So it is ended only where a restart
costs no more than the way from its last checkpoint; otherwise torch's own time-out, of minutes, ends it.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from torch import distributed as dist
from torch.distributed import PrefixStore, TCPStore, distributed_c10d

from ddpipe.distributed.ranks import record
from ddpipe.distributed.roll_call import LEAVE, RollCall, doing, recorded
from ddpipe.errors import TrainingError
from ddpipe.processes.machine import leave

LOOK, ANSWER = 1.0, 5.0  # seconds between two looks at this process; seconds in which all answer
RATIO = 20  # patience, in the longest of the last times between two collectives
FIRST = 16  # collectives after which it is known how long they take: until then, patience is the following
AT_FIRST = 900.0
BUSY, RECENT = 0.05, 30  # share of a processor from which a rank is taken to work; so many looks back
_CLOSE_WAIT = "08"  # in /proc/net/tcp: closed by the other end

OWN_PATIENCE = threading.Event()  # set by a training that knows how long its ranks may wait


def end_if_left_behind() -> None:
    """End this rank, so that its node restarts, if node 0 has restarted since the rendezvous of both.

    torchrun's agents join in a store of node 0's agent, and start their ranks then. All would wait:

        10:00:00  agent 1 joins agent 0, and starts rank 1     rank 0 waits for a machine that is gone
        10:00:05  rank 1 imports torch                         rank 0 fails, and agent 0 restarts
        10:00:10  rank 1 waits in the new store for rank 0     agent 0 waits in it for agent 1

    Then the connection of agent 1 to the store is closed, and its address can be connected to again.
    """
    given = os.environ
    if given.get("GROUP_RANK", "0") == "0" or given.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    host, port = given["MASTER_ADDR"], int(given["MASTER_PORT"])
    with suppress(OSError):  # the agent has ended, or its store is away for a moment, or for good
        if not _has_closed_connection(os.getppid(), port):
            return
        socket.create_connection((host, port), LOOK).close()
        error = TrainingError(
            what="a rank cannot join the others",
            which=f"rank {given['RANK']} of {given['WORLD_SIZE']}",
            seen="node 0 restarted after this rank's node had joined it, and waits for this node",
            do="Restart this node; if restarts are allowed, this happens by itself.",
        )
        _end(str(error))


def _has_closed_connection(process: int, port: int) -> bool:
    """Whether a process has a connection to this port that the other end has closed."""
    own = {str(entry.readlink()) for entry in Path(f"/proc/{process}/fd").iterdir()}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, _, remote, state, _, _, _, _, _, inode, *_ = line.split()
            is_closed = state == _CLOSE_WAIT and int(remote.rpartition(":")[2], 16) == port
            if is_closed and f"socket:[{inode}]" in own:
                return True
    return False


def watch(patience: float, ended: threading.Event) -> None:
    """Watch this rank, which has joined a group, until it or the process with the ranks' store ends."""
    rank, main, calls, named = dist.get_rank(), threading.main_thread().ident, 0, 0.0
    # The store of the group itself: it is there for each way to start one.
    store = PrefixStore("ddpipe-watch", distributed_c10d._get_default_store().clone())  # noqa: SLF001
    store.set(f"host/{rank}", socket.gethostname())
    kept = cast("Any", store)._underlying_non_prefix_store  # noqa: SLF001
    # Nothing is sent by it: it shows that the store is gone, which torch would report at length.
    server = socket.create_connection((kept.host, kept.port)) if isinstance(kept, TCPStore) else None
    before, since, gaps = _groups(), time.monotonic(), deque([0.0], maxlen=FIRST)
    worked = deque[float](maxlen=RECENT)
    while not ended.wait(LOOK) and not OWN_PATIENCE.is_set() and dist.is_initialized():
        if server and select.select([server], [], [], 0)[0]:
            return
        groups, now = _groups(), time.monotonic()
        if has_moved := groups != before:
            gaps.append(now - since)
            before, since = groups, now
            worked.clear()
        worked.append(_work())
        waits = any(begun > done for begun, done in groups.values())
        is_known = sum(done for _, done in groups.values()) >= FIRST
        limit = max(patience, RATIO * max(gaps) if is_known else AT_FIRST)
        if (called := store.add("calls", 0)) > calls:
            if waits or has_moved:
                store.set(f"lost/{rank}", "")
            elif worked[-1] - worked[0] > BUSY * LOOK * len(worked):
                store.set(f"busy/{rank}", "")
            store.set(f"here/{rank}", doing(main))
        elif waits and named != since and now - since > limit and store.add(f"caller/{calls + 1}", 1) == 1:
            called = calls + 1
            _call(store, called, f"it has waited for {now - since:.0f} s in {doing(main)}", ended)
        if called > calls:
            calls, named = called, since
            if not ended.wait(LEAVE) and store.check([f"end/{calls}"]) and _groups() == groups:
                _end(store.get(f"end/{calls}").decode())


def _end(error: str) -> None:
    record(error, TrainingError.exit_code, {})
    leave(TrainingError.exit_code)


def _call(store: PrefixStore, number: int, waits: str, ended: threading.Event) -> None:
    """Name who is missing, and let the ranks end if that may help."""
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(size) if other != rank]
    for key in [f"{kind}/{other}" for other in others for kind in ("here", "lost", "busy")]:
        store.delete_key(key)
    store.set("calls", str(number))
    if ended.wait(ANSWER):
        return
    error = TrainingError(
        what="a rank keeps others waiting",
        which=f"rank {rank} of {size}",
        seen=f"{waits}; {RollCall(store, rank, size).absent('did not enter it')}",
        do="Look at what that rank does; if it may take so long, set DDPIPE_WATCH to more seconds, or 0.",
    )
    count, most = (int(os.environ[f"TORCHELASTIC_{one}"]) for one in ("RESTART_COUNT", "MAX_RESTARTS"))
    if may_end := count < most and not any(store.check([f"busy/{other}"]) for other in others):
        store.set(f"end/{number}", str(error))
    sys.stderr.write(f"{error}{f' In {LEAVE:.0f} s all ranks start again.' if may_end else ''}\n")


def _work() -> float:
    """What this process and its children have done: seconds of a processor, and 10 MB of files as one."""
    done, own = 0.0, str(os.getpid())
    processes = [own]
    with suppress(OSError):  # a kernel without the file, or a process that has ended
        processes += Path(f"/proc/self/task/{own}/children").read_text().split()
    for one in processes:
        with suppress(OSError):
            times = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:15]
            done += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
            _, read, _, written, *_ = Path(f"/proc/{one}/io").read_text().split()
            done += (int(read) + int(written)) / 1e7
    return done


def _groups() -> dict[tuple[int, str], tuple[int, int]]:
    """How many collectives this process has begun and completed in each group."""
    return {
        (recorder, group): (int(at["last_enqueued_collective"]), int(at["last_completed_collective"]))
        for recorder, one in enumerate(recorded(entries=False))
        for group, at in one["pg_status"].items()
    }
