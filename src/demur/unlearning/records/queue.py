"""The queue of deletion requests that wait: why, since when, and until when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.durable.clock import now
from demur.unlearning.errors import ServiceDamaged
from demur.unlearning.records import tables
from demur.unlearning.records.row_fields import is_time

# One month (GDPR Art. 12(3)); the shortest month that is not a February.
ONE_MONTH = timedelta(days=30)
INTERRUPTED = "interrupted"
_REASONS = ("privacy", "regret", "numeric", "rate", INTERRUPTED)


@dataclass(frozen=True)
class QueuedRequest:
    """A deletion that could not be carried out yet; the record is still in the model.

    `reason` is "privacy", "regret", "numeric" or "rate" (see `CapacityExhausted`), or
    "interrupted" for one that a crash cut short. `limits` are those that were named
    when it was made (`ServiceLimits`), as text.
    """

    record: str
    generation: int
    requested: str
    deadline: str
    reason: str
    limits: str | None = None

    @property
    def overdue(self) -> bool:
        """Whether the deadline has passed."""
        return datetime.fromisoformat(self.deadline) < datetime.now(UTC)


def deadline_text(deadline: datetime | timedelta | None) -> str:
    """A deadline as text; default one month from now."""
    if deadline is None:
        deadline = ONE_MONTH
    if isinstance(deadline, timedelta):
        try:
            deadline = datetime.now(UTC) + deadline
        except OverflowError:
            raise ValueError(
                f"deadline must lie before the year 10000; got {deadline} from now."
                " Nothing was spent."
            ) from None
    if not isinstance(deadline, datetime):
        raise TypeError(
            f"deadline must be a datetime or a timedelta; got {deadline!r:.40}"
        )
    if deadline.tzinfo is None:
        raise ValueError("deadline must say its time zone, as in datetime.now(UTC)")
    return deadline.astimezone(UTC).isoformat(timespec="milliseconds")


def put(
    connection: Connection,
    pseudonym: str,
    generation: int,
    deadline: str,
    reason: str,
    limits: str | None = None,
) -> QueuedRequest:
    """Let a request wait; one that waits already keeps its first deadline and limits.

    `limits` are those that the owner named for it, as text.
    """
    statement = sa.select(tables.queue).where(tables.queue.c.pseudonym == pseudonym)
    row = connection.execute(statement).one_or_none()
    if row is not None:
        return _queued(row)
    queued = QueuedRequest(pseudonym, generation, now(), deadline, reason, limits)
    connection.execute(
        tables.queue.insert().values(
            pseudonym=pseudonym,
            generation=generation,
            requested=queued.requested,
            deadline=deadline,
            reason=reason,
            limits=limits,
        )
    )
    return queued


def waiting(connection: Connection) -> list[QueuedRequest]:
    """Every request that waits, the most urgent first."""
    table = tables.queue
    statement = sa.select(table).order_by(table.c.deadline)
    return [_queued(row) for row in connection.execute(statement)]


def _queued(row: Any) -> QueuedRequest:
    times = is_time(row.requested) and is_time(row.deadline)
    if not times or row.reason not in _REASONS or not isinstance(row.generation, int):
        raise ServiceDamaged(
            "a request in the queue is none that a service writes: it was edited, or"
            " comes from elsewhere. Restore a whole copy."
        )
    return QueuedRequest(
        row.pseudonym,
        row.generation,
        row.requested,
        row.deadline,
        row.reason,
        row.limits,
    )
