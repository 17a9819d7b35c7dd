"""Errors of the unlearning engine; each message says whether anything was spent."""

from __future__ import annotations

from typing import Literal, TypeAlias

from demur.core.errors import DemurError

Reason: TypeAlias = Literal["privacy", "regret", "numeric", "rate"]


class UnknownRecord(DemurError):
    """No record of this id was ever learned here; nothing was spent."""


class RecordMismatch(DemurError):
    """The record given is not the one that was learned; nothing has changed."""


class RecordNeeded(DemurError):
    """This mode must see the record to forget it; nothing was spent."""


class RecordExists(DemurError):
    """A record of this id is live, or the id is blocked; nothing has changed."""


class CapacityExhausted(DemurError):
    """No further deletion can be certified, for `reason`; nothing was spent."""

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


class SnapshotRefused(DemurError):
    """The snapshot is older than a deletion, or of another service."""


class CertificateExceeded(DemurError):
    """A mode cannot prove its bound for this deletion; nothing has changed."""


class RecordUsedInCalibration(DemurError):
    """A record that sized the noise cannot be deleted; nothing was spent."""


class DuplicateStaysLive(UserWarning):
    """A deleted record has live copies under other ids: `record_ids`.

    The deletion stands. The message names no id and no content, as warnings end up in
    logs: which live record equals a deleted one would tell what was deleted.
    """

    def __init__(self, message: str, record_ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.record_ids = record_ids


class NoiseGrows(UserWarning):
    """The noise of deletions flips a growing share of answers: time to retrain."""


class IllegalTransition(DemurError, RuntimeError):
    """A call that the current phase does not allow; nothing has changed."""
