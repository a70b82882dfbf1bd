"""One rank of a call: `python -m ddpipe.notebook.call FOLDER SHA256`, started by torchrun."""

from __future__ import annotations

import os
import sys
import tempfile
from io import TextIOWrapper
from pathlib import Path

from ddpipe.distributed import rank, run_rank
from ddpipe.notebook.packing import packed_value, run
from ddpipe.notebook.result import CALL, OUTPUTS, RESULT, VALUE
from ddpipe.storage import Store, open_store


def main() -> None:
    """Fetch the call, run it, and as rank 0 leave what came of it."""
    _, uri, sha256 = sys.argv
    if isinstance(sys.stdout, TextIOWrapper):
        # What is printed is seen at once, and in whole lines: by torchrun each piece is written by itself.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    run_rank(lambda: _work(open_store(uri), sha256))


def _work(store: Store, sha256: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ddpipe-outputs-") as name:
        os.environ["DDPIPE_OUTPUTS"] = name
        value = run(store.read(CALL), sha256)
        if rank():
            return
        content, folder = packed_value(value), Path(name)
        keys = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
        for key in keys:
            store.upload(folder / key, OUTPUTS + key)
        RESULT.publish(store, {VALUE: content}, {"outputs": keys})


if __name__ == "__main__":
    main()
