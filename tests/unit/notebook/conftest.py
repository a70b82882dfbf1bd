"""What more than one file of these tests needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpipe.storage import Store, open_store


@pytest.fixture
def folder(tmp_path: Path) -> Store:
    """The folder of a launch, still empty."""
    return open_store(str(tmp_path / "one"))
