"""What a search costs, and what one of its runs may cost for a given total."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from demur.core import accounting, validate
from demur.core.accounting.calibration import calibrate
from demur.core.accounting.events import BestOf, Event, GaussianEvent, Pure, Repeated
from demur.core.accounting.gaussian import gaussian_epsilon, gaussian_mu
from demur.core.accounting.repetitions import Repetitions, default_repetitions
from demur.core.rounding import down, up

_RTOL = 1e-3


def base_epsilon(
    epsilon: float,
    delta: float,
    repetitions: Repetitions,
    *,
    runs: Callable[[float], Iterable[Event]] | None = None,
) -> float:
    """The epsilon of one run, at `delta`, whose whole search costs `epsilon`.

    `runs(e)` are the events of what a run may be when it is calibrated to (e, delta);
    by default one Gaussian, or one pure event where delta is 0. What is returned has
    been priced; it is within 1e-3 of the largest, or 1e-2 where `runs` is given.

    >>> law = default_repetitions(5)
    >>> 0.5 < base_epsilon(1.0, 1e-6, law) < 0.7
    True
    """
    validate.positive(epsilon=epsilon)
    validate.probability(delta=delta)
    if runs is None:
        return _base(float(epsilon), float(delta), repetitions)
    near = _base(float(epsilon), float(delta), repetitions)
    return _calibrated(runs, epsilon, delta, repetitions, near, rtol=1e-2)


@lru_cache(maxsize=256)
def _base(epsilon: float, delta: float, repetitions: Repetitions) -> float:
    if delta == 0.0:
        return _calibrated(
            lambda e: [Pure(e)], epsilon, delta, repetitions, epsilon / 2.0
        )
    z = calibrate(
        lambda z: BestOf((GaussianEvent(z),), repetitions), epsilon, delta, rtol=_RTOL
    )
    return down(gaussian_epsilon(down(1.0 / z * (1.0 - 1e-9), 2), delta), 2)


def _calibrated(
    runs: Callable[[float], Iterable[Event]],
    epsilon: float,
    delta: float,
    repetitions: Repetitions,
    near: float,
    rtol: float = _RTOL,
) -> float:
    """The search is over 1 / e, which makes runs more private as it grows.

    It begins at `near`: a sampled plan takes seconds to be made and priced.
    """
    least = calibrate(
        lambda inverse: BestOf(tuple(runs(1.0 / inverse)), repetitions),
        epsilon,
        delta,
        bracket=(0.98 / near, 1.05 / near),
        rtol=rtol,
    )
    return 1.0 / least


@dataclass(frozen=True)
class SearchCost:
    """The price of a search, of one run, and of as many runs composed."""

    settings: int
    repetitions: Repetitions
    run: float
    search: float
    composed: float

    @property
    def multiple(self) -> float:
        """The search as a multiple of one run."""
        return self.search / self.run


def search_costs(
    epsilons: Sequence[float],
    settings: Sequence[int],
    delta: float,
    repetitions: Callable[[int], Repetitions] = default_repetitions,
) -> list[SearchCost]:
    """For each epsilon of one Gaussian run, at `delta`, and each number of settings.

    `composed` is what fitting and scoring every setting once costs, on disjoint
    persons, by composition.

    >>> (cost,) = search_costs([1.0], [10], 1e-6)
    >>> cost.search < 2.0 < cost.composed
    True
    """
    found = []
    for epsilon in epsilons:
        run = GaussianEvent(up(1.0 / gaussian_mu(epsilon, delta)))
        for m in settings:
            law = repetitions(m)
            search = accounting.price(BestOf((run,), law), delta)
            composed = accounting.price(Repeated(run, m), delta)
            found.append(SearchCost(m, law, float(epsilon), search, composed))
    return found
