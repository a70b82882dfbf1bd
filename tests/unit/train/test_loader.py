"""Batches on their way to a GPU, on a machine without one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ddpipe.train.batches import _Copies


def test_a_copy_to_a_gpu_is_pinned_and_overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only pinned memory is copied while the GPU computes, and only without waiting for the copy."""
    calls: list[tuple[str, object]] = []
    stream = SimpleNamespace(record_event=lambda: "copied")

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(("pinned", tensor.dtype))
        return tensor

    def to(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        calls.append((f"{device} {non_blocking}", tensor.dtype))
        return tensor

    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    copies = _Copies(torch.device("cuda", 0))
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    batch, event = copies.begun(np.zeros((2, 4, 4, 1), np.uint8), np.zeros(2, np.int64), 2)
    assert calls == [
        ("pinned", torch.uint8),
        ("pinned", torch.int64),
        ("cuda:0 True", torch.uint8),
        ("cuda:0 True", torch.int64),
    ]
    assert (batch.size, event) == (2, "copied")
