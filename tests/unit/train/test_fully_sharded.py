"""What of a checkpoint travels to all ranks under fsdp."""

from __future__ import annotations

import torch

from ddpipe.model.checkpoint import Checkpoint
from ddpipe.train.fully_sharded import LARGE, outlined


def test_large_tensors_of_a_checkpoint_stay_on_rank_0() -> None:
    large, small = torch.ones(LARGE), torch.ones(3)
    states = {"model": {"w": large, "b": small}, "optimizer": {"state": {0: {"m": large, "step": 3}}}}
    checkpoint = Checkpoint(
        *(),
        step=1,
        epoch=1,
        recipe={},
        dataset_id="",
        network={},
        world_size=1,
        states=states | {"metrics": large},
        history=[],
    )
    sent = outlined(checkpoint).states
    assert sent["model"]["w"].is_meta
    assert sent["model"]["w"].shape == large.shape
    assert sent["optimizer"]["state"][0]["m"].is_meta
    assert sent["optimizer"]["state"][0]["step"] == 3
    assert torch.equal(sent["model"]["b"], small)
    assert sent["metrics"] is large
    assert checkpoint.states["model"]["w"] is large
