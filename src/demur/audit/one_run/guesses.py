r"""One-run audit: many canaries, each in the run or not by a fair coin.

m records that the auditor owns (canaries) each enter a single run if their coin shows
heads. From what the run releases every canary gets a score; the r/2 highest are guessed
"in", the r/2 lowest "out", and the others are not guessed. W of the r guesses are
right. Too many right guesses refute the claim.

**Classical form** (Steinke, Nasr and Jagielski 2023, Theorem 5.2). Under
(epsilon, delta)-privacy at the unit "one canary in or out",

    P(W >= v) <= beta + 2 m delta max_{1 <= i <= v} (P(v > B >= v - i)) / i,

with beta = P(B >= v) and B ~ Binomial(r, e^epsilon / (1 + e^epsilon)). For delta = 0:
given the output, each coin is e^epsilon-close to fair even if all other coins are
known, so right guesses are dominated by that many biased coins.

**f-DP form** (Mahloujifar, Melis and Chaudhuri 2024), for r fixed in advance. Let f be
a symmetric trade-off curve, F = 1 - f (how likely an event of probability x may become
in a neighbouring world; concave), g = F^-1 (convex). Draw a canary J at random and let

    right_i = P(J is guessed rightly and W >= i) = sum_{j >= i} (j / m) P(W = j)
    wrong_i = P(J is guessed wrongly and W >= i) = sum_{j >= i} ((r - j) / m) P(W = j).

*One step down.* J right and W >= i means: the guess of J agrees with its coin and at
least i - 1 of the others are right. Turn J's coin: the same event is "J wrong, W >=
i - 1". By f-DP for each coin, and Jensen over coins and canaries, right_i is at most
F(wrong_{i-1}), that is wrong_{i-1} >= g(right_i). *Summation.* right_i - right_{i+1}
= w_i (wrong_i - wrong_{i+1}) with w_i = i / (r - i), which grows with i. Summed by
parts from c = v,

    right_j = right_c - w_{c-1} wrong_c + w_j wrong_j
              + sum_{j < i < c} (w_i - w_{i-1}) wrong_i,

so right_j grows in right_c and in every wrong_i with i < c, and falls in wrong_c. If
P(W >= c) >= tau then right_c >= tau c / m and wrong_c <= tau (r - c) / m. Replacing
every quantity by its bound, from i = c down to 0, gives lower bounds of right_j and
wrong_j. But right_0 + wrong_0 = r / m. If the lower bounds exceed it, then
P(W >= c) < tau: seeing c right guesses refutes f at level tau.

**GDP form.** Canaries with orthogonal gradients give independent scores, N(0, s^2)
when out and N(a, s^2) when in: `confidence.mu_from_shift` on the two groups. It is
sharp, and it needs Gaussian scores; see there.

**Choosing r.** The best number of guesses depends on the true epsilon. r is taken from
m, m/2, m/4, ... (at least 32), and alpha is divided evenly among them.

Lower bounds with ideal independent canaries at 95% (measured, `tests/audit/power.py`),
the real epsilon being twice the claim at delta = 1e-5:

    claimed  canaries   classical   f-DP   GDP
    1        1,000      0.54        0.73   1.41
    1        10,000     0.93        1.20   1.86
    4        1,000      3.03        4.57   7.14
    4        10,000     3.24        4.58   7.83

The classical form refutes neither claim, the f-DP form the first with 10,000 canaries
and the second, the GDP form both. At alpha = 1e-6 and 2,000 canaries the f-DP form
refutes a factor of 8 reliably and a factor of 2 in none of 30 audits.
With delta > 0 the classical p-value never falls below about
2 m delta / v: at alpha = 1e-6 read the claim at a delta of 1e-10 or less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from demur.audit.claim import Claim, Shape
from demur.audit.confidence import epsilon_of_mu, largest, mu_from_shift, scores
from demur.audit.result import AuditResult, Level
from demur.core import validate
from demur.core.accounting.events import Event
from demur.core.rounding import printed_down, printed_up

Form: TypeAlias = Literal["classical", "f-DP", "GDP"]
_LEAST_GUESSES = 32


@dataclass(frozen=True)
class Guesses:
    """`correct` of `count` guesses about `canaries` coins."""

    canaries: int
    count: int
    correct: int

    def __post_init__(self) -> None:
        validate.count(canaries=self.canaries, count=self.count)
        if self.count > self.canaries or not 0 <= self.correct <= self.count:
            raise ValueError(
                "guesses must satisfy correct <= count <= canaries; got"
                f" {self.correct}, {self.count}, {self.canaries}"
            )


def guess(score_of: ArrayLike, coins: ArrayLike, count: int) -> Guesses:
    """The count/2 highest scores are guessed in, as many of the lowest out."""
    values, heads = scores_and_coins(score_of, coins)
    validate.count(count=count)
    if count > values.size:
        raise ValueError(f"count must be at most {values.size}; got {count}")
    order = np.argsort(values, kind="stable")
    half = count // 2
    lowest, highest = order[:half], order[values.size - (count - half) :]
    correct = int(heads[highest].sum() + (~heads[lowest]).sum())
    return Guesses(values.size, count, correct)


def scores_and_coins(
    score_of: ArrayLike, coins: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """One finite score and one bool for each canary, or an error that says which."""
    values, heads = scores("score_of", score_of), np.asarray(coins)
    if heads.ndim != 1 or heads.dtype != np.bool_:
        raise TypeError(
            f"coins must be one bool for each canary; got {heads.dtype} of shape"
            f" {heads.shape}"
        )
    if values.size != heads.size:
        raise ValueError(f"{values.size} scores for {heads.size} coins")
    return values, heads


# -- p-values --------------------------------------------------------------------------


def classical_p_value(guesses: Guesses, epsilon: float, delta: float = 0.0) -> float:
    """An upper bound on P(so many right guesses) under (epsilon, delta)-privacy.

    >>> round(classical_p_value(Guesses(100, 100, 80), epsilon=0.5), 6)
    0.000103
    """
    validate.non_negative(epsilon=epsilon)
    validate.probability(delta=delta)
    r, v = guesses.count, guesses.correct
    q = float(special.expit(epsilon))
    beta = float(stats.binom.sf(v - 1, r, q))
    if delta == 0.0 or v == 0:
        return min(1.0, beta)
    steps = np.arange(1, v + 1)
    # P(v > B >= v - i), summed from the top: differences of tails would cancel.
    below = np.cumsum(stats.binom.pmf(v - steps, r, q))
    worst = float((below / steps).max())
    return min(1.0, beta + 2.0 * guesses.canaries * delta * worst)


Inverse: TypeAlias = Callable[[float], float]


def gaussian_curve(mu: float) -> Inverse:
    """g of mu-GDP: the least probability that may become y in a neighbouring world."""
    validate.non_negative(mu=mu)

    def g(y: float) -> float:
        return float(special.ndtr(special.ndtri(min(y, 1.0)) - mu))

    return g


def approximate_curve(epsilon: float, delta: float) -> Inverse:
    """g of (epsilon, delta)-privacy."""
    validate.non_negative(epsilon=epsilon)
    validate.probability(delta=delta)
    growth = math.exp(min(epsilon, 700.0))

    def g(y: float) -> float:
        return max(0.0, (y - delta) / growth, 1.0 - delta - growth * (1.0 - y))

    return g


def refutes_curve(guesses: Guesses, curve: Inverse, tau: float) -> bool:
    """Whether so many right guesses have probability below tau under this curve."""
    validate.open_probability(tau=tau)
    m, r, c = guesses.canaries, guesses.count, guesses.correct
    right, wrong = tau * c / m, tau * (r - c) / m
    # Rounding of the recursion is about r ulps; the limit is moved by far more.
    limit = r / m * (1.0 + 1e-9)
    for i in range(c - 1, -1, -1):
        least = curve(right)
        if least <= wrong:
            return False  # later steps would not move either
        right += i / (r - i) * (least - wrong)
        wrong = least
        if right + wrong > limit:
            return True
    return False


# -- lower bounds ----------------------------------------------------------------------


def epsilon_one_run(
    guesses: Guesses,
    *,
    alpha: float,
    delta: float = 0.0,
    form: Literal["classical", "f-DP"] = "classical",
) -> float:
    """The largest epsilon at which (epsilon, delta)-privacy is refuted; 0 if none.

    "f-DP" uses the trade-off curve of (epsilon, delta) in the recursion.

    >>> epsilon_one_run(Guesses(1000, 1000, 800), alpha=0.05) > 1.2
    True
    """
    validate.open_probability(alpha=alpha)
    if form == "classical":
        return largest(lambda e: classical_p_value(guesses, e, delta) <= alpha)
    if form != "f-DP":
        raise ValueError(f"form must be classical or f-DP; got {form!r:.40}")
    return largest(lambda e: refutes_curve(guesses, approximate_curve(e, delta), alpha))


def mu_one_run(guesses: Guesses, *, alpha: float) -> float:
    """The largest mu at which mu-GDP is refuted by the f-DP form; 0 if none."""
    validate.open_probability(alpha=alpha)
    return largest(lambda mu: refutes_curve(guesses, gaussian_curve(mu), alpha))


def guess_sizes(canaries: int) -> tuple[int, ...]:
    """The numbers of guesses that are tried: m, m/2, m/4, ... down to 32."""
    validate.count(canaries=canaries)
    sizes = [canaries]
    while sizes[-1] // 2 >= _LEAST_GUESSES:
        sizes.append(sizes[-1] // 2)
    return tuple(sizes)


def audit_one_run(
    score_of: ArrayLike,
    coins: ArrayLike,
    claim: Claim | Event | tuple[float, float],
    *,
    form: Form = "f-DP",
    guesses: int | None = None,
    alpha: float = 1e-6,
    subject: str = "a training run",
) -> AuditResult:
    """Whether the scores and coins of one run's canaries refute the claim.

    `coins[i]` says whether canary i was in the run. `guesses` fixes r; by default
    several are tried (`guess_sizes`) and alpha is shared among them. In the f-DP form
    a Gaussian claim is tested as mu-GDP, any other as (epsilon, delta).

    The result is a function of the release and of the auditor's own canaries and
    coins. It reveals no more about private records in the same run than the release.
    """
    stated = Claim.of(claim)
    validate.open_probability(alpha=alpha)
    values, heads = scores_and_coins(score_of, coins)
    if form == "GDP":
        if stated.shape is not Shape.GAUSSIAN:
            raise ValueError(
                f"form 'GDP' is for Gaussian claims; this one is {stated.shape}"
            )
        mu = mu_from_shift(values[heads], values[~heads], alpha=alpha)
        lower = epsilon_of_mu(mu, stated.delta)
        assert stated.mu is not None
        evidence = (
            f"Canaries show mu of at least {printed_down(mu)};"
            f" {printed_up(stated.mu)} is claimed."
        )
    else:
        sizes = guess_sizes(values.size) if guesses is None else (guesses,)
        lower, best = 0.0, None
        for count in sizes:
            guessed = guess(values, heads, count)
            bound = _lower(guessed, stated, form, alpha / len(sizes))
            if best is None or bound > lower:
                lower, best = bound, guessed
        assert best is not None
        evidence = f"{best.correct} of {best.count} guesses about canaries were right."
    return AuditResult(
        subject=subject,
        level=Level.CANARIES,
        method=f"one-run audit, {form} form",
        unit=stated.unit,
        claimed=stated.epsilon,
        delta=stated.delta,
        lower_bound=lower,
        runs=values.size,
        alpha=alpha,
        refuted=lower > stated.epsilon,
        evidence=evidence,
    )


def _lower(guesses: Guesses, claim: Claim, form: Form, alpha: float) -> float:
    if form == "f-DP" and claim.shape is Shape.GAUSSIAN:
        return epsilon_of_mu(mu_one_run(guesses, alpha=alpha), claim.delta)
    if form not in ("classical", "f-DP"):
        raise ValueError(f"form must be classical, f-DP or GDP; got {form!r:.40}")
    return epsilon_one_run(guesses, alpha=alpha, delta=claim.delta, form=form)
