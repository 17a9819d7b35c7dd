"""Privacy claims about a pair of neighbouring datasets, in the form a test needs.

A claim may be given as an entry of a ledger or a mechanism (with the unit of the pair),
as an event, as (epsilon, delta), or as a `Claim`. Its shape decides the test: a pure
epsilon and a general (epsilon, delta) are tested by counting, Gaussian noise by mu.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from demur.core import accounting, validate
from demur.core.accounting import events
from demur.core.accounting.events import (
    ApproxDP,
    Event,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
)
from demur.core.adjacency import Unit
from demur.core.declaration import Mechanism
from demur.core.entry import Entry, epsilon_with_slack

DELTA = 1e-6  # where a claim has no delta of its own
THE_PAIR = "the pair of datasets that was given"

Score: TypeAlias = Callable[[Any], float] | ArrayLike


class Shape(StrEnum):
    """The family of a claim, which decides its test."""

    PURE = "pure"
    GAUSSIAN = "gaussian"
    APPROXIMATE = "approximate"


@dataclass(frozen=True)
class Claim:
    """epsilon at delta for a pair of datasets, its shape, and how to score an output.

    `score` is the claimed log-likelihood ratio of an output (first dataset over
    second), or anything that grows with it; a vector means the inner product with it.
    `threshold` fixes the event {score >= threshold} in advance. `counted` tests a
    Gaussian claim by counting, which holds for every law. `entry` is the ledger's
    entry that makes the claim, if any.

    >>> claim = Claim.of(GaussianEvent(1.0))
    >>> claim.shape, round(claim.epsilon, 4)
    (<Shape.GAUSSIAN: 'gaussian'>, 4.8866)
    >>> Claim.of((2.0, 0.0)).shape
    <Shape.PURE: 'pure'>
    """

    epsilon: float
    delta: float = 0.0
    shape: Shape = Shape.PURE
    mu: float | None = None
    unit: str = THE_PAIR
    score: Score | None = field(default=None, repr=False, compare=False)
    threshold: float | None = None
    counted: bool = False
    entry: Entry | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.epsilon != math.inf:
            validate.non_negative(epsilon=self.epsilon)
        validate.probability(delta=self.delta)
        validate.text(unit=self.unit)
        object.__setattr__(self, "shape", validate.choice(Shape, shape=self.shape))
        if self.shape is Shape.GAUSSIAN:
            validate.positive(mu=self.mu)
            validate.open_probability(delta=self.delta)
        elif self.mu is not None:
            raise ValueError(f"mu belongs to a Gaussian claim; got a {self.shape} one")
        if self.shape is Shape.PURE and self.delta != 0.0:
            raise ValueError(f"a pure claim has delta 0; got {self.delta}")
        if self.threshold is not None:
            validate.finite(threshold=self.threshold)
        if not isinstance(self.counted, bool):
            raise TypeError(f"counted must be True or False; got {self.counted!r:.40}")

    @classmethod
    def of(
        cls,
        claim: Claim | Entry | Mechanism | Event | tuple[float, float],
        *,
        unit: Unit | None = None,
        delta: float | None = None,
        score: Score | None = None,
        threshold: float | None = None,
        counted: bool = False,
    ) -> Claim:
        """The claim of an entry, mechanism, event or pair at `unit`, read at `delta`.

        For an entry, the default is its ledger's unit and delta, if it has only one.
        """
        if score is None and threshold is not None:
            raise TypeError("threshold is about a score: give score as well")
        stated = claim if isinstance(claim, Claim) else _stated(claim, unit, delta)
        if score is not None:
            stated = stated.scored_by(score, threshold)
        return replace(stated, counted=True) if counted else stated

    def scored_by(self, score: Score, threshold: float | None = None) -> Claim:
        """The same claim with another score."""
        return replace(self, score=score, threshold=threshold)

    def score_of(self, output: Any) -> float:
        """The score of one output; the claim must have a score."""
        return apply_score(self.score, output)


def apply_score(score: Score | None, output: Any) -> float:
    """A function of the output, or its inner product with a vector."""
    if score is None:
        raise TypeError("the claim has no score")
    if callable(score):
        return float(score(output))
    direction = np.asarray(score, dtype=np.float64).reshape(-1)
    return float(flat(output) @ direction)


def flat(output: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One run's output as a vector of numbers."""
    try:
        return np.asarray(output, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise TypeError(
            "the output of a run must be numbers, or score must turn it into one;"
            f" got {type(output).__name__}"
        ) from None


def _stated(
    claim: Entry | Mechanism | Event | tuple[float, float],
    unit: Unit | None,
    delta: float | None,
) -> Claim:
    if isinstance(claim, Entry):
        return replace(_of_entry(claim, unit, delta), entry=claim)
    if isinstance(claim, Event):
        return _of_event(claim, unit, delta, 0.0)
    if isinstance(claim, tuple) and len(claim) == 2:
        return _of_event(ApproxDP(*claim), unit, delta, 0.0)
    if isinstance(claim, Mechanism):
        if unit is None:
            raise TypeError(
                "unit must be given, because a mechanism has a cost at several units:"
                " Claim.of(mechanism, unit=...)"
            )
        declaration = claim.declaration()
        event = declaration.cost.at(unit)
        return _of_event(event, unit, delta, declaration.sampler_distance)
    raise TypeError(
        "claim must be an entry, a mechanism, an event, (epsilon, delta) or a"
        f" Claim; got {validate.shorten(claim)}"
    )


def _of_entry(entry: Entry, unit: Unit | None, delta: float | None) -> Claim:
    if unit is None:
        if len(entry.promises) != 1:
            raise TypeError("unit must be given: the entry's ledger has several units")
        unit = entry.promises[0].unit
    if delta is None:
        deltas = [p.delta for p in entry.promises if p.unit == unit]
        delta = deltas[0] if deltas else None
    event = entry.declaration.cost.at(unit, entry.maps)
    if entry.count > 1:
        event = Repeated(event, entry.count)
    distance = entry.declaration.sampler_distance * entry.count
    return _of_event(event, unit, delta, distance)


def _of_event(
    event: Event, unit: Unit | None, delta: float | None, sampler_distance: float
) -> Claim:
    phrase = THE_PAIR if unit is None else str(unit)
    event = _unsampled(event)
    atoms = events.atoms(event)
    if delta is not None:
        validate.probability(delta=delta)
    if all(isinstance(atom, Pure) for atom in atoms) and not sampler_distance:
        return Claim(accounting.price(event, 0.0), unit=phrase)
    if len(atoms) == 1 and isinstance(event, ApproxDP):
        own = event.delta if delta is None else delta
        if own < event.delta:
            raise ValueError(
                f"delta must be at least the claim's {event.delta:g}; got {own:g}"
            )
        shape = Shape.PURE if own == 0.0 else Shape.APPROXIMATE
        return Claim(event.epsilon, own, shape, unit=phrase)
    at = DELTA if delta is None else delta
    epsilon = epsilon_with_slack(event, at, sampler_distance)
    if atoms and all(isinstance(atom, GaussianEvent) for atom in atoms):
        squares = [
            count / atom.multiplier**2
            for atom, count in atoms.items()
            if isinstance(atom, GaussianEvent)
        ]
        mu = math.sqrt(math.fsum(squares))
        return Claim(epsilon, at, Shape.GAUSSIAN, mu=mu, unit=phrase)
    shape = Shape.PURE if at == 0.0 else Shape.APPROXIMATE
    return Claim(epsilon, at, shape, unit=phrase)


def _unsampled(event: Event) -> Event:
    """The event with sampling at probability 1 written as no sampling."""
    plain: dict[events.Atom, int] = {}
    for atom, count in events.atoms(event).items():
        if isinstance(atom, PoissonGaussian) and atom.probability == 1.0:
            atom = GaussianEvent(atom.whole_multiplier)
        plain[atom] = plain.get(atom, 0) + count
    return events.from_atoms(plain)
