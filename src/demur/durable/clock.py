"""The clock: times of rows, as text."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
