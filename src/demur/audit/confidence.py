r"""Confidence bounds on probabilities, epsilon and mu from a finite sample.

Every bound here is one-sided and finite-sample: at level `alpha` it fails with
probability at most `alpha`, for every sample size, without a normal approximation.

**Counts.** k of n independent runs hit an event of probability p. The Clopper-Pearson
limit is the p at which so many hits have probability exactly alpha; in terms of the
Beta law, low = Beta^-1(alpha; k, n - k + 1).

**Epsilon from counts.** (epsilon, delta)-privacy says P(S) <= e^epsilon Q(S) + delta
for every event S. With a lower limit on P(S) and an upper limit on Q(S), each at
alpha / 2, epsilon >= log((low - delta) / high) at alpha (union bound).

**mu from counts.** mu-GDP says Phi^-1(P(S)) - Phi^-1(Q(S)) <= mu for every event (the
trade-off curve, read at one test). The same two limits give a lower bound on mu that
holds for *every* mechanism, whatever its law.

**mu from shift and deviation.** If the scores are N(m_1, s^2) on one dataset and
N(m_0, s^2) on the other, the best test of the scores has mu = (m_1 - m_0) / s, and
post-processing makes it a lower bound on the mechanism's own. With n_1 and n_0 scores,
c = sqrt(1/n_1 + 1/n_0) and the pooled deviation S (n_1 + n_0 - 2 degrees of freedom),

    t = (mean_1 - mean_0) / (S c)

has exactly the noncentral t law with noncentrality mu / c: the means differ by
N(m_1 - m_0, s^2 c^2) independently of S. Its upper tail grows with mu, so the mu at
which P(T >= t) = alpha is an exact lower limit. The price of knowing neither mean nor
deviation is small: about sqrt(c^2 + mu^2 / (2 n)) z_alpha.

This last bound is a statement about Gaussian scores with one deviation. A mechanism
that claims Gaussian noise and is refuted by it is *not that mechanism*: either mu is
too large or the scores are not Gaussian, and both break the claim that was made. For a
claim of mu-GDP by some other law it proves nothing (randomised response at epsilon = 4
is 4.2-GDP, and its shift over deviation is 7.3): use the counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from demur.core import validate
from demur.core.accounting.gaussian import gaussian_epsilon

# The special functions are good to some 1e-13; limits are moved outwards by this.
_SLACK = 1e-10
_HALVINGS = 200


class Counts(NamedTuple):
    """`hits` of `runs` independent runs."""

    hits: int
    runs: int

    def checked(self) -> Counts:
        """The counts as plain integers, checked."""
        validate.count(runs=self.runs)
        if isinstance(self.hits, bool) or not 0 <= self.hits <= self.runs:
            raise ValueError(f"hits must be 0 to {self.runs}; got {self.hits}")
        return Counts(int(self.hits), int(self.runs))


def proportion_lower(hits: int, runs: int, alpha: float) -> float:
    """Clopper-Pearson: p is at least this, wrong with probability at most alpha.

    >>> round(proportion_lower(10, 10, 0.05), 4)  # 0.05^(1/10)
    0.7411
    """
    hits, runs = Counts(hits, runs).checked()
    validate.open_probability(alpha=alpha)
    if hits == 0:
        return 0.0
    return float(special.betaincinv(hits, runs - hits + 1, alpha)) * (1.0 - _SLACK)


def proportion_upper(hits: int, runs: int, alpha: float) -> float:
    """Clopper-Pearson: p is at most this, wrong with probability at most alpha.

    >>> round(proportion_upper(0, 10, 0.05), 4)
    0.2589
    """
    hits, runs = Counts(hits, runs).checked()
    validate.open_probability(alpha=alpha)
    if hits == runs:
        return 1.0
    limit = float(special.betainccinv(hits + 1, runs - hits, alpha))
    return min(1.0, limit * (1.0 + _SLACK))


def epsilon_from_counts(
    first: tuple[int, int], second: tuple[int, int], *, delta: float, alpha: float
) -> float:
    """A lower bound on epsilon from (hits, runs) of one event on two datasets.

    0 where nothing is shown; both limits hold together with probability 1 - alpha.

    >>> round(epsilon_from_counts((90, 100), (10, 100), delta=0.0, alpha=0.05), 2)
    1.54
    """
    validate.probability(delta=delta)
    validate.open_probability(alpha=alpha)
    low = proportion_lower(*first, alpha / 2.0)
    high = proportion_upper(*second, alpha / 2.0)
    if low <= delta:
        return 0.0
    return max(0.0, math.log((low - delta) / high) - _SLACK)


def mu_from_counts(
    first: tuple[int, int], second: tuple[int, int], *, alpha: float
) -> float:
    """A lower bound on mu from (hits, runs) of one event on two datasets, for any law.

    >>> round(mu_from_counts((90, 100), (10, 100), alpha=0.05), 2)
    1.86
    """
    validate.open_probability(alpha=alpha)
    low = proportion_lower(*first, alpha / 2.0)
    high = proportion_upper(*second, alpha / 2.0)
    if low <= high:
        return 0.0
    return max(0.0, float(special.ndtri(low) - special.ndtri(high)) * (1.0 - _SLACK))


def mu_from_shift(first: ArrayLike, second: ArrayLike, *, alpha: float) -> float:
    """A lower bound on mu from Gaussian scores of two datasets (module docstring).

    `first` is the side whose scores should be larger. Scores that do not vary at all
    raise an error: there is no noise in them.

    >>> rng = np.random.default_rng(0)
    >>> bound = mu_from_shift(rng.normal(1, 1, 5000), rng.normal(0, 1, 5000), alpha=.01)
    >>> 0.9 < bound < 1.0
    True
    """
    first_scores, second_scores = scores("first", first), scores("second", second)
    validate.open_probability(alpha=alpha)
    freedom = first_scores.size + second_scores.size - 2
    if min(first_scores.size, second_scores.size) < 2:
        raise ValueError(
            "first and second must have at least two scores each; got"
            f" {first_scores.size} and {second_scores.size}"
        )
    squares = float(
        ((first_scores - first_scores.mean()) ** 2).sum()
        + ((second_scores - second_scores.mean()) ** 2).sum()
    )
    deviation = math.sqrt(squares / freedom)
    largest = float(np.abs(np.concatenate([first_scores, second_scores])).max())
    if deviation <= 1e-12 * largest:
        raise ValueError(
            "first and second do not vary: there is no noise in the scores, and shift"
            " over deviation is not a number. Use method='counts'."
        )
    spread = math.sqrt(1.0 / first_scores.size + 1.0 / second_scores.size)
    t = float(first_scores.mean() - second_scores.mean()) / (deviation * spread)
    return _noncentrality(t, freedom, alpha) * spread * (1.0 - _SLACK)


def _noncentrality(t: float, freedom: int, alpha: float) -> float:
    """The largest noncentrality at which P(T >= t) is still at most alpha, from 0."""

    def gap(noncentrality: float) -> float:
        tail = float(stats.nct.sf(t, freedom, noncentrality))
        return math.log(max(tail, 1e-300)) - math.log(alpha)

    if t <= 0.0 or gap(0.0) >= 0.0:
        return 0.0
    high = t
    while gap(high) <= 0.0:
        high *= 2.0
    return float(optimize.brentq(gap, 0.0, high, rtol=1e-11)) * (1.0 - _SLACK)


def largest(
    holds: Callable[[float], bool], *, scale: float = 1.0, rtol: float = 1e-9
) -> float:
    """The largest x >= 0 at which `holds`, which is true up to some x and false above.

    0 if it does not hold at 0; otherwise the lower end of the last bracket.
    """
    if not holds(0.0):
        return 0.0
    low, high = 0.0, scale
    while holds(high):
        low, high = high, 2.0 * high
        if high > 1e6 * scale:
            return low
    for _ in range(_HALVINGS):
        if high - low <= rtol * high:
            break
        middle = (low + high) / 2.0
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Epsilon at delta of a mechanism that is no better than mu-GDP, rounded down.

    >>> round(epsilon_of_mu(1.0, 1e-6), 6)
    4.886554
    """
    if mu <= 0.0:
        return 0.0
    return gaussian_epsilon(mu * (1.0 - 1e-12), delta) * (1.0 - 1e-12)


def scores(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """One finite number for each run, checked."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be one number for each run") from None
    if numbers.ndim != 1 or numbers.size == 0:
        raise ValueError(
            f"{name} must be one number for each run; got shape {numbers.shape}"
        )
    bad = int((~np.isfinite(numbers)).sum())
    if bad:
        raise ValueError(
            f"{name} must be finite: {bad} of {numbers.size} scores are NaN or"
            " infinite. If only one dataset gives such scores, they tell the two apart."
        )
    return numbers
