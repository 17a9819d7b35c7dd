"""Charges of a deletion service: each deletion is in the ledger before its noise.

A deletion is one charge at `Erasure`, under the name of its operation. The noise key
that the ledger makes for it exists in this process's memory alone and is handed out
once. So a deletion that dies between its charge and its commit can never be drawn
again, by anybody: the charge stays, and a second attempt is another operation that pays
anew.

A service without a ledger keeps its own ledger beside it. Under a scope in which costs
add up, every epoch has a ledger of its own (a model trained anew starts a new budget);
the older ledgers stay where they are.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from demur.core.adjacency import Erasure
from demur.core.declaration import Declaration
from demur.core.entropy import OsEntropy, Source
from demur.core.entry import PAYS_PER_PERSON, Entry, deletion_key
from demur.core.errors import (
    BudgetExceeded,
    IdempotencyConflict,
    LedgerMismatch,
    NotPrivate,
)
from demur.ledger import GaussianMeter, Ledger, Payment, checked_ledger
from demur.unlearning.errors import CapacityExhausted
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.records.journal import PUBLICATION
from demur.unlearning.service.state import ServiceState

_OS = OsEntropy()
Kind: TypeAlias = Literal["deletion", "publication"]


def ledger_path(path: Path, epoch: int, composes: bool) -> Path:
    """The file of a service's own ledger of an epoch."""
    return path.with_name(f"{path.name}.ledger-{epoch if composes else 1}")


def ledgers_beside(path: Path) -> list[Path]:
    """The service's own ledgers that are there, of all epochs."""
    named = path.parent.glob(f"{glob.escape(path.name)}.ledger-*")
    return sorted(p for p in named if p.name.rpartition("-")[2].isdigit())


def later_ledger(path: Path, epoch: int) -> bool:
    """Whether there is a ledger of an epoch after this one."""
    return any(int(p.name.rpartition("-")[2]) > epoch for p in ledgers_beside(path))


def check_shared(given: object, terms: ServiceTerms, prices: DeletionPrices) -> Ledger:
    """A ledger that can carry a service, or the reason why it cannot."""
    ledger = checked_ledger(given)
    assert ledger is not None
    if not ledger.durable:
        raise LedgerMismatch(
            "a durable service needs a durable ledger: Ledger.open(...). Nothing was"
            " spent."
        )
    if terms.testing and not ledger.terms.testing:
        raise NotPrivate(
            "a service with a seeded noise source is for tests, and this ledger is not:"
            " open one with testing=True. Nothing was spent."
        )
    if not any(isinstance(unit, Erasure) for unit, _ in ledger.terms.budgets):
        raise LedgerMismatch(
            "this ledger has no budget at Erasure(), which is what deletions cost."
            " Nothing was spent."
        )
    if prices.publications is not None:
        unit = prices.publications.publications.unit
        if not any(unit.covers(budgeted) for budgeted, _ in ledger.terms.budgets):
            raise LedgerMismatch(
                f"this ledger has no budget at {unit}, which is what published copies"
                " cost. Nothing was spent."
            )
        for budgeted, _ in ledger.terms.budgets:
            if not isinstance(budgeted, Erasure) and not unit.covers(budgeted):
                raise LedgerMismatch(
                    f"this ledger has a budget at {budgeted}, where a published copy"
                    " has no price: it would decline them all. Nothing was spent."
                )
    gaussian = any(isinstance(m, GaussianMeter) for m in ledger.terms.filter.meters)
    if gaussian and terms.accounting != "gdp" and not prices.exact:
        raise LedgerMismatch(
            f"this ledger adds up squares of mu, and this service composes its"
            f" deletions by {terms.accounting!r}: open a ledger with filter='rdp', or"
            " the service with accounting='gdp' where its theorem proves that. Nothing"
            " was spent."
        )
    return ledger


def own_dataset(service_id: str) -> str:
    """What the ledger of a service's own is about."""
    return f"deletion service {service_id}"


def _of_service(service_id: str) -> str:
    return f" of service {service_id}"


def _entries(ledger: Ledger, service_id: str, kinds: Sequence[Kind]) -> list[Entry]:
    return [
        entry
        for entry in ledger.entries()
        if entry.label.startswith(tuple(f"{kind} " for kind in kinds))
        and entry.label.endswith(_of_service(service_id))
    ]


def recorded_entries(ledger: Ledger, service_id: str) -> set[str]:
    """The entries of a service's operations, the budget per person aside."""
    return {entry.id for entry in _entries(ledger, service_id, get_args(Kind))}


def newest_committed(ledger: Ledger, service_id: str) -> Entry | None:
    """The newest operation of a service in a ledger, if its outcome is bound there."""
    entries = _entries(ledger, service_id, get_args(Kind))
    if not entries or ledger.commit_of(entries[-1]) is None:
        return None
    return entries[-1]


def is_committed(ledger: Ledger, service_id: str, operation: str) -> bool:
    """Whether a ledger has an entry of this operation, bound to an outcome."""
    entry = ledger.find(deletion_key(service_id, operation))
    return entry is not None and ledger.commit_of(entry) is not None


def publication_entries(ledger: Ledger, service_id: str) -> list[Entry]:
    """The entries of a service's published copies."""
    return _entries(ledger, service_id, (PUBLICATION,))


class DeletionCharges:
    """The charges of one service to one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        prices: DeletionPrices,
        service_id: str,
        *,
        own: bool,
        source: Source = _OS,
    ) -> None:
        self.ledger, self.prices, self.own = ledger, prices, own
        self._service, self._source = service_id, source
        self.budget_per_person: Entry | None = None
        if prices.per_person:
            try:
                self.budget_per_person = ledger.paid(
                    prices.budget_per_person(),
                    label="deletion budget per person",
                    idempotency_key=self._name(PAYS_PER_PERSON),
                    source=source,
                ).entry
            except BudgetExceeded as error:
                raise CapacityExhausted(
                    f"the ledger cannot carry this service: {error}",
                    "privacy",
                    retrain_required=False,
                ) from error

    @classmethod
    def own_ledger(
        cls, url: str, state: ServiceState, prices: DeletionPrices, keys: Path
    ) -> DeletionCharges:
        """Charges to the service's own ledger of this epoch.

        It lies beside a service in a file, or in the service's database.
        """
        path, composes = state.database.path, not prices.per_person
        ledger = Ledger.open(
            url if path is None else ledger_path(path, state.epoch, composes),
            dataset=own_dataset(state.id),
            budgets=prices.budgets,
            filter=prices.filter,
            keys=keys / "ledger" if path is None else None,
            testing=state.terms.testing,
            signing_key=state.signer,
        )
        return cls(ledger, prices, state.id, own=True, source=state.source)

    def _name(self, operation: str) -> str:
        return deletion_key(self._service, operation)

    def _label(self, operation: str, kind: Kind) -> str:
        return f"{kind} {operation[:8]}{self._suffix}"

    @property
    def _suffix(self) -> str:
        return _of_service(self._service)

    def recorded(self) -> set[str]:
        """The entries of this service's operations, the budget per person aside."""
        return recorded_entries(self.ledger, self._service)

    def paid(
        self, declaration: Declaration, operation: str, kind: Kind = "deletion"
    ) -> Payment:
        """Charge an operation, durably, before its noise exists.

        The key of its noise exists in this process alone, and is handed out once.
        """
        try:
            return self.ledger.paid(
                declaration,
                label=self._label(operation, kind),
                idempotency_key=self._name(operation),
                source=self._source,
            )
        except BudgetExceeded as error:
            raise CapacityExhausted(
                f"the ledger declines: {error}", "privacy", retrain_required=True
            ) from error

    def find(self, operation: str) -> Entry | None:
        """The entry of an operation; None means that there will not be one either."""
        return self.ledger.find(self._name(operation), settled=True)

    @contextmanager
    def ledger_of(self, state: ServiceState, epoch: int) -> Iterator[Ledger]:
        """The ledger that was charged in an epoch, or this one if that was put away."""
        path, composes = state.database.path, not self.prices.per_person
        with ExitStack() as earlier:
            charged = self.ledger
            if self.own and path is not None and composes and epoch != state.epoch:
                file = ledger_path(path, epoch, composes)
                if file.exists():
                    charged = earlier.enter_context(
                        Ledger.open(file, signing_key=state.signer)
                    )
            yield charged

    def block_charge(self, operation: str) -> None:
        """Charge an empty entry in place of an operation's, unless it was recorded.

        A writer that lost its lock between its intent and its charge may still run, and
        its entry would be missing in every journal. Now its charge is refused.
        """
        if self.find(operation) is None:
            # A conflict: it was faster, and is recorded after all.
            with suppress(IdempotencyConflict):
                self.paid(self.prices.blocked_operation(), operation)

    def close(self) -> None:
        """Close the ledger if it is the service's own."""
        if self.own:
            self.ledger.close()
