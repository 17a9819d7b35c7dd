"""The odometer of deletions: how many the budget pays for, and the noise of each.

It is sized once (`finalize_with`), pays for all its deletions at once in the ledger, at
the unit `Erasure`, and hands them out one by one: `spend()` is durable before the noise
of that deletion exists. In the words of Rogers, Roth, Ullman and Vadhan 2016 it is a
*filter*: it has a budget and halts. It keeps the seed's name.

**Scope.** Under "joint" the two worlds differ in all deleted records, and m deletions
compose. Under "subject" they differ in one person's records; the noise of everybody
else's deletions is the same in both worlds, so the budget is spent by that person's own
requests alone (`requests_per_subject`, one unless said otherwise) and only regret
limits their number. What adds up is for the mode's theorem to say
(`Theorem.composition`): a mode that noises its published copy pays for every copy.

**In the ledger.** Where m Gaussians compose, m draws of one Gaussian are reserved.
Where they do not, or where a mode's theorem does not prove Gaussian composition, the
promise is one entry, and a second one of price nothing counts the deletions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from demur.core import validate
from demur.core.adjacency import Erasure
from demur.core.entropy import OsEntropy, Source
from demur.core.rounding import product_up
from demur.ledger import Draw, Ledger, Payment, ledger_or_in_memory
from demur.unlearning.errors import CapacityExhausted, IllegalTransition
from demur.unlearning.models.base import Accounting, Mode, Scope
from demur.unlearning.pricing import capacity, plan, sizing
from demur.unlearning.pricing.calibrator import Formula
from demur.unlearning.pricing.noise import (
    DrawnNoise,
    draw_noise,
    mechanism_for,
    noise_fingerprint,
)
from demur.unlearning.pricing.plan import OdometerTerms, Plan
from demur.unlearning.pricing.sizing import Sizing

logger = logging.getLogger(__name__)


class PrivacyOdometer:
    """Sizes, pays for and counts deletions.

    >>> odometer = PrivacyOdometer(1.0, 1e-5, lambda_=0.1, gamma=2.0, scope="joint")
    >>> odometer.finalize_with({"G": 1.0, "D": 1.0, "c": 1.0, "C": 1.0}, 10**6)
    >>> odometer.deletion_capacity, round(odometer.z, 2)
    (35, 22.07)
    >>> draw = odometer.spend()
    >>> odometer.capacity_remaining, 0.0 < odometer.eps_spent < 0.2
    (34, True)
    """

    def __init__(
        self,
        eps_total: float,
        delta_total: float,
        lambda_: float,
        delta_B: float = 0.05,
        T: int = 100000,
        gamma: float = 0.05,
        *,
        accounting: Accounting | None = None,
        formula: Formula = "consistent",
        scope: Scope = "subject",
        ledger: Ledger | None = None,
        requests_per_subject: int = 1,
        label: str = "deletions",
        source: Source | None = None,
    ) -> None:
        """`accounting` is "gdp" unless said otherwise, "basic" under formula="seed"."""
        default: Accounting = "basic" if formula == "seed" else "gdp"
        self.terms = OdometerTerms(
            eps_total,
            delta_total,
            lambda_,
            delta_B,
            T,
            gamma,
            accounting or default,
            formula,
            scope,
            requests_per_subject,
        )
        validate.name(label=label)
        if ledger is not None and not isinstance(ledger, Ledger):
            raise TypeError(
                f"ledger must be a Ledger or None; got {type(ledger).__name__}"
            )
        self.label = label
        self.ledger = ledger
        self.deletion_capacity = 0
        self.deletions_made = 0
        self.plan: Plan | None = None
        self.sizing: Sizing | None = None
        self._status = "not finalised"
        self._source: Source = source or OsEntropy()
        self._mode: Mode | None = None
        self._payment: Payment | None = None
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

    def finalize_with(self, stats: Mapping[str, float], T_estimate: int) -> None:
        """Solve for the capacity over `T_estimate` events, and reserve it all."""
        with self._lock:  # twice at once would be two reservations
            self._finalize_with(stats, T_estimate)

    def _finalize_with(self, stats: Mapping[str, float], T_estimate: int) -> None:
        if self.finalised:
            raise IllegalTransition(
                "this odometer is finalised: a second time would be a second budget."
                " After a drift use recalibrate_with. Nothing was spent."
            )
        validate.count(T_estimate=T_estimate)
        terms = self.terms.over(int(T_estimate))
        found = self._size(stats)
        made = plan.solve(terms, found)
        if made.m:
            self._ledger(terms, found, made)
        self.terms, self.sizing, self.plan = terms, found, made
        self.deletion_capacity = made.m
        self._status = "degenerate" if made.degenerate else "ready"
        if made.degenerate:
            self._say_degenerate()

    def recalibrate_with(self, stats: Mapping[str, float]) -> None:
        """Take new constants into account. Nothing is paid, and nothing is won.

        The multiplier was paid for and stays; the capacity can only fall.
        """
        made = self._made()
        self.sizing = found = self._size(stats)
        if made.m == 0 or found.exact:
            return
        self.plan = replace(made, sigma_step=product_up(made.z, found.shift))
        allowed = capacity.largest(
            lambda m: plan.within(self.terms, found, m, made.z), self.terms.T
        )
        limit = max(self.deletions_made, allowed)
        if limit < self.deletion_capacity:
            self.deletion_capacity = limit
            self._status = "ready" if self.capacity_remaining else "degenerate"

    def _size(self, stats: Mapping[str, float]) -> Sizing:
        if self._mode is None:
            return sizing.from_stats(stats, self.lambda_)
        return sizing.from_mode(self._mode, stats, self.lambda_)

    def _ledger(self, terms: OdometerTerms, found: Sizing, made: Plan) -> None:
        entries = plan.charging(terms, found, made)
        ledger = ledger_or_in_memory(
            self.ledger, entries.budget, unit=Erasure(), filter=entries.filter
        )
        if entries.promise is not None:
            ledger.paid(
                entries.promise,
                label=f"{self.label}: the promise",
                source=self._source,
            )
        self._payment = ledger.paid(
            entries.draws, count=made.m, label=self.label, source=self._source
        )
        self.ledger = ledger

    def _say_degenerate(self) -> None:
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
    def capacity_remaining(self) -> int:
        """How many deletions are left."""
        return self.deletion_capacity - self.deletions_made

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
        made = self._made()
        # Where all deletions compose, one more would exceed epsilon at the noise that
        # was paid for; where they do not, it is only their noise that adds up.
        regret = self._status == "degenerate" or made.composed < made.m
        raise CapacityExhausted(
            f"{self.deletions_made} of {self.deletion_capacity} deletions are made and"
            f" {deletions} more asked for: {'regret' if regret else 'epsilon'} allows"
            " no more. Retrain without the record. Nothing was spent.",
            reason="regret" if regret else "privacy",
            retrain_required=True,
        )

    def spend(self) -> Draw:
        """Take one deletion out of the reservation, durably; then draw its noise."""
        with self._lock:
            self.require_ready()
            assert self._payment is not None
            draw = self._payment.reservation.draw()
            self.deletions_made += 1
        if self.capacity_remaining == 1:
            logger.warning("Capacity is 1; next delete forces retrain")
        return draw

    def noise_scale(self, shift: float | None = None) -> float:
        """sigma for a deletion: z times its shift (default: that of sizing)."""
        made = self._made()
        if shift is None:
            return made.sigma_step
        validate.non_negative(shift=shift)
        return product_up(made.z, float(shift))

    def noise(self, draw: Draw, shift: float, dim: int) -> DrawnNoise:
        """The noise of a draw, on a grid; `check_shift` first, as it can refuse."""
        assert self._payment is not None
        z, key = self._made().z, self._payment.key
        key.pays_for(noise_fingerprint(z))
        return draw_noise(mechanism_for(shift, z, dim), key, draw.index)

    def check_shift(self, shift: float, dim: int) -> float:
        """Refuse a deletion whose noise cannot be drawn, before it is paid for; the
        grid that the noise will lie on.
        """
        return float(mechanism_for(shift, self._made().z, dim).grid)

    def _made(self) -> Plan:
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
    def eps_spent(self) -> float:
        """The epsilon, at delta_total, of what was deleted so far.

        Under "subject" it is that of one person, and does not grow with the others.
        """
        made = self.plan
        if made is None or not self.deletions_made or made.z == 0.0:
            return 0.0
        count = min(self.deletions_made, made.composed)
        if self.terms.accounting == "basic":
            return min(product_up(count, made.eps_step), self.eps_total)
        return capacity.total_epsilon(
            count, made.z, self.delta_total, self.terms.accounting
        )

    # -- the seed's names ------------------------------------------------------

    @property
    def eps_total(self) -> float:
        """The budget's epsilon."""
        return float(self.terms.epsilon)

    @property
    def delta_total(self) -> float:
        """The budget's delta."""
        return float(self.terms.delta)

    @property
    def lambda_(self) -> float:
        """Strong convexity."""
        return float(self.terms.lambda_)

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
        """Whose records the two worlds differ in."""
        return self.terms.scope

    @property
    def z(self) -> float | None:
        """sigma / shift of every deletion; None before finalize_with."""
        return self.plan.z if self.plan else None

    @property
    def eps_step(self) -> float | None:
        """The epsilon of one deletion alone, at `delta_step`."""
        return self.plan.eps_step if self.plan else None

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
            f"PrivacyOdometer(epsilon {self.eps_total:g}, delta {self.delta_total:g},"
            f" {self.scope}, {self._status}, {self.capacity_remaining} left)"
        )
