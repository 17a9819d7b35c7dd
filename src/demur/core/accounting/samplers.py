r"""Samplers that are not exact: how far from the ideal law a sequence may draw.

A mechanism is priced for an ideal law and drawn at a statistical distance eta from it,
on every input. A ledger sets 2^-20 of its delta aside for this ("aside" below). How
much eta that pays for depends on what the ledger has *used*, never on what its budget
allows. So a larger budget has room for every sampler that a smaller one has room for.

**The rule.** `LEVELS` are epsilons c_1 < ... < c_K, fixed for good. Level k holds while
the sums that the filter adds up are within its capacities for (c_k, d), d =
`level_delta(delta)`, where c_k is split between meters and blocks in one of three ways:
as the filter splits its budget, all to the meters, or all to the blocks. The deltas of
blocks are not looked at. The distances may add up to `room(c_k, delta)` of the first
level that holds.

**The theorem.** If a filter promises (epsilon, ideal) for ideal samplers, then with
this rule it promises (epsilon, ideal + aside), whatever is chosen adaptively.

Write P, Q for the laws of the whole transcript under two neighbouring datasets with
ideal samplers, and P', Q' for those that are drawn. Step i has a distance eta_i that
is known before it is drawn, and S = sum eta_i.

1. *What Q' keeps of Q.* Let rho_i be the smaller of 1 and the ratio of the drawn to the
   ideal density of step i under the second dataset, and rho = prod rho_i. Then
   rho dQ <= dQ', and given the past E_Q[1 - rho_i] <= eta_i. In the same way
   P'(A) <= P(A) + largest S, for every event A.
2. *Blocks.* A block (e, d_b) is G + B with G <= e^e times its law under the second
   dataset and B of mass d_b at most. So P = G + B with B of mass sum d_b.
3. *The promise.* P(A) = B(A) + int_A rho dG + int_A (1 - rho) dG, and
   int_A rho dG <= e^epsilon int_A rho dQ + int (dG - e^epsilon dQ)^+. The first is at
   most e^epsilon Q'(A). The last and B(A) are what the filter bounds by `ideal`.
4. *The rest.* Let A_k be the transcripts that end with level k as the first that holds.
   As 1 - rho <= 1, the integral of 1 - rho over A_k is at most

       int_{A_k} (dG - e^c_k dQ)^+  +  e^c_k int_{A_k} (1 - rho) dQ.

   Sums only grow, so on A_k level k held all along, by one of its splits: the first
   term is at most d for each split with meters, by the filter's own theorem for a
   sequence that stops before that split breaks (blocks alone add nothing: there
   dG <= e^c_k dQ). The second is
   at most e^c_k room_k, because 1 - rho <= sum (1 - rho_i) and S <= room_k on A_k, so
   that a sequence which stops before S passes room_k counts no less.
5. Together: aside / (2K) at most for the largest S, 2 K d = aside / 4, and
   sum_k e^c_k room_k = aside / 2. That is less than aside.

Which level ends a sequence may depend on what was seen. This is no "best of several"
(`ledger.rules.filters`): all levels are paid for, each with its own part of `aside`.
"""

from __future__ import annotations

import math
from fractions import Fraction

from demur.core.accounting.gaussian import ideal_delta
from demur.core.rounding import down, float_down

# Steps of 1 where budgets have a meaning. Past the last, only exact samplers may draw.
LEVELS: tuple[float, ...] = (
    *map(float, range(1, 65)),
    *map(float, range(72, 705, 8)),
)

# Past this epsilon a release gives no meaningful protection: a likelihood ratio of
# e^50 = 5e21 is as good as certainty.
MEANINGLESS = 50.0

# Engines calibrate Gaussian noise to this epsilon if they are asked for a larger one,
# which the smaller implies. A ledger has room for their sampler there: one release that
# uses up (400, delta) has a level of 520 at most for every delta up to 0.01, whose room
# is 2^-779 delta, and `rounded_gaussian` is at a distance below 2^-908 a coordinate.
LARGEST_CALIBRATED = 400.0


def aside(delta: float) -> Fraction:
    """The part of `delta` that is set aside for samplers."""
    return max(Fraction(0), Fraction(delta) - Fraction(ideal_delta(delta)))


def level_delta(delta: float) -> float:
    """The delta at which each level is held, rounded down."""
    return float_down(aside(delta) / (8 * len(LEVELS)))


def room(level: float, delta: float) -> Fraction:
    """The most that the samplers' distances may add up to while `level` holds.

    >>> float(room(1.0, 1e-6)) > 1e-16 > float(room(10.0, 1e-6)) > 1e-20
    True
    """
    return aside(delta) / (2 * len(LEVELS)) * Fraction(down(math.exp(-level), 4))
