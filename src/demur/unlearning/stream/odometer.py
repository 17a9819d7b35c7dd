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

**In the ledger.** Where m Gaussians compose, m draws of one Gaussian are reserved.
Where they do not, or where a mode's theorem does not prove Gaussian composition, the
promise is one entry, and a second one of price nothing counts the deletions.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

from demur.core import validate
from demur.core.adjacency import Erasure
from demur.core.entropy import OsEntropy, Source
from demur.core.entry import Entry
from demur.core.rounding import product_up
from demur.ledger import Draw, Ledger, Payment, ledger_or_in_memory
from demur.mechanisms.gaussian import Gaussian
from demur.unlearning.errors import CapacityExhausted, IllegalTransition
from demur.unlearning.models.base import Accounting, Mode, Scope
from demur.unlearning.pricing import capacity, constants, plan
from demur.unlearning.pricing.calibrator import Formula
from demur.unlearning.pricing.constants import StreamConstants
from demur.unlearning.pricing.noise import (
    DrawnNoise,
    NoiseNeed,
    draw_noise,
    mechanism_for,
    noise_fingerprint,
)
from demur.unlearning.pricing.plan import OdometerPlan, OdometerTerms

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
        if ledger is not None and not isinstance(ledger, Ledger):
            raise TypeError(
                f"ledger must be a Ledger or None; got {type(ledger).__name__}"
            )
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
        sizes = self._constants(stats)
        solved = plan.solve(terms, sizes)
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
        allowed = capacity.largest(
            lambda m: plan.within(self.terms, sizes, m, paid.z), self.terms.T
        )
        limit = max(self.capacity_used, allowed)
        if limit < self.deletion_capacity:
            self.deletion_capacity = limit
            self._status = "ready" if self.capacity_remaining else "degenerate"

    def _constants(self, stats: Mapping[str, float]) -> StreamConstants:
        if self._mode is None:
            return constants.constants_from_stats(stats, self.lam)
        return constants.constants_from_mode(self._mode, stats, self.lam)

    def _pay(
        self, terms: OdometerTerms, sizes: StreamConstants, solved: OdometerPlan
    ) -> None:
        entries = plan.ledger_entries(terms, sizes, solved)
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
        """How many deletions are left (see `deletions_for`)."""
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

    def multiplier(self, request: int = 1) -> float:
        """sigma / shift of a person's request number `request`."""
        solved = self._finalised_plan()
        if request == 1 or solved.z == 0.0:
            return solved.z
        assert self.constants is not None
        needed = plan.multiplier(self.terms, self.constants, solved.m, request)
        return max(solved.z, needed)

    def deletions_for(self, request: int = 1) -> int:
        """How many deletions of the capacity a person's request takes: (z_j / z)^2.

        A later request gets more noise, and the regret of noise adds up in z^2.
        """
        z = self._finalised_plan().z
        if request == 1 or z == 0.0:
            return 1
        ratio = self.multiplier(request) / z
        return math.ceil(ratio * ratio * (1.0 - 1e-9))  # up to rounding, whole

    def spend(self, request: int = 1) -> Draw:
        """Take one deletion out of the reservation, durably; then draw its noise.

        `request` counts the requests of the person who asks.
        """
        with self._lock:
            self.require_ready()
            used = self.deletions_for(request)
            self.require_ready(used)
            assert self._payment is not None
            draw = self._payment.reservation.draw()
            self.deletions_made += 1
            self.capacity_used += used
            self._most_requests = max(self._most_requests, request)
        if self.capacity_remaining == 1:
            logger.warning("Capacity is 1; next delete forces retrain")
        return draw

    def noise_scale(self, shift: float | None = None, *, request: int = 1) -> float:
        """sigma for a deletion: z times its shift (default: that of sizing)."""
        solved = self._finalised_plan()
        if shift is None:
            return solved.sigma_step
        validate.non_negative(shift=shift)
        return product_up(self.multiplier(request), float(shift))

    def noise(
        self, draw: Draw, shift: float, dimension: int, *, request: int = 1
    ) -> DrawnNoise:
        """The noise of a draw, on a grid; `check_shift` first, as it can refuse."""
        assert self._payment is not None
        key = self._payment.key
        key.pays_for(noise_fingerprint(self._finalised_plan().z))
        return draw_noise(self._mechanism(shift, dimension, request), key, draw.index)

    def check_shift(self, shift: float, dimension: int, *, request: int = 1) -> float:
        """The grid that the noise of a deletion will lie on.

        A shift whose noise cannot be drawn is refused, before anything is paid for it.
        """
        return float(self._mechanism(shift, dimension, request).grid)

    def _mechanism(self, shift: float, dimension: int, request: int) -> Gaussian:
        return mechanism_for([NoiseNeed(self.multiplier(request), shift)], dimension)

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
        return budget.epsilon_of(Fraction(self.deletions_made, solved.m))

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
