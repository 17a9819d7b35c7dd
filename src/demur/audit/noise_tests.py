"""Tests of raw noise: its distribution, independence and repeats.

`noise_test` tests whether draws follow a `Law`. Two families of tests share alpha:

- *cells*: Pearson's statistic over 32 cells of nearly equal, exactly known probability
  (n / 32 > 500 expected in each, where its chi-square law is good at 1e-6);
- *tails*: exact binomial tests of how many draws lie beyond fixed quantiles, on either
  side and on both. These detect a wrong scale first and have exact level and power.

Draws that are not on the law's lattice refute it at once: their last bits are wrong.

**Power is built in.** `draws_needed` computes, from exact binomial probabilities, how
many draws it takes to reject a scale that is 5% too large and one that is 5% too small,
each with probability 1 - 1e-6, at the alpha in use (about 36,000 for a Gaussian at
1e-6). Fewer draws raise an error. Each test also runs its own control: the same draws,
moved to the same quantiles of the law that is 1.05 times as wide, and 1 / 1.05, must be
rejected, or it raises `NoPower` and gives no result.

`independence_test` looks for correlation between the columns of a matrix of draws
(leaves, shards, steps) and along each of them, in values and in magnitudes. After the
probability transform the numbers are standard normal, and the correlation of disjoint
independent normal pairs has an exact t law. Its control mixes a tenth of one column
into another. `repeat_test` refutes noise in which a row occurs twice.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from demur.audit.distributions import Law
from demur.audit.errors import NoPower
from demur.audit.result import AuditResult
from demur.core import validate

Values: TypeAlias = NDArray[np.float64]
ALPHA = 1e-6
WRONG_SCALE = 1.05
_CELLS = 32
_TAILS = (0.5, 0.3, 0.14, 0.05, 0.01)
_MISS = 1e-6  # how often a control may fail to be rejected
_FAR = 5.0  # standard deviations, where magnitudes are cut off
_CORRELATION = 0.1  # what the control of the independence test has


@dataclass(frozen=True)
class _Event:
    """low <= x < high, or its complement."""

    low: float
    high: float
    outside: bool
    probability: float

    def count(self, draws: Values) -> int:
        inside = int(((draws >= self.low) & (draws < self.high)).sum())
        return draws.size - inside if self.outside else inside

    def under(self, law: Law) -> float:
        """Its probability under another law."""
        return _probability(law, self.low, self.high, self.outside)


def _probability(law: Law, low: float, high: float, outside: bool) -> float:
    below = float(law.cdf(low)) if low > -math.inf else 0.0
    above = 1.0 - float(law.cdf(high)) if high < math.inf else 0.0
    return below + above if outside else 1.0 - below - above


def _tails(law: Law) -> list[_Event]:
    events = []
    for tail in _TAILS:
        edges = law.edges([tail / 2.0, 1.0 - tail / 2.0])
        ends = [(float(edges[0]), math.inf), (-math.inf, float(edges[-1]))]
        if len(edges) == 2:
            ends.append((float(edges[0]), float(edges[1])))
        for low, high in ends:
            p = _probability(law, low, high, True)
            if 0.0 < p < 1.0:
                events.append(_Event(low, high, True, p))
    return events


# -- one law ---------------------------------------------------------------------------


@lru_cache(maxsize=256)
def draws_needed(
    law: Law,
    *,
    alpha: float = ALPHA,
    ratio: float = WRONG_SCALE,
    miss: float = _MISS,
) -> int:
    """The draws at which a scale off by `ratio`, either way, is missed with `miss`.

    From the exact power of the best single tail test; the test as a whole has more.

    >>> from demur.audit.distributions import normal
    >>> 30_000 < draws_needed(normal(1.0)) < 45_000
    True
    """
    validate.open_probability(alpha=alpha, miss=miss)
    validate.positive(ratio=ratio)
    if ratio == 1.0:
        raise ValueError("ratio must not be 1, which is the right scale")
    events = _tails(law)
    level = alpha / 2.0 / len(events)
    right = np.array([event.probability for event in events])
    wrong = [
        np.array([event.under(other) for event in events])
        for other in (law.off_by(ratio), law.off_by(1.0 / ratio))
    ]

    def enough(n: int) -> bool:
        return all(_misses(right, q, n, level).min() <= miss for q in wrong)

    high = 64
    while not enough(high):
        high *= 2
        if high > 2**40:
            raise NoPower(f"no number of draws detects a scale off by {ratio:g}")
    low = high // 2
    while high - low > max(1, high // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _misses(p: Values, q: Values, n: int, level: float) -> Values:
    """How often two-sided binomial tests of p accept q, for each of several events."""
    # Rejected are counts with a tail of at most level / 2 under p.
    most = stats.binom.isf(level / 2.0, n, p) + 1.0
    least = stats.binom.ppf(level / 2.0, n, p) - 1.0
    return np.asarray(stats.binom.cdf(most, n, q) - stats.binom.cdf(least, n, q))


def noise_test(
    draws: ArrayLike,
    law: Law,
    *,
    alpha: float = ALPHA,
    ratio: float = WRONG_SCALE,
    subject: str = "a noise source",
) -> AuditResult:
    """Whether raw noise follows `law`; `NoPower` if the test cannot detect `ratio`.

    >>> from demur.audit.distributions import normal
    >>> rng = np.random.default_rng(0)
    >>> noise_test(rng.normal(size=50_000), normal(1.0)).refuted
    False
    >>> noise_test(rng.normal(size=50_000) * 0.95, normal(1.0)).refuted
    True
    """
    values = _draws(draws)
    if values.ndim != 1:
        raise ValueError(f"draws must be a vector; got shape {values.shape}")
    validate.open_probability(alpha=alpha)
    needed = draws_needed(law, alpha=alpha, ratio=ratio)
    if values.size < needed:
        raise NoPower(
            f"{values.size} draws are too few to detect a scale off by {ratio:g}: give"
            f" at least {needed}"
        )

    def result(refuted: bool, evidence: str, p_value: float = 0.0) -> AuditResult:
        return AuditResult.of_draws(
            subject,
            "exact-distribution test",
            runs=values.size,
            alpha=alpha,
            refuted=refuted,
            evidence=evidence,
            factor=ratio,
            p_value=p_value,
        )

    off = _off_lattice(values, law)
    if off:
        return result(True, f"{off} draws are not on the lattice of {law.name}.")
    p_value, failed = _tested(values, law, alpha)
    if failed:
        return result(True, f"Not {law.name}: {failed[0]}.", p_value)
    rng = np.random.default_rng(values.size)
    for wrong in (ratio, 1.0 / ratio):
        if not failures(law.rescaled(values, wrong, rng), law, alpha):
            raise NoPower(
                f"the control, the same draws {wrong:.4g} times as wide, was not"
                " rejected: the test has no power on these draws"
            )
    return result(
        False,
        f"They follow {law.name}; the same draws {ratio:g} times as wide do not.",
        p_value,
    )


def failures(draws: Values, law: Law, alpha: float) -> list[str]:
    """The tests of the law that these draws fail, all at alpha together."""
    return _tested(draws, law, alpha)[1]


def _tested(draws: Values, law: Law, alpha: float) -> tuple[float, list[str]]:
    """The p-value of all tests together, and those that fail at alpha."""
    failed = []
    n = draws.size
    inner = law.edges(np.arange(1, _CELLS) / _CELLS)
    edges = np.concatenate([[-np.inf], inner, [np.inf]])
    functions = np.concatenate([[0.0], np.asarray(law.cdf(inner)), [1.0]])
    expected = n * np.diff(functions)
    possible = expected > 0
    seen = np.histogram(draws, edges)[0]
    if (seen[~possible] > 0).any():
        failed.append("draws where the law has none")
    gaps = (seen[possible] - expected[possible]) ** 2 / expected[possible]
    p = float(stats.chi2.sf(gaps.sum(), int(possible.sum()) - 1))
    together = [1.0, 2.0 * p]
    if p < alpha / 2.0:
        failed.append(f"its cells have p = {p:.2g}")
    events = _tails(law)
    for event in events:
        hits = event.count(draws)
        p = 2.0 * min(
            float(stats.binom.cdf(hits, n, event.probability)),
            float(stats.binom.sf(hits - 1, n, event.probability)),
        )
        together.append(p * 2.0 * len(events))
        if p < alpha / 2.0 / len(events):
            failed.append(
                f"{hits} draws beyond a quantile, {n * event.probability:.0f} expected"
                f" (p = {p:.2g})"
            )
    return (0.0 if failed else min(together)), failed


def _off_lattice(draws: Values, law: Law) -> int:
    if not law.step:
        return 0
    index = draws / law.step
    return int((index != np.rint(index)).sum())


# -- independence ----------------------------------------------------------------------


def independence_test(
    draws: ArrayLike,
    law: Law,
    *,
    lags: tuple[int, ...] = (1, 2),
    alpha: float = ALPHA,
    subject: str = "a noise source",
) -> AuditResult:
    """Whether the columns of `draws`, and each along itself, are uncorrelated.

    Rows are draws, columns the series that must not share noise (leaves, shards,
    coordinates). A correlation of 0.1 between two columns is detected.
    """
    values = _draws(draws)
    if values.ndim != 2:
        raise ValueError(f"draws must be a matrix; got shape {values.shape}")
    validate.open_probability(alpha=alpha)
    n, k = values.shape
    tests = 2 * (k * (k - 1) // 2 + k * len(lags))
    if tests == 0:
        raise ValueError("draws has one column and lags is empty: nothing to compare")
    level = alpha / tests
    # Disjoint pairs at a lag are n / 2 at most, and must detect the control.
    needed = _pairs_needed(level)
    if (n // 2 if lags else n) < needed:
        raise NoPower(f"{n} rows are too few: give {2 * needed if lags else needed}")
    z = _normal_scores(values, law)
    p, where = min(_least_varying(values, law), _most_correlated(z, lags))
    mixed = z.copy()
    other = 1 if k > 1 else 0
    if k > 1:
        mixed[:, other] = _mix(z[:, 0], z[:, 1])
    else:
        lag = lags[0]
        mixed[lag:, 0] = _mix(z[:-lag, 0], z[lag:, 0])
    refuted = p < level
    if not refuted and not _most_correlated(mixed, lags)[0] < level:
        raise NoPower("the control, a tenth of one series in another, was not rejected")
    evidence = (
        f"Noise is shared {where} (p = {p:.2g})."
        if refuted
        else f"No correlation in {tests} comparisons; {_CORRELATION} would be detected."
    )
    return AuditResult.of_draws(
        subject,
        "independence test",
        runs=n,
        alpha=alpha,
        refuted=refuted,
        evidence=evidence,
        p_value=min(1.0, tests * p),
    )


def repeat_test(
    rows: ArrayLike, law: Law, *, alpha: float = ALPHA, subject: str = "a noise source"
) -> AuditResult:
    """Whether a row of lattice noise occurs twice, which chance makes below alpha.

    Two independent draws are equal with probability at most that of the likeliest
    lattice point; a pair of rows with its d-th power; some pair by the union bound.
    """
    values = _draws(rows)
    if values.ndim != 2:
        raise ValueError(f"rows must be a matrix; got shape {values.shape}")
    validate.open_probability(alpha=alpha)
    if not law.step:
        raise ValueError("law must have a lattice step, on which repeats are counted")
    n, d = values.shape
    centre = float(law.quantile(0.5))
    at = np.rint(centre / law.step) * law.step
    single = float(law.cdf(at + law.step / 2.0) - law.cdf(at - law.step / 2.0))
    chance = math.log(n * (n - 1) / 2.0) + d * math.log(single) if n > 1 else -math.inf
    if chance > math.log(alpha):
        raise NoPower(
            f"among {n} rows of {d} draws a repeat is likely by chance: give longer"
            " rows"
        )
    repeats = n - len(np.unique(values, axis=0))
    return AuditResult.of_draws(
        subject,
        "repeat test",
        runs=n,
        alpha=alpha,
        refuted=repeats > 0,
        evidence=f"{repeats} of {n} rows of noise repeat another.",
    )


def _draws(draws: ArrayLike) -> Values:
    values = np.asarray(draws, dtype=np.float64)
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError("draws must be finite numbers, at least one of them")
    return values


def _normal_scores(draws: Values, law: Law) -> Values:
    tiny = np.finfo(np.float64).tiny
    return np.asarray(special.ndtri(np.clip(law.uniform(draws), tiny, 1.0 - 2.0**-53)))


def _mix(column: Values, into: Values) -> Values:
    return _CORRELATION * column + math.sqrt(1.0 - _CORRELATION**2) * into


def _most_correlated(z: Values, lags: tuple[int, ...]) -> tuple[float, str]:
    """The smallest p-value of all comparisons, and what was compared."""
    best, where = 1.0, "nowhere"
    # Magnitudes as standard normals: values with random signs are uncorrelated.
    # Noise of exactly 0 would be -inf, and two such draws in one row would alarm.
    sizes = special.ndtri(2.0 * special.ndtr(np.abs(z)) - 1.0)
    sizes = np.clip(sizes, -_FAR, _FAR)
    for name, series in (("values", z), ("magnitudes", sizes)):
        for i, j in itertools.combinations(range(z.shape[1]), 2):
            p = _p_value(series[:, i], series[:, j])
            if p < best:
                best, where = p, f"between series {i} and {j} ({name})"
        for i, lag in itertools.product(range(z.shape[1]), lags):
            p = _p_value(*_disjoint(series[:, i], lag))
            if p < best:
                best, where = p, f"along series {i} at lag {lag} ({name})"
    return best, where


def _least_varying(draws: Values, law: Law) -> tuple[float, str]:
    """The probability that a series is constant: the mass of its value, n - 1 times.

    A constant has no correlation with anything, and no noise in it.
    """
    still = np.flatnonzero(np.ptp(draws, axis=0) == 0.0)
    if not still.size:
        return 1.0, "nowhere"
    value, half = draws[0, still[0]], law.step / 2.0
    mass = float(law.cdf(value + half) - law.cdf(value - half))
    return mass ** (len(draws) - 1), f"by all draws of series {still[0]}"


def _disjoint(series: Values, lag: int) -> tuple[Values, Values]:
    """Pairs at distance `lag` that share no element: their correlation is exact."""
    validate.count(lag=lag)
    whole = series[: series.size - series.size % (2 * lag)].reshape(-1, 2, lag)
    return whole[:, 0].reshape(-1), whole[:, 1].reshape(-1)


def _p_value(first: Values, second: Values) -> float:
    if np.ptp(first) == 0.0 or np.ptp(second) == 0.0:
        return 1.0
    r = float(np.corrcoef(first, second)[0, 1])
    if abs(r) >= 1.0:
        return 0.0
    t = r * math.sqrt((first.size - 2) / (1.0 - r * r))
    return float(2.0 * stats.t.sf(abs(t), first.size - 2))


def _pairs_needed(level: float) -> int:
    reach = float(special.ndtri(1.0 - level / 2.0) + special.ndtri(1.0 - _MISS))
    return math.ceil((reach / math.atanh(_CORRELATION)) ** 2) + 3
