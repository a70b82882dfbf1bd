"""One rank of a call: `python -m ddpipe.notebook.call FOLDER SHA256`, started by torchrun."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from io import TextIOWrapper
from pathlib import Path

from ddpipe.distributed import rank, run_rank
from ddpipe.notebook.folder import CALL, KEY, OUTPUTS, RANKS, publish
from ddpipe.processes.packing import packed_value, run
from ddpipe.storage import Store, open_store


def main() -> None:
    """Fetch the call, run it, and as rank 0 publish the result."""
    _, uri, sha256 = sys.argv
    if isinstance(sys.stdout, TextIOWrapper):
        # Print whole lines at once: torchrun forwards each write, and ranks would mix within a line.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    run_rank(lambda: _run(open_store(uri), sha256))


def _run(store: Store, sha256: str) -> None:
    key = os.environ.pop(KEY)
    returned = f"{RANKS}{rank()}"
    store.delete(returned)  # an attempt before a restart may have left it
    with tempfile.TemporaryDirectory(prefix="ddpipe-outputs-") as name:
        os.environ["DDPIPE_OUTPUTS"] = name
        value = run(store.read(CALL), sha256)
        if rank() == 0:
            content, outputs = packed_value(value), _uploaded(Path(name), store)
            publish(store, key, sha256, content, outputs, int(os.environ.get("WORLD_SIZE", "1")))
    store.write(returned, b"")


def _uploaded(folder: Path, store: Store) -> dict[str, str]:
    """SHA-256 of each file in the folder, by its path; all of them are uploaded."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            store.upload(path, OUTPUTS + name)
            with path.open("rb") as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


if __name__ == "__main__":
    main()
