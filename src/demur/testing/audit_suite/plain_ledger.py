"""A second, plain ledger: what may be charged, by arithmetic of its own.

It knows two filters (squares of mu, and sums of pairs), persons with several records,
and reservations. Sums are fractions; a Gaussian's epsilon is that of
`audit.reference_accounting`. A random history is put to it and to `demur.Ledger`; both
must admit and decline the same charges, hand out the same draws, and agree on what was
spent. Charges within a millionth of a budget are left out: there rounding decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from scipy import special

from demur.audit import reference_accounting as reference
from demur.core.accounting.events import GaussianEvent, Pure
from demur.core.adjacency import ReplaceOne
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.entropy import Seeded
from demur.core.errors import DemurError
from demur.ledger import Budget, Ledger

EPSILON, DELTA = 4.0, 1e-6
_CLOSE = 1e-6


@dataclass(frozen=True)
class Ask:
    """One charge: Gaussian noise, or a pure epsilon, `count` times."""

    gaussian: bool
    size: float  # the multiplier, or the epsilon
    count: int
    label: str

    def declared(self) -> Declaration:
        """The same, as a mechanism would declare it at one record."""
        event = GaussianEvent(self.size) if self.gaussian else Pure(self.size)
        return Declaration(
            name=f"plain {self.label}",
            cost=Cost((Fixed(ReplaceOne(), event),)),
            fingerprint=f"plain {self.label}",
        )


@dataclass
class PlainLedger:
    """The plain arithmetic of one budget at ReplaceOne(records)."""

    filter: str
    records: int
    squared_mu: Fraction = Fraction(0)
    epsilon: Fraction = Fraction(0)
    asked: list[Ask] = field(default_factory=list)

    def after(self, ask: Ask) -> tuple[Fraction, Fraction]:
        """What the sums would be with this charge."""
        records, count = self.records, ask.count
        if ask.gaussian:
            mu = Fraction(records) / Fraction(ask.size)
            return self.squared_mu + count * mu * mu, self.epsilon
        epsilon = records * Fraction(ask.size)
        if self.filter == "pure":
            return self.squared_mu, self.epsilon + count * epsilon
        # The mu of a pair of two points with likelihood ratio e^epsilon.
        likely = 1.0 / (1.0 + math.exp(-float(epsilon)))
        mu = Fraction(2.0 * float(special.ndtri(likely)))
        return self.squared_mu + count * mu * mu, self.epsilon

    def use(self, ask: Ask) -> float:
        """The share of the budget that would be used; above 1 it must be declined."""
        squared, epsilon = self.after(ask)
        if self.filter == "pure":
            return float(epsilon / Fraction(EPSILON))
        spent = reference.gaussian_epsilon(math.sqrt(squared), DELTA)
        return spent / EPSILON

    def admit(self, ask: Ask) -> None:
        """Enter the charge."""
        self.squared_mu, self.epsilon = self.after(ask)
        self.asked.append(ask)

    def least_epsilon(self) -> float:
        """A lower bound on what was spent, at DELTA."""
        if not self.asked:
            return 0.0
        if self.filter == "pure":
            return max(
                reference.pure_epsilon(self.records * ask.size, ask.count, DELTA)
                for ask in self.asked
            )
        gaussian = [ask for ask in self.asked if ask.gaussian]
        if not gaussian:
            return 0.0
        mu = math.sqrt(sum(a.count * (self.records / a.size) ** 2 for a in gaussian))
        return reference.gaussian_epsilon(mu, DELTA)


def histories_differ(filter: str, records: int, asks: int, seed: int) -> list[str]:
    """Where `demur.Ledger` and the plain one differ on a random history."""
    rng = np.random.default_rng([seed, records, len(filter)])
    unit = ReplaceOne(records_per_person=records)
    ledger = Ledger(Budget(EPSILON, DELTA), unit=unit, filter=filter)
    plain, differing = PlainLedger(filter, records), []
    source = Seeded(seed)
    for number in range(asks):
        gaussian = filter == "gaussian" and rng.random() < 0.7
        size = float(rng.uniform(6.0, 20.0) if gaussian else rng.uniform(0.02, 0.3))
        size = size * records if gaussian else size / records
        count = int(rng.integers(1, 6)) if rng.random() < 0.4 else 1
        ask = Ask(gaussian, size, count, f"charge {number}")
        share = plain.use(ask)
        if abs(share - 1.0) < _CLOSE:
            continue
        if (why := _asked(ledger, plain, ask, share, source)) is not None:
            differing.append(why)
    if len(ledger.entries()) != len(plain.asked):
        differing.append("the number of entries differs")
    spent, least = ledger.epsilon(), plain.least_epsilon()
    if spent < least * (1.0 - _CLOSE):
        differing.append("the ledger reads less than was spent")
    if spent > EPSILON * (1.0 + _CLOSE):
        differing.append("the ledger reads more than its budget")
    ledger.close()
    return differing


def _asked(
    ledger: Ledger, plain: PlainLedger, ask: Ask, share: float, source: Seeded
) -> str | None:
    before = len(ledger.entries())
    try:
        if ask.count > 1:
            reservation = ledger.paid(
                ask.declared(), count=ask.count, label=ask.label, source=source
            ).reservation
            drawn = reservation.draw_many(ask.count)
            if [draw.index for draw in drawn] != list(range(ask.count)):
                return "draws of a reservation are not numbered one by one"
            if reservation.remaining != 0:
                return "a reservation hands out more than was paid"
            try:
                reservation.draw()
            except DemurError:
                pass
            else:
                return "a reservation hands out more than was paid"
        else:
            ledger.paid(ask.declared(), label=ask.label, source=source)
    except DemurError:
        if share <= 1.0:
            return "a charge that fits is declined"
        spent = len(ledger.entries()) != before
        return "a declined charge is an entry" if spent else None
    plain.admit(ask)
    return None if share <= 1.0 else "a charge beyond the budget is admitted"
