"""Kubernetes quantities: "500m" CPUs, "4Gi" of memory."""

from __future__ import annotations

import re

_SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


def quantity(text: str) -> float:
    """A Kubernetes quantity ("500m", "4Gi") as a number."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][0-9]+)?)([A-Za-z]*)", text)
    if not match or match[2] not in _SUFFIXES:
        raise ValueError(text)
    return float(match[1]) * _SUFFIXES[match[2]]
