"""Every refusal of demur, by name; each message says whether anything was spent."""


class DemurError(Exception):
    """Base of all refusals that are not plain bad arguments (`ValueError`)."""


class NotCovered(DemurError):
    """A unit was asked about that the statement at hand says nothing about."""


class NotPriced(DemurError):
    """An event has no price under the accountant or filter that was asked."""


class BudgetExceeded(DemurError):
    """A charge was declined; nothing was spent and nothing may be released."""


class NotPrivate(DemurError):
    """A seeded noise source met a place that promises privacy."""


class NoiseReuse(DemurError):
    """The same noise was asked for twice, or outside the process that owns it."""


class NotPaidFor(NoiseReuse):
    """A key was to draw for a mechanism or an input that it was not paid for."""


class LedgerMismatch(DemurError):
    """A ledger exists already with other terms than those asked for."""


class LedgerDamaged(DemurError):
    """A ledger does not verify: a row was edited, removed, reordered or cut off."""


class IdempotencyConflict(DemurError):
    """An idempotency key was used again for something else; nothing was spent."""


class LedgerUnreachable(DemurError):
    """The ledger's store did not answer in time; this step spent nothing."""


class OutcomeUnknown(DemurError):
    """The answer to a commit was lost: repeat with the same idempotency key."""
