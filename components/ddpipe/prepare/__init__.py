"""Raw data in, a dataset version out: decoded once, into shards that all later steps share."""

from __future__ import annotations

from ddpipe.prepare.prepare import FORMATS, Prepared, PrepareSpec, prepare
from ddpipe.prepare.report import data_report_html
from ddpipe.prepare.sources import SOURCES, Table

__all__ = ["FORMATS", "SOURCES", "PrepareSpec", "Prepared", "Table", "data_report_html", "prepare"]
