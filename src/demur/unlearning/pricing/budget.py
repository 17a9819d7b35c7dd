"""The budget of deletions: what one request takes of it, and the noise that buys.

A part is a share of what the ledger's filter admits, which is linear in 1 / z^2. All
that is handed out is rounded so that the parts never add up to more than the whole.

**Requests of one person.** Where a person has (epsilon, delta) for themselves, their
own requests share it. By default (`requests_per_subject=None`) request j gets the part
6 / (pi j)^2; these add up to 1, so that no request is ever the last. That is the one
default of the engine, because a count can be used up without the person's doing: a
deletion that a crash interrupts stays counted, and under a count of 1 the record could
then be deleted by a retrain alone. It costs 28% more noise in the first request and j
times that in request j. With `requests_per_subject=k` each of k requests gets 1/k, and
request k + 1 is refused.

**One request, one price** (`DeletionBudget.price`), for a stream and for a service. It
follows what the mode's theorem says composes:

- *deletions*: a request of k records takes k of the m parts. k Gaussians of multiplier
  z are exactly one of z / sqrt(k), under every accounting, so the k records, which move
  the model by k Delta, get noise of deviation sqrt(k) z Delta: that of k deletions one
  by one. One part and noise of k z Delta would be private too. But regret adds up
  variances, so that request would have to count as k^2 deletions of the capacity. With
  k parts, privacy and regret count the same k, and nobody gains by splitting a request.
- *publications*: one part for each published copy, whatever was deleted before it.
- *nothing*: the part of the person's request j, with noise z_j for the shift of all
  their k records. The capacity limits regret alone here, and (k z_j)^2 is the variance
  of (k z_j / z_1)^2 first requests of one record: (k j)^2 by default, k^2 if requests
  are counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from demur.core.accounting import gaussian
from demur.core.rounding import float_up, quotient_up, up
from demur.ledger import Filter
from demur.unlearning.errors import CapacityExhausted
from demur.unlearning.models.base import Accounting, Composition
from demur.unlearning.pricing import capacity

_SIX_OVER_PI_SQUARED = Fraction(607927101854026, 10**15)  # rounded down
_RESOLUTION = 2**64
WHOLE = Fraction(1)


@dataclass(frozen=True)
class DeletionPrice:
    """What one request takes: a part of the budget, and deletions of the capacity.

    `multiplier` is the noise that the part buys, in units of the request's shift.
    """

    part: Fraction
    multiplier: float
    used: int


EXACT = DeletionPrice(Fraction(0), 0.0, 1)  # a deletion without noise


@dataclass(frozen=True)
class DeletionBudget:
    """(epsilon, delta) for deletions, composed by one accounting.

    `gaussians_compose` says whether the mode's theorem proves that they do.
    """

    epsilon: float
    delta: float
    accounting: Accounting
    requests_per_subject: int | None = None
    gaussians_compose: bool = True

    @cached_property
    def ideal_delta(self) -> float:
        """What is left of delta for ideal noise, after the sampler's share."""
        return gaussian.ideal_delta(self.delta)

    @property
    def filter(self) -> Filter:
        """The filter of a ledger that enforces this budget; not for "basic"."""
        meter = capacity.meter_for(self.accounting, self.epsilon, self.ideal_delta)
        return Filter((meter,), 0.0)

    @property
    def mu_squared(self) -> Fraction:
        """The whole budget as the largest sum of 1 / z^2; not for "basic"."""
        return capacity.mu_squared_limit(
            self.epsilon, self.ideal_delta, self.accounting
        )

    def multiplier(self, part: Fraction) -> float:
        """The least noise, in units of the shift, that costs at most `part`."""

        def least(accounting: Accounting) -> float:
            return capacity.multiplier(
                1 / part, self.epsilon, self.ideal_delta, accounting
            )

        z = least(self.accounting)
        if self.accounting == "basic" and not self.gaussians_compose:
            return max(z, least("zcdp"))
        return z

    def first_part(self, composition: Composition, capacity: int | None) -> Fraction:
        """The part of a first request of one record, where `capacity` share."""
        if composition == "nothing":
            return self.part_of_request(1)
        assert capacity is not None
        return Fraction(1, capacity)

    def price(
        self,
        composition: Composition,
        *,
        first: float,
        capacity: int | None,
        records: int = 1,
        request: int = 1,
    ) -> DeletionPrice:
        """The price of a person's request number `request`, of so many records.

        `first` is the multiplier of a first request of one record. See the module's
        argument.
        """
        if composition == "nothing":
            part = self.part_of_request(request)
            z = first if request == 1 else max(first, self.multiplier(part))
            ratio = records * z / first
            # Whole up to rounding: a request without more noise counts once.
            return DeletionPrice(part, z, math.ceil(ratio * ratio * (1.0 - 1e-9)))
        assert capacity is not None
        count = records if composition == "deletions" else 1
        z = first if count == 1 else up(first / math.sqrt(count), 2)
        return DeletionPrice(Fraction(count, capacity), z, count)

    def part_of_request(self, number: int) -> Fraction:
        """The part that request `number` of one person gets."""
        limit = self.requests_per_subject
        if limit is None:
            return _SIX_OVER_PI_SQUARED / number**2
        if number > limit:
            raise CapacityExhausted(
                f"this person has made {limit} of {limit} deletion requests"
                " (requests_per_subject), and another would exceed epsilon. Retrain"
                " without the record. Nothing was spent.",
                "privacy",
                retrain_required=True,
            )
        return Fraction(1, limit)

    def part_of_requests(self, number: int) -> Fraction:
        """The part that a person's first `number` requests have used, rounded up.

        In multiples of 2^-64: exact sums of many fractions grow without end.
        """
        parts = map(self.part_of_request, range(1, number + 1))
        total = sum(math.ceil(part * _RESOLUTION) for part in parts)
        return min(Fraction(total, _RESOLUTION), WHOLE)

    def epsilon_of(self, part: Fraction) -> float:
        """The epsilon that a used part of the budget comes to, composed."""
        if self.accounting == "basic":
            return min(float_up(Fraction(self.epsilon) * part), self.epsilon)
        spent = capacity.epsilon_of(
            self.mu_squared * part, self.ideal_delta, self.accounting
        )
        # The whole stays within the budget, by the filter; its reading is rounded up.
        return min(spent, self.epsilon) if part <= 1 else spent

    def epsilon_alone(self, multiplier: float) -> float:
        """The epsilon of one deletion by itself: it is exactly a Gaussian."""
        return gaussian.gaussian_epsilon(quotient_up(1.0, multiplier), self.ideal_delta)
