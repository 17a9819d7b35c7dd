"""Composition: the privacy loss distribution of different events on one grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.core.accounting import events
from demur.core.accounting import sampled_profiles as curves
from demur.core.accounting.events import Atom, Event
from demur.core.accounting.sampled_gaussian import gaussian_stick
from demur.core.accounting.stored_profile import Profile
from demur.core.accounting.totals import Total
from demur.core.rounding import up

_SEARCH_DOTS = 2**12  # Dots of the profile of a search.
_MOST_POINTS = 2**17  # Points of the grid of a whole ledger's distribution.


@dataclass(frozen=True)
class SearchCurve:
    """A bound on the profile of a search, `count` times.

    `deltas` at epsilons of any sign; past `highest` it is of no importance.
    """

    deltas: Callable[[NDArray[Any]], NDArray[Any]]
    highest: float
    count: int


class LossDistribution:
    """The privacy loss distribution of several parts, composed on one grid."""

    def __init__(
        self,
        total: Total,
        profiles: Mapping[Event, Profile],
        searches: Sequence[SearchCurve] = (),
    ) -> None:
        stored = _profiles_of(total, profiles)
        widths = sum(s.highest * math.sqrt(s.count) for s in searches)
        self._exponent = _common_exponent(stored, total, widths)
        self._parts = [
            (self._from_profile(profile), times) for profile, times in stored
        ]
        if total.mu_squared:
            self._parts.append((self._gaussian(total.mu_squared), 1))
        for eps, count in total.pure.items():
            if eps:
                self._parts.append((self._block(eps, 0.0), count))
        for (eps, delta), count in total.approx.items():
            self._parts.append((self._block(eps, delta), count))
        for search in searches:
            self._parts.append((self._search(search), search.count))
        self._whole = self._compose()

    @property
    def _error(self) -> float:
        return curves.FFT_ERROR * (50 + sum(10 + times for _, times in self._parts))

    def epsilon(self, delta: float) -> float:
        """Epsilon at delta, with what the Fourier transforms may have lost."""
        left = delta - self._error
        if left <= 0:
            return math.inf
        return up(float(self._whole.get_epsilon_for_delta(left)), 2)

    def delta(self, epsilon: float) -> float:
        """Delta at epsilon, with what the Fourier transforms may have lost."""
        delta = float(self._whole.get_delta_for_epsilon(epsilon))
        return min(1.0, up(delta + self._error, 2))

    def _compose(self) -> Any:
        whole = None
        for part, times in self._parts:
            more = part.self_compose(times) if times > 1 else part
            whole = more if whole is None else whole.compose(more)
        return whole

    def _from_profile(self, profile: Profile) -> Any:
        coarse = profile.coarser(self._exponent)
        stride = 2 ** (self._exponent - coarse.exponent)
        dots = (coarse.first + np.arange(coarse.remove.size)) * stride
        return self._dots(dots, coarse.remove, coarse.add)

    def _gaussian(self, mu_squared: float) -> Any:
        """Dots of the Gaussian's own profile, as far as 9.5 deviations of its loss."""
        mu = up(math.sqrt(mu_squared))
        step = math.ldexp(1.0, -self._exponent)
        ends = (mu / 2 - 9.5) * mu / step, (mu / 2 + 9.5) * mu / step
        dots = np.arange(math.floor(ends[0]), math.ceil(ends[1]) + 2)
        delta = np.clip(gaussian_stick(1 / mu, dots * step), 0.0, 1.0)
        curve = np.minimum.accumulate(delta)
        return self._dots(dots, curve, curve)

    def _block(self, epsilon: float, delta: float) -> Any:
        """The dominating pair of (epsilon, delta), by the dots around +-epsilon.

        Its hockey stick is straight in e^epsilon between the two, so four dots lose
        nothing but the rounding of epsilon to the grid.
        """
        step = math.ldexp(1.0, -self._exponent)
        far = math.ceil(epsilon / step)
        dots = np.unique([-far, -far + 1, far - 1, far])
        at = dots * step
        # (e^eps - e^at) / (1 + e^eps) for |at| <= eps, and 1 - e^at left of it.
        inside = -np.expm1(np.minimum(at - epsilon, 0.0)) / (1.0 + math.exp(-epsilon))
        pure = np.maximum(inside, -np.expm1(np.minimum(at, 0.0)))
        curve = np.minimum(delta + (1.0 - delta) * np.maximum(pure, 0.0), 1.0)
        return self._dots(dots, curve, curve)

    def _search(self, search: SearchCurve) -> Any:
        """Dots of a search's bound, and the largest convex curve below them.

        The true curve is convex in e^epsilon and below the bound, so it is below that
        one as well.
        """
        step = math.ldexp(1.0, -self._exponent)
        last = math.ceil(search.highest / step) + 1
        # Any dots will do; these are enough for a smooth curve.
        dots = np.unique(np.linspace(-1, last, min(last + 2, _SEARCH_DOTS)).astype(int))
        bound = np.minimum.accumulate(np.clip(search.deltas(dots * step), 0.0, 1.0))
        curve = _convex(np.exp(dots * step), bound)
        return self._dots(dots, curve, curve)

    def _dots(self, dots: NDArray[Any], remove: NDArray[Any], add: NDArray[Any]) -> Any:
        from dp_accounting.pld import pld_pmf
        from dp_accounting.pld import privacy_loss_distribution as pld

        step = math.ldexp(1.0, -self._exponent)
        return pld.PrivacyLossDistribution(
            pld_pmf.create_pmf_pessimistic_connect_dots(step, dots, remove),
            pld_pmf.create_pmf_pessimistic_connect_dots(step, dots, add),
        )


def _profiles_of(
    total: Total, profiles: Mapping[Event, Profile]
) -> list[tuple[Profile, int]]:
    """Profiles that make up the sampled events: stored ones first, the rest built."""
    stored: dict[Atom, list[tuple[int, Profile]]] = {}
    for event, profile in profiles.items():
        counts = events.atoms(event)
        if len(counts) == 1:
            ((atom, count),) = counts.items()
            stored.setdefault(atom, []).append((count, profile))
    parts: list[tuple[Profile, int]] = []
    for atom, left in total.sampled.items():
        for count, profile in sorted(stored.get(atom, []), key=lambda k: -k[0]):
            times, left = divmod(left, count)
            if times:
                parts.append((profile, times))
        if left:
            parts.append((curves.sampled_profile(atom, left), 1))
    return parts


def _convex(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """The largest convex function at or below the points, at their places."""
    corners = [0]
    for i in range(1, len(x)):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            corners.pop()
        corners.append(i)
    below = np.interp(x, x[corners], y[corners])
    return np.minimum.accumulate(np.clip(below, 0.0, 1.0))


def _common_exponent(
    stored: list[tuple[Profile, int]], total: Total, more: float = 0.0
) -> int:
    """The finest grid on which the whole range has an affordable number of points."""
    finest = max((p.exponent for p, _ in stored), default=curves.GRID_EXPONENT)
    smallest_pure = min((e for e in total.pure if e), default=1.0)
    finest = max(finest, math.ceil(-math.log2(smallest_pure)) + 3)
    range_of_loss = more + sum(p.width * math.sqrt(n) for p, n in stored)
    mu = math.sqrt(total.mu_squared)
    range_of_loss += 20.0 * mu + mu * mu
    for eps, n in [
        *total.pure.items(),
        *((e, n) for (e, _), n in total.approx.items()),
    ]:
        range_of_loss += min(n * eps, 20.0 * eps * math.sqrt(n) + n * eps * eps) * 2
    affordable = math.floor(math.log2(_MOST_POINTS / max(range_of_loss, 1e-9)))
    return max(-10, min(finest, affordable, 30))
