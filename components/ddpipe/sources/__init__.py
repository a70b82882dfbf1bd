"""Reads raw data: which samples a source has, and the pixels of each; one class per kind of source.

A source is a file here and a line in `SOURCES`.
"""

from __future__ import annotations

from ddpipe.sources.base import Source, Survey, Table, Unreadable
from ddpipe.sources.named import SOURCES, open_source

__all__ = ["SOURCES", "Source", "Survey", "Table", "Unreadable", "open_source"]
