r"""The price of a private search: the best of a secret number of runs.

Q returns an outcome with a score, and is private as a pair. K is drawn from a law with
generating function f, Q is run K times, and the outcome with the best score is
released; for K = 0 a fixed symbol is. Ties go to the earliest run: the runs are
exchangeable, so that is the same law as breaking them by independent uniform numbers.
Settings that differ from run to run are part of Q, which first draws one at random.
What follows holds for two datasets at whatever distance, with Q, Q' the outcomes and
A, A' the releases in the two worlds.

**Lemma.** Order the outcomes by their scores. With x(t) = Q(worse than y) + t q(y) and
x'(t) likewise, t from 0 to 1,

    A(y) = f(x(1)) - f(x(0)) = q(y) int_0^1 f'(x(t)) dt,   and the same for A'.

1 - x(t) and 1 - x'(t) are the probabilities of one randomised test ("better than y, or
y and a coin of chance 1 - t"), in the two worlds. So if delta(epsilon) is the privacy
profile of Q, the larger of the two directions, then u = 1 - x and 1 - x' satisfy, for
every epsilon >= 0,

    1 - x' <= e^epsilon u + delta(epsilon),   1 - x' <= 1 - (1 - u - delta) / e^epsilon,

that is 1 - x' <= T(u), T the least of them all. Let C be the largest f'(x) / f'(x')
over those pairs; as f' rises it is found at 1 - x' = T(u), and it is finite as p_1 > 0.

**Profile.** delta_A(epsilon + log C) <= E[K] delta_Q(epsilon), epsilon + log C >= 0.
Proof: for a set S of outcomes, A(S) - e^epsilon C A'(S)
= sum_S int [q f'(x) - e^epsilon q' C f'(x')] dt, which is at most
sum_S int (q - e^epsilon q') f'(x) dt <= f'(1) sum max(0, q - e^epsilon q')
= E[K] delta_Q(epsilon). K = 0 has the same chance p_0 in both worlds, which adds
nothing there; left of 0, where a distribution to be composed has a point, it adds
p_0 (1 - C e^epsilon).

**Pure.** delta_Q(epsilon) = 0 gives epsilon + log C. For the negative binomial law,
f'(x) ~ (1 - (1 - gamma) x)^-(1+eta), this is

    epsilon + (1 + eta) log((e^epsilon + gamma) / (1 + gamma e^epsilon))

since T crosses at u = 1 / (1 + e^epsilon); it is below the known (2 + eta) epsilon.

**Renyi.** With R = sup [a log f'(x) - (a - 1) log f'(x')] over the same pairs, for an
order a > 1: e^((a-1) D_a(A)) <= e^((a-1) D_a(Q) + R) + f(0). Proof: p^a q^(1-a) is
jointly convex and homogeneous in (p, q), so that A(y)^a A'(y)^(1-a)
<= q^a q'^(1-a) int f'(x)^a f'(x')^(1-a) dt; sum over y, and add the symbol of K = 0.

These contain what is known: (2 + eta) epsilon, the Renyi bounds for the negative
binomial and for the Poisson law (Papernot, Steinke 2022), and the profile bounds for
those and for the binomial law (Koskela, Redberg, Wang 2024) follow by weaker bounds on
C. A law needs no closed form, so that a limit on K is accounted for as it is.

Candidates: Q draws its setting by a public rule, so its outcome with the setting is a
mixture with public weights, whose profile is at most the largest of the settings'
profiles at each epsilon, and so are D_a's exponentials. `events` are those
alternatives. Training on some persons and scoring on others makes two alternatives of
the pair: a person of the first part changes the outcome alone, and the score follows
from it; a person of the second part changes the score alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from demur.core.accounting.repetitions import SLACK, Array, Repetitions
from demur.core.rounding import up

_FIRST_CELLS = 128
_PARTS = 4  # of a cell that is looked at more closely
_ROUNDS = 12
_MOST_CELLS = 4096  # still to be divided; more, and their bound is taken as it is
_CLOSE = 1e-4  # cells that exceed the best value by more than this share are divided


@dataclass(frozen=True)
class BoundedTest:
    """T, from points (epsilon, delta) of a profile: the least of lines in u.

    T(u) is the largest power in one world of a test with power u in the other.
    """

    slopes: Array
    offsets: Array

    @classmethod
    def of(cls, epsilons: Array, deltas: Array) -> BoundedTest:
        """The lines that a profile gives, two for each of its points."""
        ratios = np.exp(epsilons)
        slopes = np.concatenate([ratios, 1.0 / ratios])
        offsets = np.concatenate([deltas, 1.0 - (1.0 - deltas) / ratios])
        return cls(slopes, offsets)

    def __call__(self, u: Array) -> Array:
        """T at each u."""
        least = (u[:, None] * self.slopes + self.offsets).min(axis=1)
        return np.clip(least * (1.0 + 1e-14), u, 1.0)

    def gain(self, left: Array, right: Array) -> Array:
        """The most that T(u) - u may be on each cell: a line is largest at an end."""
        rising = self.slopes - 1.0
        ends = [each[:, None] * rising + self.offsets for each in (left, right)]
        return np.maximum(np.maximum(*ends).min(axis=1), 0.0)


def largest_ratio(
    law: Repetitions, power: BoundedTest, order: float = math.inf
) -> float:
    """sup of [a log f'(1 - u) - (a - 1) log f'(1 - T(u))] / (a - 1), rounded up.

    f', f'' and T rise. So on a cell [u, v] log f'(x) - log f'(x') is at most what it is
    at x = 1 - u and x' = 1 - T(v), and at most (x - x') f''(1 - u) / f'(1 - T(v)), by
    the mean value; the second is sharp where T(u) - u is small. Cells whose bound
    exceeds the best value found are divided.
    """
    own = 0.0 if math.isinf(order) else 1.0 / (order - 1.0)

    def value(u: Array) -> Array:
        slope = law.log_slope(1.0 - u)
        return (1.0 + own) * slope - law.log_slope(1.0 - power(u))

    def bound(left: Array, right: Array) -> Array:
        slope, other = law.log_slope(1.0 - left), law.log_slope(1.0 - power(right))
        steep = np.exp(law.log_slope(1.0 - left, 2) - other)
        gain = np.minimum(slope - other, power.gain(left, right) * steep)
        return own * slope + gain

    edges = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, _FIRST_CELLS)])
    left, right = edges[:-1], edges[1:]
    best, most = float(value(edges).max()), -math.inf
    for step in range(_ROUNDS):
        above = bound(left, right)
        enough = best + _CLOSE * abs(best) + SLACK
        last = step == _ROUNDS - 1 or np.count_nonzero(above > enough) > _MOST_CELLS
        divided = np.full(len(above), False) if last else above > enough
        if not divided.all():
            most = max(most, float(above[~divided].max()))
        if not divided.any():
            break
        left, right = left[divided], right[divided]
        shares = np.linspace(0.0, 1.0, _PARTS + 1)
        cuts = left[:, None] + (right - left)[:, None] * shares
        left, right = cuts[:, :-1].ravel(), cuts[:, 1:].ravel()
        best = max(best, float(value(left).max()))
    most = max(best, most)
    return up(most + SLACK * (1.0 + abs(most)))
