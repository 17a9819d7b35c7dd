"""Prices of a service's deletions: the noise of each, and what the ledger is told.

Three cases, by what the mode's theorem says composes under the scope:

- *nothing*: the neighbouring datasets differ in one person's records; other people's
  deletions are the same in both and cost that person nothing. So each person has
  (epsilon, delta) for themselves, shared by their own requests (`pricing.budget`). One
  entry of the ledger pays for all persons, in parallel.
- *deletions*: every deletion adds up. The noise is planned for `capacity` of them.
- *publications*: every published copy adds up, whatever was deleted before it.

`pricing.budget` has the price of one request, the same as in a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from demur.core.accounting.events import Event, GaussianEvent, Pure
from demur.core.adjacency import Erasure, Unit
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.ledger import Budget, Filter, GaussianMeter
from demur.mechanisms.gaussian import Gaussian as GaussianMechanism
from demur.unlearning.models.base import Composition
from demur.unlearning.pricing.budget import (
    EXACT,
    WHOLE,
    DeletionPrice,
)
from demur.unlearning.pricing.noise import NoiseNeed, deletion_noise, mechanism_for
from demur.unlearning.pricing.publications import PublicationPrices
from demur.unlearning.pricing.service_terms import ServiceTerms

# A ledger of exact deletions has nothing to spend; a Gaussian filter wants a delta.
_EXACT, _EXACT_GAUSSIAN = Budget(epsilon=1e-9), Budget(epsilon=1e-9, delta=1e-9)


class DeletionPrices:
    """Prices under the terms of one service."""

    def __init__(self, terms: ServiceTerms) -> None:
        self._terms = terms
        model = terms.model()
        self.exact, self._size = model.exact, model.size
        self.composition: Composition = model.theorem.composition(terms.scope)
        self.publications: PublicationPrices | None = None
        if terms.answers is not None:
            self.publications = PublicationPrices(terms.answers)
        if self.exact:
            self.budget, self.filter = _EXACT, Filter.pure()
            if self.publications is not None:
                self.budget = _EXACT_GAUSSIAN
                self.filter = Filter((GaussianMeter(),), 0.0)
            return
        self.budget = Budget(terms.epsilon, terms.delta)
        self.shares = terms.deletion_budget()
        self.filter = self.shares.filter
        self._first = self.shares.multiplier(
            self.shares.first_part(self.composition, terms.capacity)
        )

    @property
    def capacity(self) -> int | None:
        """How many deletions an epoch has; None: any number."""
        return self._terms.capacity

    @property
    def per_person(self) -> bool:
        """Whether each person has the budget for themselves."""
        return self.composition == "nothing"

    def price(self, request: int = 1, records: int = 1) -> DeletionPrice:
        """What a person's request number `request` takes, of so many records."""
        if self.exact:
            return EXACT
        return self.shares.price(
            self.composition,
            first=self._first,
            capacity=self._terms.capacity,
            records=records,
            request=request,
        )

    def mechanism(self, needs: Sequence[NoiseNeed]) -> GaussianMechanism:
        """The noise that meets every need."""
        return mechanism_for(needs, self._size)

    def drawn_for(self, sigma: float, shift: float) -> GaussianMechanism:
        """The noise of this deviation, as it is declared for this shift."""
        return deletion_noise(sigma, shift, self._size)

    def epsilon(self, multiplier: float) -> float:
        """The epsilon of one deletion by itself."""
        return self.shares.epsilon_alone(multiplier)

    def epsilon_of(self, deletions: int) -> float:
        """The epsilon of so many deletions (or publications) that all add up."""
        assert self._terms.capacity is not None
        return self.shares.epsilon_of(Fraction(deletions, self._terms.capacity))

    def epsilon_of_requests(self, number: int) -> float:
        """The epsilon of a person's first requests; 0 where persons do not count."""
        if self.exact or not self.per_person or not number:
            return 0.0
        return self.shares.epsilon_of(self.shares.part_of_requests(number))

    def epsilon_in_all(self) -> float | None:
        """Of all publications and all requests of one person; None for live answers."""
        if self.publications is None:
            return None
        return self.publications.epsilon_with(
            Fraction(0) if self.exact else self.shares.mu_squared
        )

    @property
    def budgets(self) -> dict[Unit, Budget]:
        """What a ledger of this service's own enforces."""
        budgets: dict[Unit, Budget] = {Erasure(): self.budget}
        if self.publications is not None:
            publications = self.publications.publications
            budgets[publications.unit] = publications.budget
        return budgets

    # -- what the ledger is told -------------------------------------------------

    def budget_per_person(self) -> Declaration:
        """Where nothing composes: the one entry that pays for everybody's share."""
        return _declared(
            "deletion budget per person",
            Pure(0.0) if self.exact else GaussianEvent(self.shares.multiplier(WHOLE)),
            "each person is known under one subject id, and "
            + self._looked_at()
            + self._proved(),
        )

    def _looked_at(self) -> str:
        """What requests and inserts may have looked at."""
        if self.publications is not None:
            return (
                "requests and inserts may depend on published copies, whose cost is"
                " in entries of their own"
            )
        return "no request and no later insert depends on what the model published"

    def _proved(self) -> str:
        """Where Gaussians compose less well than the event says."""
        if self.exact or self._terms.accounting == "gdp":
            return ""
        return (
            ", and several deletions are composed by their Renyi divergences alone"
            " (a tighter reading is not proved)"
        )

    def within_budget_per_person(
        self, service: str, mechanism: GaussianMechanism | None
    ) -> Declaration:
        """A deletion that the budget per person paid for: noise, no further cost."""
        declared = None if mechanism is None else mechanism.declaration()
        return _declared(
            f"a deletion within the budget per person of service {service[:8]}",
            Pure(0.0),
            "other people's deletions are the same in both neighbouring datasets, so"
            " that one budget pays for each person in parallel",
            0.0 if declared is None else declared.sampler_distance,
            "" if declared is None else declared.fingerprint,
        )

    def replacement(self) -> Declaration:
        """A new model in the model's place, which never saw the records it lacks."""
        return _declared(
            "a model that never saw the records it lacks",
            Pure(0.0),
            "which records it lacks does not depend on what the model published"
            if self.publications is None
            else self._looked_at(),
        )

    def blocked_operation(self) -> Declaration:
        """An operation that died before its charge: it cannot be charged later."""
        return _declared(
            "an operation that was stopped before its charge",
            Pure(0.0),
            "nothing was drawn and nothing released",
        )

    def added_up(self, mechanism: GaussianMechanism) -> Declaration:
        """A deletion (or publication) whose cost adds to all the others."""
        declared = mechanism.declaration()
        return Declaration(
            name=f"one of the {self.composition} of a service",
            cost=declared.cost,
            sampler_distance=declared.sampler_distance,
            assumptions=(self._looked_at() + self._proved(),),
            fingerprint=declared.fingerprint,
        )


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
