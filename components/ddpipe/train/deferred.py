"""Networks larger than the memory of a process: their large tensors are elsewhere while they are built.

Rank 0 initializes them in files that are mapped into its memory, which the system may write to disk and read
again; on the other ranks they have shapes and no values (torch's meta device). Each rank then receives its
share, tensor by tensor (fully_sharded.py). The values are those that they would have in memory: the same
random numbers are drawn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

LARGE = 2**16
"""Values from which on a rank does not hold a tensor of which it needs a share only."""

_CREATORS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
"""What networks create their weights and buffers with."""


class LargeOnMeta(TorchFunctionMode):
    """Large tensors that are created in this block have a shape and no values."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401 - torch's protocol
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Create a tensor, or call any other function of torch."""
        del types
        given = kwargs or {}
        if func in _CREATORS and given.get("device") is None:
            outline = func(*args, **{**given, "device": "meta"})
            if outline.numel() >= LARGE:
                return self._placed(outline, lambda: func(*args, **given), has_values=func is not torch.empty)
        return func(*args, **given)

    def _placed(self, outline: Tensor, create: Callable[[], Tensor], *, has_values: bool) -> Tensor:
        del create, has_values
        return outline


class LargeInFiles(LargeOnMeta):
    """Large tensors that are created in this block lie in files, which are gone when the tensors are."""

    def _placed(self, outline: Tensor, create: Callable[[], Tensor], *, has_values: bool) -> Tensor:
        with tempfile.TemporaryDirectory(prefix="ddpipe-weights-") as folder:
            file = str(Path(folder) / "tensor")
            mapped = torch.from_file(file, shared=True, size=outline.numel(), dtype=outline.dtype)
        tensor = mapped.view(outline.shape)
        if has_values:
            tensor.copy_(create())
        return tensor.requires_grad_(outline.requires_grad)
