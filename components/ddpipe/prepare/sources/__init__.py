"""Where raw data comes from: one class per kind of source, and the line in `SOURCES` that names it."""

from __future__ import annotations

from ddpipe.prepare.sources.base import Source, Survey, Table, Unreadable
from ddpipe.prepare.sources.named import SOURCES, open_source

__all__ = ["SOURCES", "Source", "Survey", "Table", "Unreadable", "open_source"]
