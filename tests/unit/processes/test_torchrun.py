"""What `import torch` does where ddpipe is installed."""

import os
import threading

import pytest

from ddpipe import torchrun


def test_a_process_that_is_no_rank_is_not_watched_and_leaves_the_wish_to_ranks_that_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DDPIPE_WATCH", "300")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    before = threading.enumerate()
    torchrun.watch_rank()
    assert os.environ["DDPIPE_WATCH"] == "300"
    assert threading.enumerate() == before
