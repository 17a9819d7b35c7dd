r"""The exponential mechanism over a fixed list, in exact integer arithmetic.

Scores are whole numbers (smaller is better) that one record changes by at most 1. With
beta a fraction a / 2^b at or just above e^(-epsilon/2), an index of score s is drawn
with probability proportional to beta^s. One record changes every weight, and hence
their sum, by a factor within [beta, 1/beta], and 1/beta <= e^(epsilon/2): the ratio of
two probabilities is at most e^epsilon, exactly. Scores are cut at S (which keeps them
1-sensitive), so that a^s 2^(b (S - s)) are integers, and a uniform integer below their
sum is drawn by rejection from the entry's stream: no rounding, statistical distance 0.

`GridQuantile` chooses a quantile in this way: the score of a candidate is the number of
values between it and the quantile, which one value changes by at most 1. Of values in
groups it chooses the largest of the groups' quantiles (`quantile_scores`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import recording, validate
from demur.core.accounting.events import Pure
from demur.core.adjacency import Unit
from demur.core.bounds import Bound, real_array
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration, Rebuilt, fingerprint_of
from demur.core.digest import digest_of_array, unchangeable
from demur.core.entropy import NoiseKey, Stream

_BITS = 32
_LARGEST_TABLE = 2.0**29  # bytes
_FURTHEST = 64.0  # natural logarithms below the best weight at which scores are cut


@dataclass(frozen=True, eq=False)
class GridQuantile(Rebuilt):
    """A quantile of some numbers, chosen from a public, sorted grid.

    Pure `epsilon` at `unit`, if a change of one record there changes one number.
    """

    quantile: float
    epsilon: float
    grid: NDArray[np.float64]
    unit: Unit
    name: str = "a quantile by the exponential mechanism"
    bounds: tuple[Bound, ...] = ()
    unprotected: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        validate.open_probability(quantile=self.quantile)
        grid = np.array(self.grid, dtype=np.float64)
        increasing = grid.ndim == 1 and grid.size and not (np.diff(grid) < 0).any()
        if not increasing or not np.isfinite(grid).all():
            raise ValueError(
                "grid must be a list of finite numbers in increasing order, at least"
                " one of them. Nothing was spent."
            )
        check_size(len(grid), self.epsilon)
        # A grid that changes after the charge would be other parameters.
        object.__setattr__(self, "grid", unchangeable(grid))
        object.__setattr__(self, "quantile", float(self.quantile))
        object.__setattr__(self, "epsilon", float(self.epsilon))

    def declaration(self) -> Declaration:
        """Cost and fine print, for the ledger."""
        return Declaration(
            self.name,
            Cost((Fixed(self.unit, Pure(self.epsilon)),)),
            bounds=self.bounds,
            unprotected=self.unprotected,
            assumptions=self.assumptions,
            fingerprint=self.fingerprint,
        )

    @cached_property
    def fingerprint(self) -> str:
        """What a key must have been paid for to draw for this mechanism."""
        kind = f"quantile {type(self).__qualname__}"
        return fingerprint_of(
            kind, self.quantile, self.epsilon, self.grid, self.unit.to_json()
        )

    def check(self, values: ArrayLike) -> NDArray[np.float64]:
        """The values as a float64 vector of their own, or a clear error."""
        vector = np.array(real_array("values", values))
        if vector.ndim != 1 or not np.isfinite(vector).all():
            raise ValueError(
                "values must be a list of finite numbers; got shape"
                f" {vector.shape}, or NaN or infinity in it. Nothing was spent."
            )
        return vector

    def digest(self, values: ArrayLike) -> str:
        """What an entry that pays for a quantile of these values is bound to."""
        return digest_of_array(self.check(values))

    def apply(self, values: ArrayLike, key: NoiseKey) -> float:
        """The candidate that was drawn; `key` is that of the payment."""
        vector = self.check(values)
        authorised = key.authorise(self.fingerprint, digest_of_array(vector))
        return self.drawn(vector, authorised)

    def drawn(
        self,
        values: NDArray[np.float64],
        authorised: NoiseKey,
        *,
        groups: NDArray[np.generic] | None = None,
    ) -> float:
        """The candidate, drawn by a key that `authorise` gave for this mechanism.

        For an engine whose values follow from the input that was paid for and from the
        key, so that the entry is bound to the input. With `groups`, one for each value,
        it is the largest of the quantiles of the groups.
        """
        authorised.check_authorised(self.fingerprint)
        scores = quantile_scores(values, self.quantile, self.grid, groups)
        stream = authorised.stream("exponential mechanism")
        return float(self.grid[draw_index(scores, self.epsilon, stream)])


def quantile_scores(
    values: NDArray[np.float64],
    quantile: float,
    grid: NDArray[np.float64],
    groups: NDArray[np.generic] | None = None,
) -> list[int]:
    """How many values the group that is furthest behind is away from its quantile.

    A candidate covers rank_g values of group g, and should cover
    aim_g = round(quantile n_g). One value changes the rank of its own group by at most
    1, and no aim; so max_g (aim_g - rank_g) changes by at most 1, and so does its
    absolute value. It is 0 at the largest of the groups' quantiles. Without `groups`
    all values are one group.
    """
    if groups is None or not values.size:
        parts = [values]
    else:
        parts = [values[groups == group] for group in np.unique(groups)]
    behind = np.max(
        [
            round(quantile * part.size)
            - np.searchsorted(np.sort(part), grid, side="right")
            for part in parts
        ],
        axis=0,
    )
    return [abs(int(count)) for count in behind]


def draw_index(scores: Sequence[int], epsilon: float, stream: Stream) -> int:
    """A random index, likelier the smaller its score: pure `epsilon`-DP, exactly.

    `scores` are whole numbers from 0 that one record changes by at most 1 each.
    """
    validate.positive(epsilon=epsilon)
    tape = recording.active()
    if tape is None:
        return _drawn(scores, epsilon, stream)
    return tape.record_use(
        "the exponential mechanism",
        recording.ScoredChoice(epsilon),
        (np.array(scores, dtype=np.int64),),
        lambda: _drawn(scores, epsilon, stream),
    )


def _drawn(scores: Sequence[int], epsilon: float, stream: Stream) -> int:
    weights = integer_weights(scores, epsilon)
    left = _below(sum(weights), stream)
    for index, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return index
    raise AssertionError("the weights add up to their sum")


def integer_weights(scores: Sequence[int], epsilon: float) -> list[int]:
    """Weights proportional to beta^min(score, S), as integers."""
    if not scores or any(score < 0 for score in scores):
        raise ValueError("scores must be whole numbers from 0, at least one of them")
    check_size(len(scores), epsilon)
    numerator = base_numerator(epsilon)
    last = _cut(len(scores), epsilon)
    powers: dict[int, int] = {}
    for score in {min(int(score), last) for score in scores}:
        powers[score] = numerator**score << (_BITS * (last - score))
    return [powers[min(int(score), last)] for score in scores]


def _cut(count: int, epsilon: float) -> int:
    """The score S at which scores are cut, from epsilon and the list's length alone."""
    return math.ceil(2.0 * (_FURTHEST + math.log(count)) / epsilon)


def check_size(count: int, epsilon: float) -> None:
    """Refuse, before anything is charged, weights that memory would not hold.

    A weight has 32 S bits, and there may be as many different ones as indices.
    """
    validate.positive(epsilon=epsilon)
    size = count * _cut(count, epsilon) * _BITS / 8
    if size > _LARGEST_TABLE:
        raise ValueError(
            f"epsilon={epsilon:g} is too small for a list of {count}: its exact weights"
            f" would take {size / 2**30:.1f} GiB. Use a larger epsilon or a shorter"
            " grid. Nothing was spent."
        )


def base_numerator(epsilon: float) -> int:
    """The smallest a with a / 2^32 certainly at or above e^(-epsilon/2)."""
    with localcontext() as context:
        context.prec = 60
        exact = (-Decimal(epsilon) / 2).exp() * (1 << _BITS)
        # exp is correctly rounded to 60 digits; one unit above covers its last one.
        return int((exact + Decimal(10) ** -30).to_integral_value(ROUND_CEILING))


def _below(limit: int, stream: Stream) -> int:
    """A uniform integer in [0, limit), by rejection."""
    bits = limit.bit_length()
    while True:
        raw = int.from_bytes(stream.read((bits + 7) // 8), "little")
        candidate = raw >> (-bits % 8)
        if candidate < limit:
            return candidate
