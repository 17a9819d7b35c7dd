"""What a deletion must cost: the noise it needs, and the epsilon it comes to.

Three cases, by what the mode's theorem says composes under the scope:

- *nothing*: the two worlds differ in one person's records; other people's deletions
  are the same in both and cost that person nothing. So (epsilon, delta) is each
  person's own. One entry of the ledger pays for all of them (they are parallel), and
  the person's own requests share it: the j-th gets the part 6 / (pi j)^2, which add up
  to 1, so that no request is ever the last; or 1/k each for a fixed k. A request that
  was interrupted counts: its part stays spent.
- *deletions*: every deletion adds up. The noise is planned for `capacity` of them; a
  batch of n at once costs n parts, whether noised together or apart.
- *publications*: every published copy adds up, whatever was deleted before it.

Parts are parts of the filter's capacity, which is linear in mu^2; everything is
rounded so that the parts handed out never exceed the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from demur.core.accounting import gaussian
from demur.core.accounting.events import Event, Gaussian, Pure
from demur.core.adjacency import Erasure
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.rounding import quotient_up, sum_up, up
from demur.ledger import Budget, Filter, GaussianMeter, RenyiMeter
from demur.ledger.filters import best_order, shares
from demur.mechanisms.gaussian import Gaussian as GaussianMechanism
from demur.unlearning.errors import CapacityExhausted
from demur.unlearning.models.base import Composition
from demur.unlearning.pricing.terms import Terms

_SIX_OVER_PI_SQUARED = Fraction(607927101854026, 10**15)  # rounded down
_FINE = 2**64
_EXACT = Budget(epsilon=1e-9)  # a ledger of exact deletions has nothing to spend


class Tariff:
    """Prices under one set of terms."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        model = terms.model()
        self.exact = model.exact
        self.composition: Composition = model.theorem.composition(terms.scope)
        if self.exact:
            self.budget, self.rule = _EXACT, Filter.pure()
            return
        self.budget = Budget(terms.epsilon, terms.delta)
        self._meter: GaussianMeter | RenyiMeter = (
            GaussianMeter()
            if terms.accounting == "gdp"
            else RenyiMeter(best_order(self.budget))
        )
        self.rule = Filter((self._meter,), 0.0)
        share = shares(self.rule, self.budget)
        assert share.meter_budget is not None
        self._delta = share.meter_budget.delta
        self._whole = share.capacities[self._meter.account]

    def part_of_request(self, number: int) -> Fraction:
        """The part of a person's budget that their request `number` gets."""
        limit = self._terms.requests_per_subject
        if limit is None:
            return _SIX_OVER_PI_SQUARED / number**2
        if number > limit:
            raise CapacityExhausted(
                f"this person's {limit} requests are used up (requests_per_subject):"
                " another would exceed epsilon. Nothing was spent. Retrain without the"
                " record.",
                "privacy",
                retrain_required=True,
            )
        return Fraction(1, limit)

    def part_of_requests(self, numbers: int) -> Fraction:
        """The part that a person's first requests have used together, rounded up.

        In multiples of 2^-64: exact sums of many fractions grow without end.
        """
        parts = map(self.part_of_request, range(1, numbers + 1))
        total = sum(math.ceil(part * _FINE) for part in parts)
        return min(Fraction(total, _FINE), Fraction(1))

    def part_of_units(self, units: int) -> Fraction:
        """The part that deletions (or publications) take of a common budget."""
        assert self._terms.capacity is not None
        return Fraction(units, self._terms.capacity)

    def multiplier(self, part: Fraction) -> float:
        """The least noise, in units of the shift, that costs at most `part`."""
        most = self._whole * part
        rate = (
            0.5 * self._meter.order if isinstance(self._meter, RenyiMeter) else 1.0
        )  # of mu^2
        z = math.sqrt(rate / most)
        while True:
            amount = self._meter.amount(Gaussian(z))
            if amount is not None and amount <= most:
                return z
            z = up(z) * (1.0 + 2.0**-42)

    def mechanism(self, wanted: Sequence[tuple[float, float]]) -> GaussianMechanism:
        """Noise of at least `multiplier` times each shift, its grid's cost included.

        `wanted` are pairs (multiplier, shift): one noise serves several persons, each
        of whom would be served by less.
        """
        largest = max(shift for _, shift in wanted)
        sigma = max(up(z * shift, 2) for z, shift in wanted)
        while True:  # The grid depends on sigma by a power of two alone: few rounds.
            found = GaussianMechanism(sigma, {Erasure(): largest}, self._terms.dim)
            need = max(
                up(z * sum_up(shift, grid_slack(found)), 4) for z, shift in wanted
            )
            if sigma >= need:
                return found
            sigma = need

    def epsilon(self, multiplier: float) -> float:
        """The epsilon of one deletion by itself: it is exactly a Gaussian."""
        return gaussian.gaussian_epsilon(quotient_up(1.0, multiplier), self._delta)

    def epsilon_of_part(self, part: Fraction) -> float:
        """The epsilon that a used part of the budget comes to, composed."""
        found = self._meter.epsilon(self._whole * part, self._delta)
        # The whole keeps the budget; its reading is rounded up, a bit or two past it.
        return min(found, self.budget.epsilon) if part <= 1 else found

    def epsilon_of_requests(self, number: int) -> float:
        """What a person's first requests come to; 0 where persons do not count."""
        if self.exact or self.composition != "nothing" or not number:
            return 0.0
        return self.epsilon_of_part(self.part_of_requests(number))

    def cover(self) -> Declaration:
        """Where nothing composes: the one entry that pays for everybody's share."""
        return _declared(
            "deletion budget per person",
            Pure(0.0) if self.exact else Gaussian(self.multiplier(Fraction(1))),
            "each person is known under one subject id, and no request depends on what"
            " the model published" + self._proved(),
        )

    def _proved(self) -> str:
        """Where Gaussians compose less well than the event says."""
        if self.exact or self._terms.accounting == "gdp":
            return ""
        return (
            ", and several deletions are composed by their Renyi divergences alone"
            " (a tighter reading is not proved)"
        )

    def free(self, service: str, mechanism: GaussianMechanism | None) -> Declaration:
        """A deletion that the cover has paid for: noise of its own, no further cost."""
        declared = None if mechanism is None else mechanism.declaration()
        return _declared(
            f"a deletion under the cover of service {service[:8]}",
            Pure(0.0),
            "other people's deletions are the same in both worlds, so that the cover"
            " pays for each of them in parallel",
            0.0 if declared is None else declared.sampler_distance,
            "" if declared is None else declared.fingerprint,
        )

    def replacement(self) -> Declaration:
        """A new model in the model's place, which never saw the records it lacks."""
        return _declared(
            "a model that never saw the records it lacks",
            Pure(0.0),
            "which records it lacks does not depend on what the model published",
        )

    def stopped(self) -> Declaration:
        """An operation that died before its charge, so that nobody charges it late."""
        return _declared(
            "an operation that was stopped before its charge",
            Pure(0.0),
            "nothing was drawn and nothing released",
        )

    def paid(self, mechanism: GaussianMechanism) -> Declaration:
        """A deletion that adds to all the others."""
        said = mechanism.declaration()
        return Declaration(
            name=f"one of the {self.composition} of a service",
            cost=said.cost,
            sampler_distance=said.sampler_distance,
            assumptions=(
                "no request depends on what the model published" + self._proved(),
            ),
            fingerprint=said.fingerprint,
        )


def grid_slack(mechanism: GaussianMechanism) -> float:
    """What rounding to the grid adds to any distance."""
    return up(float(mechanism.grid) * math.sqrt(mechanism.dimension), 2)


def _declared(
    name: str,
    event: Event,
    assumption: str,
    sampler_distance: float = 0.0,
    fingerprint: str = "",
) -> Declaration:
    return Declaration(
        name=name,
        cost=Cost((Fixed(Erasure(), event),)),
        sampler_distance=sampler_distance,
        assumptions=(assumption,),
        fingerprint=fingerprint,
    )
