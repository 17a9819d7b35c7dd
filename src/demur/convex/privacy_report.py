"""The privacy report of a fitted head: its promise at every radius and beyond."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from demur.convex.sensitivity.curves import Breakdown
from demur.convex.sensitivity.form import unit_of
from demur.core import accounting, validate
from demur.core.accounting.events import BestOf, Event, GaussianEvent, Pure
from demur.core.adjacency import Ball, ReplaceOne, Unit
from demur.core.cost import GaussianOverBalls
from demur.core.display import Displayed
from demur.core.entry import Entry
from demur.core.errors import NotCovered
from demur.core.promise import Promise

_NORMAL = NormalDist()
_CURVE_POINTS = 25
_BOUNDS = 20  # points of a search's profile that bound a reconstruction


@dataclass(frozen=True)
class PrivacyReport(Displayed):
    """The privacy of one release: at its radius, at every other radius and beyond.

    `promise` is what was asked for, at a ball or at ReplaceOne(); `sigma` is the
    deviation of the noise on each coordinate, one number or (for prototypes) one for
    each class; `entry` is the ledger entry that paid; `space` is the space of the rows;
    `counts` are the records of each class as a reader knows them (for prototypes):
    public at a ball, released with noise at ReplaceOne().
    """

    promise: Promise
    norm_bound: float
    mechanism: str
    sigma: float | tuple[float, ...]
    sensitivity: Breakdown | None
    entry: Entry
    space: str = "records"
    counts: tuple[float, ...] | None = None

    @property
    def epsilon(self) -> float:
        """The epsilon that was asked for."""
        return self.promise.epsilon

    @property
    def delta(self) -> float:
        """The delta that was asked for."""
        return self.promise.delta

    @property
    def unit(self) -> Ball | ReplaceOne:
        """The unit that the promise was made at."""
        return unit_of(self.promise)

    @property
    def radius(self) -> float | None:
        """The radius that was asked for; None where the unit is ReplaceOne()."""
        return self.unit.radius if isinstance(self.unit, Ball) else None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the statement assumes."""
        return self.entry.declaration.assumptions

    @property
    def unprotected(self) -> tuple[str, ...]:
        """What the unit does not protect."""
        return self.entry.declaration.unprotected

    @property
    def mu(self) -> float:
        """The release is mu-GDP at its unit: N(0, 1) against N(mu, 1).

        The winner of a private search is not: asking is a `NotCovered`.
        """
        return _mu(self._event(self.unit))

    @property
    def searched(self) -> bool:
        """Whether this is the winner of a private search, which paid for all runs."""
        return isinstance(self._event(self.unit), BestOf)

    @property
    def recorded(self) -> bool:
        """Whether a durable ledger holds the entry."""
        return self.entry.durable

    def mu_at(self, radius: float) -> float:
        """mu for a same-label move of one record by at most `radius`."""
        return _mu(self._event(Ball(radius, space=self.space)))

    def epsilon_at(self, radius: float, *, delta: float | None = None) -> float:
        """Epsilon for a same-label move by at most `radius`, at the report's delta."""
        return self._epsilon(Ball(radius, space=self.space), delta)

    def curve(
        self, radii: Sequence[float] | None = None, *, delta: float | None = None
    ) -> tuple[tuple[float, float], ...]:
        """(radius, epsilon) pairs, by default up to where the curve saturates."""
        if radii is None:
            end = self._largest()
            radii = [end * k / _CURVE_POINTS for k in range(1, _CURVE_POINTS + 1)]
        return tuple((float(r), self.epsilon_at(r, delta=delta)) for r in radii)

    @property
    def same_label_epsilon(self) -> float:
        """Epsilon for the replacement of a record by any other of its label."""
        return self.epsilon_at(self._largest())

    @property
    def full_replacement_epsilon(self) -> float | None:
        """Epsilon for any replacement, label included; None where it has no cost."""
        try:
            return self._epsilon(ReplaceOne(), None)
        except NotCovered:
            return None

    def reconstruction_bound(
        self, kappa: float, *, radius: float | None = None
    ) -> float:
        """The largest chance to reconstruct a record, prior chance `kappa` (ReRo).

        For a prior on the ball of `radius` around a record whose best guess succeeds
        with probability kappa, no attack on the release succeeds with more than
        Phi(Phi^-1(kappa) + mu). (The success event has at most that probability under
        mu-GDP; the bound is concave in kappa, so it survives averaging over the prior.)
        """
        validate.open_probability(kappa=kappa)
        unit = self.unit if radius is None else Ball(radius, space=self.space)
        event = self._event(unit)
        if isinstance(event, BestOf):
            # At each point of the profile: success is at most e^eps kappa + delta.
            end = accounting.price(event, kappa / 100.0)
            points = [end * share / _BOUNDS for share in range(_BOUNDS + 1)]
            bounds = [
                math.exp(e) * kappa + accounting.delta_of(event, e) for e in points
            ]
            return min(1.0, min(bounds) * (1.0 + 1e-12))
        mu = _mu(event)
        return min(1.0, _NORMAL.cdf(_NORMAL.inv_cdf(kappa) + mu) * (1.0 + 1e-12))

    def statement(self, *, records: int | None = None) -> str:
        """The privacy statement: one paragraph, which says whether it was recorded."""
        return self.entry.statement(records=records)

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit.to_json(),
            "radius": self.radius,
            "space": self.space,
            "norm_bound": self.norm_bound,
            "mechanism": self.mechanism,
            "mu": None if self.searched else self.mu,
            "sigma": self.sigma if isinstance(self.sigma, float) else list(self.sigma),
            "epsilon_at_unit": self._epsilon(self.unit, None),
            "same_label_epsilon": self.same_label_epsilon,
            "full_replacement_epsilon": self.full_replacement_epsilon,
            "curve": [list(point) for point in self.curve()],
            "sensitivity": self.sensitivity.to_json() if self.sensitivity else None,
            "assumptions": list(self.assumptions),
            "unprotected": list(self.unprotected),
            "recorded": self.recorded,
            "private": self.entry.private,
            "entry": self.entry.id,
            "statement": self.statement(),
        }

    def _largest(self) -> float:
        """The radius from which on a record may be any other of its label.

        2B for rows in their own space, more or less in a space before preprocessing.
        """
        for term in self.entry.declaration.cost.basic_terms():
            if isinstance(term, GaussianOverBalls) and term.space == self.space:
                return term.sensitivity.knots[-1][0]
        return 2.0 * self.norm_bound

    def _event(self, unit: Unit) -> Event:
        return self.entry.declaration.cost.at(unit, self.entry.maps)

    def _epsilon(self, unit: Unit, delta: float | None) -> float:
        return self.entry.epsilon(unit, self.delta if delta is None else delta)


def _mu(event: Event) -> float:
    match event:
        case GaussianEvent(multiplier=z):
            return 1.0 / z
        case Pure(epsilon=0.0):
            return 0.0
    raise NotCovered(f"{event!r:.80} is not a Gaussian event: it has no single mu")
