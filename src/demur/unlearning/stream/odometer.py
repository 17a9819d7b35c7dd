"""The privacy odometer of deletions: how many the budget pays for, and their noise.

It is sized once (`finalize_with`), pays for all its deletions at once in the ledger, at
the unit `Erasure`, and hands them out one by one: `spend()` is durable before the noise
of that deletion exists. In the terms of Rogers, Roth, Ullman and Vadhan 2016 it is a
*filter*: it has a budget and halts. It keeps the seed's name.

**Scope.** Under "joint" the neighbouring datasets differ in all deleted records, and m
deletions compose. Under "subject" they differ in one person's records; the noise of
everybody else's deletions is the same in both, so the budget is spent by that person's
own requests alone (`requests_per_subject`, see `pricing.budget`) and only regret limits
the number of deletions. What adds up is for the mode's theorem to say
(`Theorem.composition`): a mode that noises its published copy pays for every copy.

**In the ledger.** Where m Gaussians compose, m draws of one Gaussian are reserved, and
a request of k records takes k of them (`pricing.budget`). Where they do not, or where a
mode's theorem does not prove Gaussian composition, the promise is one entry, and a
second one of price nothing counts the deletions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

from demur.core import validate
from demur.core.adjacency import Erasure
from demur.core.entropy import OsEntropy, Source
from demur.core.entry import Entry
from demur.core.errors import NotPaidFor
from demur.core.rounding import product_up
from demur.ledger import (
    Draw,
    Ledger,
    Payment,
    checked_ledger,
    ledger_or_in_memory,
)
from demur.unlearning.errors import CapacityExhausted, IllegalTransition
from demur.unlearning.models.base import Accounting, Mode, Scope
from demur.unlearning.pricing import capacity, odometer_plan, stream_constants
from demur.unlearning.pricing.budget import DeletionPrice
from demur.unlearning.pricing.calibrator import Formula
from demur.unlearning.pricing.noise import (
    DrawnNoise,
    NoiseNeed,
    draw_noise,
    mechanism_for,
    noise_fingerprint,
)
from demur.unlearning.pricing.odometer_plan import OdometerPlan, OdometerTerms
from demur.unlearning.pricing.stream_constants import StreamConstants

logger = logging.getLogger(__name__)


class PrivacyOdometer:
    """Sizes, pays for and counts deletions.

    >>> odometer = PrivacyOdometer(1.0, 1e-5, lam=0.1, gamma=2.0, scope="joint")
    >>> odometer.finalize_with({"G": 1.0, "D": 1.0, "c": 1.0, "C": 1.0}, 10**6)
    >>> odometer.deletion_capacity, round(odometer.z, 2)
    (35, 22.07)
    >>> draw = odometer.spend()
    >>> odometer.capacity_remaining, 0.0 < odometer.epsilon_spent < 0.2
    (34, True)
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        lam: float,
        delta_B: float = 0.05,
        T: int = 100000,
        gamma: float = 0.05,
        *,
        accounting: Accounting | None = None,
        formula: Formula = "consistent",
        scope: Scope = "subject",
        ledger: Ledger | None = None,
        requests_per_subject: int | None = None,
        label: str = "deletions",
        source: Source | None = None,
    ) -> None:
        """`accounting` is "gdp" unless said otherwise, "basic" under formula="seed"."""
        default: Accounting = "basic" if formula == "seed" else "gdp"
        self.terms = OdometerTerms(
            epsilon,
            delta,
            lam,
            delta_B,
            T,
            gamma,
            accounting or default,
            formula,
            scope,
            requests_per_subject,
        )
        validate.name(label=label)
        checked_ledger(ledger)
        self.label = label
        self.ledger = ledger
        self.deletion_capacity = 0
        self.deletions_made = 0
        self.capacity_used = 0
        self.plan: OdometerPlan | None = None
        self.constants: StreamConstants | None = None
        self._most_requests = 0  # of one person
        self._status = "not finalised"
        self._source: Source = source or OsEntropy()
        self._mode: Mode | None = None
        self._promise: Payment | None = None
        self._payment: Payment | None = None
        self._multipliers: dict[int, float] = {}  # of the draws of spend()
        self._drawn = 0  # of the reservation
        self._lock = threading.Lock()

    # -- sizing ----------------------------------------------------------------

    def bind(self, mode: Mode) -> None:
        """Stand for this mode's deletions; refuse what its theorem does not cover."""
        if self._mode is not None and self._mode is not mode:
            raise ValueError(
                "this odometer counts the deletions of another model: one budget, one"
                " model. Make a new odometer."
            )
        self.terms.check_mode(mode)
        self._mode = mode

    def finalize_with(
        self,
        stats: Mapping[str, float],
        T_estimate: int,
        *,
        gamma_priv: float | None = None,
    ) -> None:
        """Solve for the capacity over `T_estimate` events, and reserve it all.

        `gamma_priv` replaces the `gamma` that the odometer was made with.
        """
        with self._lock:  # twice at once would be two reservations
            self._finalize_with(stats, T_estimate, gamma_priv)

    def _finalize_with(
        self, stats: Mapping[str, float], T_estimate: int, gamma_priv: float | None
    ) -> None:
        if self.finalised:
            raise IllegalTransition(
                "this odometer is finalised: a second time would be a second budget."
                " After a drift use recalibrate_with. Nothing was spent."
            )
        validate.count(T_estimate=T_estimate)
        terms = self.terms.over(int(T_estimate))
        if gamma_priv is not None:
            terms = replace(terms, gamma=gamma_priv)
        sizes = self._constants(stats)
        solved = odometer_plan.solve(terms, sizes)
        if solved.m:
            self._pay(terms, sizes, solved)
        self.terms, self.constants, self.plan = terms, sizes, solved
        self.deletion_capacity = solved.m
        self._status = "degenerate" if solved.degenerate else "ready"
        if solved.degenerate:
            self._warn_degenerate()

    def recalibrate_with(self, stats: Mapping[str, float]) -> None:
        """Take new constants into account. Nothing is paid, and nothing is won.

        The multiplier was paid for and stays; the capacity can only fall.
        """
        paid = self._finalised_plan()
        self.constants = sizes = self._constants(stats)
        if paid.m == 0 or sizes.exact:
            return
        self.plan = replace(paid, sigma_step=product_up(paid.z, sizes.shift))
        allowed = capacity.largest_count(
            lambda m: odometer_plan.within_regret(self.terms, sizes, m, paid.z),
            self.terms.T,
        )
        limit = max(self.capacity_used, allowed)
        if limit < self.deletion_capacity:
            self.deletion_capacity = limit
            self._status = "ready" if self.capacity_remaining else "degenerate"

    def _constants(self, stats: Mapping[str, float]) -> StreamConstants:
        if self._mode is None:
            return stream_constants.constants_from_stats(stats, self.lam)
        return stream_constants.constants_from_mode(self._mode, stats, self.lam)

    def _pay(
        self, terms: OdometerTerms, sizes: StreamConstants, solved: OdometerPlan
    ) -> None:
        entries = odometer_plan.ledger_entries(terms, sizes, solved)
        ledger = ledger_or_in_memory(
            self.ledger, entries.budget, unit=Erasure(), filter=entries.filter
        )
        if entries.promise is not None:
            self._promise = ledger.paid(
                entries.promise,
                label=f"{self.label}: the promise",
                source=self._source,
            )
        self._payment = ledger.paid(
            entries.draws, count=solved.m, label=self.label, source=self._source
        )
        self.ledger = ledger

    def _warn_degenerate(self) -> None:
        logger.warning(
            "regret budget: not even one deletion keeps the average regret over %d"
            " events at gamma = %g. Raise gamma, or learn longer.",
            self.terms.T,
            self.terms.gamma,
        )
        if self.deletion_capacity == 1:
            logger.warning("Capacity is 1; next delete forces retrain")
        else:
            logger.warning("Capacity is 0; a deletion needs a retrain")

    # -- spending --------------------------------------------------------------

    @property
    def finalised(self) -> bool:
        """Whether the capacity is known."""
        return self.plan is not None

    @property
    def entry(self) -> Entry | None:
        """The entry that carries the cost of the deletions; None before it is paid."""
        payment = self._promise or self._payment
        return None if payment is None else payment.entry

    @property
    def capacity_remaining(self) -> int:
        """How many deletions are left (see `price`)."""
        return self.deletion_capacity - self.capacity_used

    @property
    def ready_to_delete(self) -> bool:
        """Finalised, and something is left."""
        return self.finalised and self.capacity_remaining > 0

    def require_ready(self, deletions: int = 1) -> None:
        """Refuse where not so many deletions are left; nothing is spent."""
        if not self.finalised:
            raise CapacityExhausted(
                "the odometer is not finalised: call odometer.finalize_with(stats,"
                " T_estimate=...) after warm-up. Nothing was spent.",
                reason="privacy",
                retrain_required=False,
            )
        if self.capacity_remaining >= deletions:
            return
        # Where all deletions compose, one more would exceed epsilon at the noise that
        # was paid for; where they do not, it is only their noise that adds up.
        per_subject = self._finalised_plan().per_subject
        regret = self._status == "degenerate" or per_subject
        raise CapacityExhausted(
            f"{self.capacity_used} of {self.deletion_capacity} deletions are made and"
            f" {deletions} more asked for: {'regret' if regret else 'epsilon'} allows"
            " no more. Retrain without the record. Nothing was spent.",
            reason="regret" if regret else "privacy",
            retrain_required=True,
        )

    def price(self, request: int = 1, records: int = 1) -> DeletionPrice:
        """What a person's request number `request` takes, of so many records."""
        solved = self._finalised_plan()
        assert self.constants is not None
        return odometer_plan.request_price(
            self.terms, self.constants, solved, request=request, records=records
        )

    def multiplier(self, request: int = 1, records: int = 1) -> float:
        """sigma / shift of such a request."""
        return self.price(request, records).multiplier

    def spend(self, request: int = 1, records: int = 1) -> Draw:
        """Take a deletion out of the reservation, durably; then draw its noise.

        `request` counts the requests of the person who asks. Where deletions compose,
        several records take as many draws, and the first of them draws the noise.
        """
        with self._lock:
            self.require_ready()
            price = self.price(request, records)
            self.require_ready(price.used)
            assert self._payment is not None and self.constants is not None
            composed = odometer_plan.composition(self.terms, self.constants)
            count = 1 if composed == "nothing" else price.used
            draw = self._payment.reservation.draw_many(count)[0]
            self._multipliers[draw.index] = price.multiplier
            self._drawn += count
            self.deletions_made += 1
            self.capacity_used += price.used
            self._most_requests = max(self._most_requests, request)
        if self.capacity_remaining == 1:
            logger.warning("Capacity is 1; next delete forces retrain")
        return draw

    def noise_scale(
        self, shift: float | None = None, *, request: int = 1, records: int = 1
    ) -> float:
        """sigma for a deletion: z times its shift (default: that of sizing)."""
        solved = self._finalised_plan()
        if shift is None:
            return solved.sigma_step
        validate.non_negative(shift=shift)
        return product_up(self.multiplier(request, records), float(shift))

    def noise(self, draw: Draw, shift: float, dimension: int) -> DrawnNoise:
        """The noise of a draw, on a grid; `check_shift` first, as it can refuse."""
        if self._payment is None or draw.entry.id != self._payment.entry.id:
            raise NotPaidFor(
                "this draw is of another entry: take one from this odometer's spend()."
                " Nothing was drawn."
            )
        multiplier = self._multipliers.get(draw.index)
        if multiplier is None:
            raise NotPaidFor(
                f"draw {draw.index} has not been taken from the reservation: take one"
                " from spend(). Nothing was drawn."
            )
        paid_as = noise_fingerprint(self._finalised_plan().z)
        key = self._payment.key.authorise(
            paid_as, draw=draw.index, runs=self._payment.entry.count
        )
        mechanism = mechanism_for([NoiseNeed(multiplier, shift)], dimension)
        return draw_noise(mechanism, key, draw.index, paid_as=paid_as)

    def check_shift(
        self, shift: float, dimension: int, *, request: int = 1, records: int = 1
    ) -> float:
        """The grid that the noise of a deletion will lie on.

        A shift whose noise cannot be drawn is refused, before anything is paid for it.
        """
        need = NoiseNeed(self.multiplier(request, records), shift)
        return float(mechanism_for([need], dimension).grid)

    def _finalised_plan(self) -> OdometerPlan:
        if self.plan is None:
            raise IllegalTransition(
                "this odometer is not finalised: call finalize_with(stats,"
                " T_estimate=...) first. Nothing was spent."
            )
        return self.plan

    @property
    def private(self) -> bool:
        """Whether its noise comes from the operating system."""
        return self._source.private

    @property
    def epsilon_spent(self) -> float:
        """The epsilon, at delta, of what was deleted so far.

        Under "subject" it is that of the person with most requests, and does not grow
        with the others.
        """
        solved = self.plan
        if solved is None or not self.deletions_made or solved.z == 0.0:
            return 0.0
        budget = self.terms.budget
        if solved.per_subject:
            return budget.epsilon_of(budget.part_of_requests(self._most_requests))
        return budget.epsilon_of(Fraction(self._drawn, solved.m))

    # -- terms and plan ----------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """The budget's epsilon."""
        return float(self.terms.epsilon)

    @property
    def delta(self) -> float:
        """The budget's delta."""
        return float(self.terms.delta)

    @property
    def lam(self) -> float:
        """Strong convexity."""
        return float(self.terms.lam)

    @property
    def delta_B(self) -> float:
        """The probability with which the regret bound may fail."""
        return self.terms.delta_B

    @property
    def T(self) -> int:
        """The planned number of events."""
        return self.terms.T

    @property
    def gamma(self) -> float:
        """gamma_priv, the average regret that deletions may lead to."""
        return self.terms.gamma

    @property
    def scope(self) -> Scope:
        """Whose records the neighbouring datasets differ in."""
        return self.terms.scope

    @property
    def z(self) -> float | None:
        """sigma / shift of a deletion (a first request); None before finalize_with."""
        return self.plan.z if self.plan else None

    @property
    def epsilon_step(self) -> float | None:
        """The epsilon of one deletion alone, at `delta_step`."""
        return self.plan.epsilon_step if self.plan else None

    @property
    def delta_step(self) -> float | None:
        """The delta of one deletion alone."""
        return self.plan.delta_step if self.plan else None

    @property
    def sigma_step(self) -> float | None:
        """The noise of a deletion at the shift of sizing."""
        return self.plan.sigma_step if self.plan else None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a PrivacyOdometer cannot be copied or pickled: a copy would be a second"
            " budget. Make a new one, with a budget of its own."
        )

    def __repr__(self) -> str:
        return (
            f"PrivacyOdometer(epsilon {self.epsilon:g}, delta {self.delta:g},"
            f" {self.scope}, {self._status}, {self.capacity_remaining} left)"
        )
