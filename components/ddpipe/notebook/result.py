"""What a finished call left: sealed, so that half a result is none."""

from __future__ import annotations

from ddpipe.storage.sealed import Format

RESULT = Format(kind="result", seal="result.json", schema=1, maker="ddpipe.launch")

CALL, SOURCE, VALUE, OUTPUTS = "call", "call.py", "value", "outputs/"
"""Keys in the folder of a call."""
