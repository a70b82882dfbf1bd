"""Timestamps of a table's rows."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(value: str) -> datetime | None:
    """The time of a cell in a form of ISO 8601, in UTC unless it says otherwise; None for anything else."""
    try:
        time = datetime.fromisoformat(value)
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
