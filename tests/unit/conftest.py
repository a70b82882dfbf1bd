"""What the unit tests of several commands share: a pipeline server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A pipeline server that commands talk to without pauses, and no Kubernetes or store."""
    import kfp_server  # noqa: PLC0415 - kfp takes a second, and few tests need it

    from ddpipe.engine import runs  # noqa: PLC0415 - as above

    monkeypatch.setattr(runs, "_PAUSE", 0)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    monkeypatch.delenv("S3_ENDPOINT", raising=False)
    with kfp_server.running() as made:
        monkeypatch.setenv("KFP_ENDPOINT", made.url)
        yield made
