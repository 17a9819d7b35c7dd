"""What a deletion service refuses, by name; each message says what was spent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from sqlalchemy.exc import NoResultFound

from demur.core.errors import DemurError

# What reading text, numbers or a table that are none of ours may raise.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    NoResultFound,
)

Reason: TypeAlias = Literal["privacy", "regret", "numeric"]


class UnknownRecord(DemurError):
    """No record of this id was ever learned here; nothing was spent."""


class RecordMismatch(DemurError):
    """The record given is not the one that was learned; nothing has changed."""


class RecordNeeded(DemurError):
    """This mode must see the record to forget it; nothing was spent."""


class RecordExists(DemurError):
    """A record of this id is live already (or buried); nothing has changed."""


class CapacityExhausted(DemurError):
    """No deletion can be certified any more, and why; nothing was spent."""

    def __init__(self, message: str, reason: Reason, retrain_required: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.retrain_required = retrain_required


class ServiceBusy(DemurError):
    """Another process is the writer of this service."""


class ServiceMismatch(DemurError):
    """The service exists with other terms, or its secret is missing."""


class ServiceDamaged(DemurError):
    """Journal, state or certificates do not agree; nothing may be served."""


@contextmanager
def readable() -> Iterator[None]:
    """Around what is read from disk: text that is none of ours is damage, not a bug."""
    try:
        yield
    except UNREADABLE as error:
        raise ServiceDamaged(
            f"what is stored cannot be read ({type(error).__name__}): it was edited, or"
            " comes from elsewhere. Restore a whole copy."
        ) from error


class SnapshotRefused(DemurError):
    """The snapshot is older than a deletion, or of another service."""
