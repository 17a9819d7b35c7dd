"""Laws of the number of repetitions of a private search.

A search runs a mechanism K times and releases the best of the outcomes. K is drawn in
secret from one of these laws. Each has an upper limit, which is part of the law: what
is drawn is K given that K is at most the limit. All that a price needs of a law are its
weights p_k, which are finitely many and positive at k = 1, through the derivative of
the generating function f(x) = sum_k p_k x^k:

    f'(x) = sum_k k p_k x^(k-1),   rising in x,   f'(1) = E[K].

A limit only helps: d log f'/dx at x is the mean of (k - 1)/x under the weights
k p_k x^(k-1), and conditioning those on k <= limit lowers it, so f'(x) / f'(y) falls
for x > y; and E[K] falls too.

The law is its weights as floats, in exactly their proportions: K is drawn from those
(`draw`), and prices are computed from those. So the last digits of a formula do not
matter; what Horner's rule rounds is far below `SLACK`, which prices include.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from demur.core import validate

Array: TypeAlias = NDArray[np.float64]

SLACK = 1e-10
LARGEST_LIMIT = 20_000
_LARGEST_MEAN = 1000.0
_TAIL = 2.0**-20  # what a law loses at a limit that nobody chose
_LEAST_CHANCE = 1e-290  # of one run: every price divides by it
_FAR = 1e-12  # what E[K] loses at a limit that prices need not know of


class _Law:
    """What the laws share; each has a `limit` and the ratio of its weights."""

    limit: int | None

    def _ratios(self, k: Array) -> Array:
        """p_(k+1) / p_k for whole numbers k from `first`."""
        raise NotImplementedError

    @property
    def first(self) -> int:
        """The smallest number of repetitions."""
        return 0

    @cached_property
    def weights(self) -> Array:
        """The probability of each number of repetitions, from 0 to the limit."""
        assert self.limit is not None
        weights = _relative(self, self.limit)
        return weights / weights.sum()

    @property
    def mean(self) -> float:
        """The expected number of repetitions, rounded up."""
        counts = np.arange(len(self.weights))
        return float(counts @ self.weights) * (1.0 + SLACK)

    @property
    def nothing(self) -> float:
        """The chance of no run at all: the search then releases that it was empty."""
        return float(self.weights[0])

    def log_slope(self, x: Array, derivative: int = 1) -> Array:
        """log f'(x), or that of f'', by Horner's rule on positive terms."""
        slopes = self.weights
        for _ in range(derivative):
            slopes = np.arange(1, len(slopes)) * slopes[1:]
        value = np.zeros_like(x)
        for slope in slopes[::-1]:
            value = value * x + slope
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(value))

    def _set_limit(self, limit: int | None, mean: float) -> None:
        """The limit as given, or where the tail is below 2^-20."""
        if limit is not None:
            validate.count(limit=limit)
            if limit > LARGEST_LIMIT:
                raise ValueError(f"limit must be at most {LARGEST_LIMIT}; got {limit}")
            object.__setattr__(self, "limit", int(limit))
            self._refuse_rare_runs()
            return
        weights = _relative(self, LARGEST_LIMIT)
        tail = np.cumsum(weights[::-1])[::-1] / weights.sum()
        inside = np.flatnonzero(tail > _TAIL)
        last = int(inside[-1])
        if last >= LARGEST_LIMIT:
            raise ValueError(
                f"a mean of {mean:g} repetitions needs more than {LARGEST_LIMIT:,} runs"
                " at times: choose a smaller mean, or give limit="
            )
        object.__setattr__(self, "limit", max(last, 1))
        self._refuse_rare_runs()

    def _refuse_rare_runs(self) -> None:
        """A law whose chance of exactly one run is zero in floats has no price."""
        assert self.limit is not None
        relative = _relative(self, self.limit)
        if not relative[1] >= _LEAST_CHANCE * relative.sum():
            raise ValueError(
                "exactly one run must have a chance of at least 1e-290, since the price"
                " of a search divides by it: choose a law with another mean"
            )


def _relative(law: _Law, limit: int) -> Array:
    """Weights from 0 to `limit`, up to a factor, none above 1."""
    first = law.first
    k = np.arange(first, max(limit, first), dtype=np.float64)
    with np.errstate(divide="ignore", under="ignore"):
        logs = np.concatenate([[0.0], np.cumsum(np.log(law._ratios(k)))])
    return np.concatenate([np.zeros(first), np.exp(logs - logs.max())])


@dataclass(frozen=True)
class NegativeBinomialRepetitions(_Law):
    """A negative binomial K, given that K >= 1: p_k ~ (1-gamma)^k (eta)_k / k!.

    eta = 1 is the geometric law, eta = 0 the logarithmic one; eta > -1. The larger eta,
    the more evenly K lies around its mean, and the more a search costs.
    """

    eta: float
    gamma: float
    limit: int | None = None

    def __post_init__(self) -> None:
        validate.finite(eta=self.eta)
        validate.open_probability(gamma=self.gamma)
        object.__setattr__(self, "eta", float(self.eta))
        object.__setattr__(self, "gamma", float(self.gamma))
        if not -1.0 < self.eta <= 100.0:
            raise ValueError(f"eta must be above -1 and at most 100; got {self.eta}")
        self._set_limit(self.limit, 1.0 / self.gamma)

    @classmethod
    def of_mean(
        cls, mean: float, eta: float = 0.0, limit: int | None = None
    ) -> NegativeBinomialRepetitions:
        """The law with this mean (before the limit), which must be above 1."""
        validate.finite(mean=mean, eta=eta)
        if not 1.0 < mean <= _LARGEST_MEAN:
            raise ValueError(f"mean must be above 1 and at most 1000; got {mean}")
        if not -1.0 < eta <= 100.0:
            raise ValueError(f"eta must be above -1 and at most 100; got {eta}")
        low, high = 1e-12, 1.0 - 1e-12  # the mean falls in gamma
        for _ in range(100):
            middle = math.sqrt(low * high)
            low, high = (
                (middle, high) if _mean_of(eta, middle) > mean else (low, middle)
            )
        return cls(eta, high, limit)

    @property
    def mean_without_limit(self) -> float:
        """The mean of the law before it is cut at its limit."""
        return _mean_of(self.eta, self.gamma)

    @property
    def first(self) -> int:
        """At least one run."""
        return 1

    def _ratios(self, k: Array) -> Array:
        return (1.0 - self.gamma) * (k + self.eta) / (k + 1.0)


def _mean_of(eta: float, gamma: float) -> float:
    if abs(eta) < 1e-9:
        return (1.0 / gamma - 1.0) / -math.log(gamma)
    return eta * (1.0 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


@dataclass(frozen=True)
class PoissonRepetitions(_Law):
    """A Poisson K: p_k ~ mean^k / k!. No run at all has the chance e^-mean."""

    rate: float
    limit: int | None = None

    def __post_init__(self) -> None:
        validate.positive(rate=self.rate)
        object.__setattr__(self, "rate", float(self.rate))
        if self.rate > _LARGEST_MEAN:
            raise ValueError(f"rate must be at most 1000; got {self.rate}")
        self._set_limit(self.limit, self.rate)

    def _ratios(self, k: Array) -> Array:
        return self.rate / (k + 1.0)


@dataclass(frozen=True)
class BinomialRepetitions(_Law):
    """A binomial K: each of `trials` runs happens with this probability."""

    trials: int
    probability: float

    def __post_init__(self) -> None:
        validate.count(trials=self.trials)
        validate.open_probability(probability=self.probability)
        object.__setattr__(self, "trials", int(self.trials))
        object.__setattr__(self, "probability", float(self.probability))
        if self.trials > LARGEST_LIMIT:
            raise ValueError(f"trials must be at most {LARGEST_LIMIT}")
        self._refuse_rare_runs()

    @property
    def limit(self) -> int:  # type: ignore[override]
        """The number of trials."""
        return self.trials

    def _ratios(self, k: Array) -> Array:
        odds = self.probability / (1.0 - self.probability)
        return odds * (self.trials - k) / (k + 1.0)


Repetitions: TypeAlias = (
    NegativeBinomialRepetitions | PoissonRepetitions | BinomialRepetitions
)


_Drawn = TypeVar("_Drawn", NegativeBinomialRepetitions, PoissonRepetitions)


def without_limit(law: _Drawn) -> _Drawn:
    """The law with a limit so far out that its price holds for the law without one.

    Let s be the share of E[K] beyond the limit. The terms of f' beyond it are of higher
    powers, so their share of f'(x) rises with x and is at most s, at x = 1: E[K] and
    f'(x) / f'(y) of the law without a limit are at most 1 / (1 - s) times as large.
    s is at most 1e-12, which is inside of `SLACK`. A law that needs a larger limit than
    there may be is a ValueError.
    """
    terms = np.arange(LARGEST_LIMIT + 1) * _relative(law, LARGEST_LIMIT)
    last = float(LARGEST_LIMIT)
    ratio = float(law._ratios(np.array([last]))[0]) * (last + 1.0) / last
    beyond = terms[-1] * ratio / (1.0 - ratio) if ratio < 1.0 else math.inf
    tail = np.cumsum(terms[::-1])[::-1] + beyond  # from k on
    inside = np.flatnonzero(tail > _FAR * terms.sum())
    if inside[-1] >= LARGEST_LIMIT:
        raise ValueError(
            f"a law of this mean needs more than {LARGEST_LIMIT:,} runs at times, which"
            " is more than can be priced: choose a smaller mean"
        )
    return replace(law, limit=max(int(inside[-1]), 1))


def default_repetitions(settings: int) -> NegativeBinomialRepetitions:
    """Twice as many runs, on average, as there are settings, and seldom very few.

    With ten settings the chance that none of the best three was run is 2.5% for this
    law (eta = 4) and 10% for the geometric one (eta = 1), which costs a seventh less.
    The mean is at most 1000.
    """
    validate.count(settings=settings)
    mean = min(max(2.0, 2.0 * settings), _LARGEST_MEAN)
    return NegativeBinomialRepetitions.of_mean(mean, eta=4.0)


_LAWS: dict[str, type[Any]] = {
    "negative_binomial": NegativeBinomialRepetitions,
    "poisson": PoissonRepetitions,
    "binomial": BinomialRepetitions,
}
_NAMES = {cls: name for name, cls in _LAWS.items()}


def law_to_json(law: Repetitions) -> dict[str, Any]:
    """The law as plain data."""
    fields = {name: getattr(law, name) for name in law.__dataclass_fields__}
    return {"law": _NAMES[type(law)]} | fields


def law_from_json(data: object) -> Repetitions:
    """The law that `law_to_json` wrote; anything else is a ValueError."""
    if not isinstance(data, dict) or data.get("law") not in _LAWS:
        raise ValueError(f"not a law of repetitions: {validate.shorten(data)}")
    cls = _LAWS[data["law"]]
    values = {key: value for key, value in data.items() if key != "law"}
    if set(values) != set(cls.__dataclass_fields__):
        raise ValueError(f"not a law of repetitions: {validate.shorten(data)}")
    law: Repetitions = cls(**values)
    return law


@lru_cache(maxsize=64)
def _integers(law: Repetitions) -> tuple[int, ...]:
    """The weights as whole numbers in exactly their proportions, added up."""
    fractions = [Fraction(float(weight)) for weight in law.weights]
    scale = max(fraction.denominator for fraction in fractions)  # powers of two
    sums, total = [], 0
    for fraction in fractions:
        total += int(fraction * scale)
        sums.append(total)
    return tuple(sums)


def draw(law: Repetitions, read: Callable[[int], bytes]) -> int:
    """A number of repetitions, exactly by the law's weights, from uniform bytes."""
    sums = _integers(law)
    place = uniform(sums[-1], read)
    return next(k for k, total in enumerate(sums) if place < total)


def uniform(below: int, read: Callable[[int], bytes]) -> int:
    """A whole number from 0 to `below` - 1, each with the same chance, exactly."""
    validate.count(below=below)
    bits = (below - 1).bit_length()
    size = max(1, (bits + 7) // 8)
    while True:
        number = int.from_bytes(read(size), "big") >> (8 * size - bits)
        if number < below:
            return number
