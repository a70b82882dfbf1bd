"""What a rank leaves in the folder of its launch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ddpipe.notebook.call import _uploaded
from ddpipe.notebook.result import OUTPUTS
from ddpipe.storage import open_store


def test_outputs_are_uploaded_with_their_hashes(tmp_path: Path) -> None:
    contents = {"model.bin": b"\r\n\0\xff", "plots/loss.svg": b"<svg/>"}
    for name, content in contents.items():
        path = tmp_path / "outputs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    store = open_store(str(tmp_path / "launch"))
    hashes = _uploaded(tmp_path / "outputs", store)
    assert hashes == {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    assert {name: store.read(OUTPUTS + name) for name in contents} == contents
