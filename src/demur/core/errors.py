"""Errors of the ledger and of the core; `demur.errors` lists all of them.

Each message says what was wrong, what to do, and whether anything was spent.
"""

import os
import textwrap
import traceback


class DemurError(Exception):
    """Base of all refusals that are not plain bad arguments (`ValueError`)."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message, in a few lines.

        DEMUR_TRACEBACK=1 shows the traceback.
        """
        if os.environ.get("DEMUR_TRACEBACK"):
            return "".join(traceback.format_exception(self)).splitlines()
        said = " ".join([str(self), *getattr(self, "__notes__", ())])
        return textwrap.wrap(f"{type(self).__name__}: {said}", 120)


class NotCovered(DemurError):
    """No cost or sensitivity is stated at the unit that was asked about."""


class NotPriced(DemurError):
    """An event has no price under this accountant or filter."""


class BudgetExceeded(DemurError):
    """A charge was declined: nothing was spent, and nothing was drawn."""


class NotPrivate(DemurError):
    """The result would not be private, as with seeded noise in a durable ledger."""


class NoiseReuse(DemurError):
    """Noise was to be drawn a second time, or outside the process that owns it."""


class EntryCommitted(NoiseReuse):
    """An entry is finished and its key is wiped: its result was released."""


class NotPaidFor(NoiseReuse):
    """A key was used for a mechanism or an input that it was not paid for."""


class KeysExposed(DemurError):
    """Others could have read or changed a folder or a file of secrets."""


class LedgerMismatch(DemurError):
    """The ledger at this address has other terms than those asked for."""


class LedgerMissing(LedgerMismatch):
    """There is no ledger at this address, and none was asked to be made."""


class LedgerDamaged(DemurError):
    """A ledger does not verify: a row was edited, removed, reordered or cut off."""


class IdempotencyConflict(DemurError):
    """An idempotency key was used before for another charge; nothing was spent."""


class LedgerUnreachable(DemurError):
    """The ledger's store did not answer, which may pass; this step spent nothing."""


class LedgerRefused(DemurError):
    """The store refuses this client (grant, role, database): waiting does not help."""


class OutcomeUnknown(DemurError):
    """The answer to a commit was lost: repeat with the same idempotency key."""


class ApprovalPending(DemurError):
    """A charge waits for approval: `number` is its request; nothing was spent."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number


class ApprovalDeclined(DemurError):
    """Somebody declined a request for approval: nothing was spent."""


class AccessRefused(DemurError):
    """A service refused a token: it is unknown, expired, or not for this."""


class AlreadyDecided(DemurError):
    """A request for approval has a decision already, and keeps it."""


class DatasetsInWrongOrder(ValueError):
    """The two datasets of a replay must be swapped: the larger one comes first."""
