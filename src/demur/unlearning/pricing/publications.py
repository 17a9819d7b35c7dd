"""Publications of a service that answers from published copies: terms and prices.

A copy is charged at `ZeroOut`: whether a person's records contributed or were blank,
at most `records_per_subject` of them at a time. All copies share one capacity (an
epsilon and a delta) in equal parts; the Gaussian filter of the ledger enforces it,
whenever a copy is published. A deletion is charged at `Erasure`, and neither cost is
added to the other in a ledger. What the two come to together for one person,
sqrt(a^2 + b^2) by the theorem of `models.published`, is in the certificate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeAlias

from demur.core import validate
from demur.core.accounting import gaussian
from demur.core.adjacency import ZeroOut
from demur.core.declaration import Declaration
from demur.ledger import Budget
from demur.mechanisms.gaussian import Gaussian as GaussianMechanism
from demur.unlearning.errors import CapacityExhausted
from demur.unlearning.models.published import PublishedAnswers
from demur.unlearning.pricing import capacity
from demur.unlearning.pricing.noise import NoiseNeed, mechanism_for

_LARGEST_INDEX = 2.0**52  # of a grid point that float64 has exactly
_LEAST_DELTA = 1e-200


@dataclass(frozen=True)
class Publications:
    """How often a service may publish, at what cost to each person.

    - `epsilon`, `delta`: of all `count` publications together, for one person; None
      takes those of the service.
    - `every`: publish by itself after so many inserts, until the count is used up; None
      publishes when `publish()` is called.
    - `records_per_subject`: the most records of one person that are live at a time;
      more are refused.
    """

    epsilon: float | None = None
    delta: float | None = None
    count: int = 100
    every: int | None = None
    records_per_subject: int = 1

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            validate.positive(epsilon=self.epsilon)
        if self.delta is not None:
            validate.open_probability(delta=self.delta)
        validate.count(count=self.count, records_per_subject=self.records_per_subject)
        if self.every is not None:
            validate.count(every=self.every)

    def completed(self, epsilon: float | None, delta: float | None) -> Publications:
        """The same with the service's epsilon and delta where it names none."""
        epsilon = self.epsilon if self.epsilon is not None else epsilon
        delta = self.delta if self.delta is not None else delta
        if epsilon is None or delta is None:
            raise ValueError(
                "epsilon and delta must be given: published copies are noised, also"
                " where deletions are exact. Nothing was created."
            )
        return replace(self, epsilon=float(epsilon), delta=float(delta))

    @property
    def unit(self) -> ZeroOut:
        """What a publication is charged at."""
        return ZeroOut(records_per_person=self.records_per_subject)

    @property
    def budget(self) -> Budget:
        """The capacity of all publications."""
        assert self.epsilon is not None
        assert self.delta is not None
        return Budget(self.epsilon, self.delta)

    def due(self, before: int, tick: int) -> bool:
        """Whether inserts from tick `before` to `tick` bring a publication."""
        return self.every is not None and tick // self.every > before // self.every


Answers: TypeAlias = Literal["live", "published"] | Publications


def publications_of(
    answers: Answers | None, epsilon: float | None, delta: float | None
) -> Publications | None:
    """The publications that are asked for, under a service's epsilon and delta."""
    if answers is None or answers == "live":
        return None
    if answers == "published":
        answers = Publications()
    if not isinstance(answers, Publications):
        raise ValueError(
            "answers must be 'live', 'published' or Publications(...); got"
            f" {validate.shorten(answers)}"
        )
    return answers.completed(epsilon, delta)


class PublicationPrices:
    """The noise of a publication, and what the ledger is told."""

    def __init__(self, publications: Publications) -> None:
        self.publications = publications
        budget = publications.budget
        self._ideal_delta = gaussian.ideal_delta(budget.delta)
        self._multiplier = capacity.multiplier(
            publications.count, budget.epsilon, self._ideal_delta
        )

    @property
    def mu_squared(self) -> Fraction:
        """The capacity, as the largest sum of 1 / z^2."""
        return capacity.mu_squared_limit(
            self.publications.budget.epsilon, self._ideal_delta
        )

    def mechanism(self, mode: PublishedAnswers) -> GaussianMechanism:
        """The noise of the next copy, or the refusal; by public numbers alone."""
        unit = self.publications.unit
        bound = mode.publication_bound(unit.records_per_person)
        mechanism = mechanism_for(
            [NoiseNeed(self._multiplier, bound)],
            mode.statistic_size,
            unit=unit,
            name="the noise of a publication",
        )
        if mode.publication_size() >= _LARGEST_INDEX * float(mechanism.grid):
            raise CapacityExhausted(
                "there are too many records for noise this small: float64 stops being"
                " exact. Retrain on fewer. Nothing was spent.",
                "numeric",
                retrain_required=True,
            )
        return mechanism

    def published_copy(self, mechanism: GaussianMechanism) -> Declaration:
        """A publication, at its own unit."""
        return replace(
            mechanism.declaration(),
            name="a published copy of a model",
            assumptions=(
                "everything that leaves the service comes from published copies, and"
                " each person is known under one subject id",
            ),
        )

    def epsilon_with(self, deletions: Fraction) -> float:
        """Of all publications and deletions of one person, whose mu^2 is `deletions`.

        At the delta of the publications.
        """
        budget = self.publications.budget
        epsilon = capacity.epsilon_of(self.mu_squared + deletions, self._ideal_delta)
        # The capacity itself is within its budget, by the filter; a reading rounds up.
        return epsilon if deletions else min(epsilon, budget.epsilon)


def check_publishable(publications: Publications, mode: PublishedAnswers) -> None:
    """Refuse terms under which no copy of one record could ever be published."""
    if publications.budget.delta < _LEAST_DELTA:
        raise ValueError(
            f"delta must be at least {_LEAST_DELTA:g}, or the noise cannot be drawn"
            f" exactly enough; got {publications.delta!r}"
        )
    trial = mode.fresh()
    trial.insert([0.0] * mode.dimension, 0.0)
    try:
        PublicationPrices(publications).mechanism(trial)
    except (CapacityExhausted, ArithmeticError, ValueError) as error:
        raise ValueError(
            f"nothing could be published under these terms: {error}"
        ) from error
