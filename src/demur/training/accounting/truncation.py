"""Truncated batches: how large a cap must be to cost almost nothing.

A cap B on Poisson batches of n records (a group of the cycle) costs privacy, because a
record in a full batch pushes another one out: with probability
P[Bin(n - 1, q) >= B] a step has twice the sensitivity (Ganesh 2025). Beyond
qn + 5 sqrt(qn) that probability is about 1e-6 and the price is that of no cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.stats import binom

from demur.core import accounting, validate
from demur.core.accounting.events import (
    Neighbours,
    PoissonGaussian,
    TruncatedPoissonGaussian,
)


@dataclass(frozen=True)
class CapChoice:
    """A cap, what it costs (about), and how often a step meets it."""

    truncated_batch_size: int
    epsilon: float
    untruncated_epsilon: float
    truncation_probability: float


def nearly_free_cap(num_examples: int, sampling_prob: float) -> int:
    """The usual cap: qn + 5 sqrt(qn), rounded up.

    >>> nearly_free_cap(60_000, 128 / 60_000)
    185
    """
    validate.count(num_examples=num_examples)
    validate.probability(sampling_prob=sampling_prob)
    mean = num_examples * sampling_prob
    return max(1, min(num_examples, math.ceil(mean + 5.0 * math.sqrt(mean))))


def choose_cap(
    num_examples: int,
    sampling_prob: float,
    *,
    rounds: int,
    noise_multiplier: float,
    delta: float,
    extra: float = 0.01,
    neighbours: Neighbours = Neighbours.ZERO_OUT,
) -> CapChoice:
    """The smallest cap that raises epsilon by at most the share `extra`.

    `num_examples` is the public size of one group and `rounds` the number of its turns.
    Prices are rough: they only choose a cap, and the plan made with it is priced in
    full.

    >>> choice = choose_cap(10_000, 0.01, rounds=1000, noise_multiplier=1.0, delta=1e-5)
    >>> 140 < choice.truncated_batch_size < 150
    True
    """
    validate.count(num_examples=num_examples, rounds=rounds)
    validate.open_probability(sampling_prob=sampling_prob, delta=delta)
    validate.positive(noise_multiplier=noise_multiplier, extra=extra)
    if neighbours is Neighbours.ADD_OR_REMOVE_ONE:
        raise ValueError(
            "neighbours must be zero_out or replace_one: a cap is priced by the number"
            " of records, which add-or-remove keeps secret"
        )
    plain = accounting.rough_price(
        PoissonGaussian(sampling_prob, noise_multiplier, neighbours), rounds, delta
    )

    def price(cap: int) -> float:
        event = TruncatedPoissonGaussian(
            num_examples, sampling_prob, cap, noise_multiplier, neighbours
        )
        return accounting.rough_price(event, rounds, delta)

    low = max(1, math.floor(num_examples * sampling_prob))
    high = max(low, nearly_free_cap(num_examples, sampling_prob))
    while price(high) > plain * (1 + extra) and high < num_examples:
        low, high = high, min(num_examples, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if price(middle) <= plain * (1 + extra) else (middle, high)
        )
    return CapChoice(
        high,
        price(high),
        plain,
        float(binom.sf(high - 1, num_examples - 1, sampling_prob)),
    )
