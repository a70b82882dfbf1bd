"""Whether the same training gives the same bits, and what is reported where an operation prevents it.

A resumed training equals an uninterrupted one bit for bit only if every operation is deterministic. On a GPU
some have no such kernel: adaptive pooling to more than one pixel (AlexNet, VGG) is the most common one.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic

from ddpipe.errors import ParameterError
from ddpipe.train.choices import Determinism

_NONDETERMINISTIC = re.compile(
    r"(.+?) (?:does not have a deterministic implementation|defaults to a non-deterministic algorithm)"
)
"""How torch's errors and warnings begin, with the name of the operation."""

_log = logging.getLogger(__name__)


@contextmanager
def determinism(how: Determinism, network: str, *, compiled: bool) -> Iterator[None]:
    """Prefer deterministic kernels within this block."""
    before = _settings()
    # cuBLAS reads this when it starts; without it, torch rejects deterministic operations on a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Every value of a new tensor is written before it is read: filling it first costs 4 % of a step.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_deterministic_debug_mode(_DEBUG_MODES[how])
    if compiled:
        _let_compiler_be_deterministic(how is not Determinism.FALSE)
    try:
        with _reporting_once():
            yield
    except (RuntimeError, ParameterError) as error:
        # The trial of a user's own network reports what torch raised as the cause of its own error.
        if not (found := _NONDETERMINISTIC.match(str(error.__cause__ or error))):
            raise
        raise ParameterError(
            what="training cannot be deterministic",
            which=f"model {network!r}",
            seen=f"{found[1]} has no deterministic kernel on this device",
            do="Set deterministic to auto, or choose another model.",
        ) from error
    finally:
        _restore(*before)


_DEBUG_MODES = {Determinism.AUTO: "warn", Determinism.TRUE: "error", Determinism.FALSE: "default"}


def _let_compiler_be_deterministic(wanted: bool) -> None:
    """Set what `torch.use_deterministic_algorithms` sets, which takes seconds to import the compiler."""
    from torch._inductor import config  # noqa: PLC0415 - only who compiles waits for it

    config.deterministic = wanted


def _settings() -> tuple[Any, ...]:
    filling = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    return torch.get_deterministic_debug_mode(), filling


def _restore(mode: int, fill: bool) -> None:
    torch.set_deterministic_debug_mode(mode)
    deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


@contextmanager
def _reporting_once() -> Iterator[None]:
    """Log torch's warning about an operation once, with its consequence."""
    reported: set[str] = set()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_NONDETERMINISTIC.pattern)
        show = warnings.showwarning

        def report(message: Warning | str, *rest: Any) -> None:  # noqa: ANN401 - as Python calls it
            found = _NONDETERMINISTIC.match(str(message))
            if not found:
                show(message, *rest)
            elif found[1] not in reported:
                reported.add(found[1])
                _log.warning(
                    "%s has no deterministic kernel on this device: a resumed training will not be "
                    "bit for bit the same as an uninterrupted one",
                    found[1],
                )

        warnings.showwarning = report  # type: ignore[assignment]
        yield
