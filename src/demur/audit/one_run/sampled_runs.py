r"""One-run audit of a sampled plan, against the plan's own trade-off curve.

Canaries with gradients along different coordinates each enter a run by a fair coin and
are sampled like every other record. The claim is the plan's event: T steps, a sampling
probability, a noise multiplier. Its curve is not that of a Gaussian, and testing it as
one pair (epsilon, delta) gives away most of what the scores show. So the curve tested
is the plan's own profile, and the bound is one within its *family*: the same plan with
s times the noise, for every s.

**The bound.** Let f_s be the curve of the plan with s times the noise. It tightens as s
grows (more noise is post-processing). If the canaries refute f_s at level alpha, the
run does not keep the promise of a plan with s times the noise, nor of any with more:
"not better than epsilon(s)" at the plan's delta. A fixed grid of s is walked from its
top down to the first s that is not refuted, and the lower bound is epsilon at the last
one that was. No level is spent on the walk: if the run keeps f_t, let s be the largest
grid point up to t. It keeps f_s as well, and a bound above epsilon(t) needs f_s, which
does not depend on the scores, to be refuted: an event of probability alpha at most.

What the number means: like mu of `confidence.mu_from_counts`, it places the mechanism
in a family. It is no bound on epsilon at this delta for a mechanism whose curve has
another form. A claim is refuted validly whatever the curve, because f_1 is what was
claimed: by the first test below for every mechanism, by the second for those whose
scores are as it needs them.

**Two tests** of one curve, with the same scores and coins:

- *f-DP*: the recursion of `guesses.refutes_curve` on the number of right guesses. It
  holds for every mechanism, and needs no independence between canaries.
- *counts*: a threshold from the first quarter of the canaries; on the others h of n_1
  scores of canaries that were in lie above it, and k of n_0 of those that were out. It
  needs scores that are independent given the coins, with one law for all canaries that
  are in and one for all that are out. So they are for canaries of equal gradients,
  under equal noise that is independent over coordinates (`independence_test`) and
  independent sampling, if no other record has a gradient along their coordinates: it
  would move many scores at once when it is sampled. Then h and k are
  binomial with probabilities p <= F(q), where F(x) is the most that x may become. The
  region R of counts at least as far out as those seen, h'/n_1 - F(k'/n_0) >= h/n_1 -
  F(k/n_0), grows with h' and shrinks with k', so P(R) grows with p and falls with q: on
  an interval [a, b] of q it is at most P(R) at (F(b), a). The p-value is the largest of
  these over the intervals of a grid of Clopper and Pearson's range for q, at one part
  in a hundred of alpha, which is added (Berger and Boos 1994).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from demur.audit.claim import THE_PAIR
from demur.audit.confidence import proportion_lower, proportion_upper
from demur.audit.one_run.guesses import (
    Guesses,
    guess,
    guess_sizes,
    refutes_curve,
    scores_and_coins,
)
from demur.audit.result import AuditResult, Level
from demur.core import accounting, validate
from demur.core.accounting import events
from demur.core.accounting.events import Event
from demur.core.adjacency import Unit

Test: TypeAlias = Literal["f-DP", "counts"]
_PER_DOUBLING = 8  # grid points of s between a noise and its double
_LEAST, _MOST = -3 * _PER_DOUBLING, 3 * _PER_DOUBLING  # an eighth to 8 times the noise
_DOTS = 400
_CELLS = 128  # of the false positives' range
_PILOT = 4  # one canary in so many chooses the threshold


def with_noise(event: Event, factor: float) -> Event:
    """The same event with `factor` times the noise in each of its steps.

    >>> with_noise(events.GaussianEvent(2.0), 0.5)
    GaussianEvent(multiplier=1.0)
    """
    validate.positive(factor=factor)
    scaled: dict[events.Atom, int] = {}
    for atom, count in events.atoms(event).items():
        if isinstance(atom, events.Pure | events.ApproxDP | events.BestOf):
            raise ValueError(
                f"event must be of Gaussian steps; {type(atom).__name__} has no noise"
                " multiplier"
            )
        wider = replace(atom, multiplier=atom.multiplier * factor)
        scaled[wider] = scaled.get(wider, 0) + count
    return events.from_atoms(scaled)


class TradeoffCurve:
    """The trade-off curve of an event, from points (epsilon, delta) of its profile."""

    def __init__(self, event: Event) -> None:
        pairs = _points(event)
        self._growth = np.exp(np.minimum(pairs[:, 0], 700.0))
        self._delta = pairs[:, 1]

    def least(self, y: float) -> float:
        """The least probability that may become y in a neighbouring world."""
        one = (y - self._delta) / self._growth
        two = 1.0 - self._delta - self._growth * (1.0 - y)
        return max(0.0, float(one.max()), float(two.max()))

    def most(self, x: ArrayLike) -> NDArray[np.float64]:
        """The most that probabilities x may become in a neighbouring world."""
        at = np.asarray(x, np.float64)[..., None]
        one = (self._growth * at + self._delta).min(axis=-1)
        two = (1.0 - (1.0 - self._delta - at) / self._growth).min(axis=-1)
        return np.minimum(1.0, np.minimum(one, two))


@lru_cache(maxsize=256)
def curve_of(event: Event) -> TradeoffCurve:
    """The curve of an event; kept, because a sampled plan's takes a second."""
    return TradeoffCurve(event)


def _points(event: Event) -> NDArray[np.float64]:
    profile = accounting.profile_of(event)
    if profile is not None:
        # Both directions: the larger delta is a promise for either.
        worst = np.maximum(profile.remove, profile.add)
        epsilons = (profile.first + np.arange(worst.size)) * profile.step
        inside = np.flatnonzero(epsilons >= 0.0)
        chosen = inside[np.unique(np.linspace(0, inside.size - 1, _DOTS).astype(int))]
        return np.column_stack([epsilons[chosen], worst[chosen]])
    end = accounting.price(event, 1e-12)
    grid = np.linspace(0.0, end, _DOTS)
    return np.array([(e, accounting.delta_of(event, float(e))) for e in grid])


def audit_sampled_run(
    score_of: ArrayLike,
    coins: ArrayLike,
    event: Event,
    *,
    delta: float,
    unit: Unit | None = None,
    test: Test = "f-DP",
    alpha: float = 0.05,
    subject: str = "a training run",
) -> AuditResult:
    """Whether one run's canaries refute a plan, and a lower bound on its epsilon.

    `event` is what the plan was charged for (`plan.event()`), `coins[i]` says whether
    canary i was among the records. The bound is within the family of the plan with
    other noise; see the module.
    """
    validate.open_probability(alpha=alpha, delta=delta)
    values, heads = scores_and_coins(score_of, coins)
    refuted_by, evidence = _tests(values, heads, test, alpha)

    def refuted_at(step: int) -> bool:
        return refuted_by(curve_of(with_noise(event, 2.0 ** (step / _PER_DOUBLING))))

    lower, last = 0.0, _MOST + 1
    while last > _LEAST and refuted_at(last - 1):
        last -= 1
    if last <= _MOST:
        shown = with_noise(event, 2.0 ** (last / _PER_DOUBLING))
        lower = accounting.price(shown, delta) * (1.0 - 1e-9)
    claimed = accounting.price(event, delta)
    return AuditResult(
        subject=subject,
        level=Level.CANARIES,
        method=f"one-run audit of the plan's own curve, by {test}",
        unit=THE_PAIR if unit is None else str(unit),
        claimed=claimed,
        delta=delta,
        lower_bound=lower,
        runs=values.size,
        alpha=alpha,
        refuted=refuted_at(0),
        evidence=evidence,
    )


Refutes: TypeAlias = Callable[[TradeoffCurve], bool]


def refutes(
    score_of: ArrayLike, coins: ArrayLike, event: Event, test: Test, alpha: float
) -> bool:
    """Whether these canaries refute the claim, without a bound beside it."""
    values, heads = scores_and_coins(score_of, coins)
    return _tests(values, heads, test, alpha)[0](curve_of(event))


def _tests(
    values: NDArray[np.float64], heads: NDArray[np.bool_], test: Test, alpha: float
) -> tuple[Refutes, str]:
    """Whether a curve is refuted by these canaries, and the counts in words."""
    if test == "f-DP":
        tried: list[Guesses] = [
            guess(values, heads, count) for count in guess_sizes(values.size)
        ]
        share = alpha / len(tried)
        best = max(tried, key=lambda each: each.correct / each.count)
        return (
            lambda curve: any(refutes_curve(g, curve.least, share) for g in tried),
            f"{best.correct} of {best.count} guesses about canaries were right.",
        )
    if test != "counts":
        raise ValueError(f"test must be f-DP or counts; got {test!r:.40}")
    pilot = values.size // _PILOT
    threshold = _threshold(values[:pilot], heads[:pilot])
    rest, there = values[pilot:], heads[pilot:]
    if there.all() or not there.any():
        raise ValueError("coins must show both sides after the pilot of the canaries")
    seen = CanaryCounts(
        int((rest[there] >= threshold).sum()),
        int(there.sum()),
        int((rest[~there] >= threshold).sum()),
        int((~there).sum()),
    )
    return (
        lambda curve: seen.p_value(curve, alpha) <= alpha,
        f"{seen.hits} of {seen.inside} true positives at {seen.false} of"
        f" {seen.outside} false ones.",
    )


@dataclass(frozen=True)
class CanaryCounts:
    """`hits` of `inside` canaries that were in, `false` of `outside` that were out."""

    hits: int
    inside: int
    false: int
    outside: int

    def p_value(self, curve: TradeoffCurve, alpha: float) -> float:
        """An upper bound on the chance of such counts, if the curve is kept."""
        aside = alpha / 100.0
        low = proportion_lower(self.false, self.outside, aside / 2.0)
        high = proportion_upper(self.false, self.outside, aside / 2.0)
        edges = np.linspace(low, high, _CELLS + 1)
        # Numbers outside nine deviations are taken for counts in the region.
        wide = 9.0 * np.sqrt(self.outside * max(high * (1.0 - low), 1e-3)) + 9.0
        first = max(0, int(self.outside * low - wide))
        last = min(self.outside, int(self.outside * high + wide))
        counts = np.arange(first, last + 1)
        gain = curve.most(counts / self.outside) - curve.most(self.false / self.outside)
        needed = np.ceil(self.hits + self.inside * gain - 1e-9)
        chance = stats.binom.pmf(counts, self.outside, edges[:-1, None])
        beyond = stats.binom.sf(
            needed - 1.0, self.inside, curve.most(edges[1:])[:, None]
        )
        region = (chance * beyond).sum(axis=1) + np.maximum(0.0, 1.0 - chance.sum(1))
        return min(1.0, float(region.max()) + aside)


def _threshold(values: NDArray[np.float64], heads: NDArray[np.bool_]) -> float:
    """Where the pilot's scores are told apart most surely.

    The largest difference of the two shares in units of its deviation; any threshold
    is valid, since the other canaries alone are counted.
    """
    if heads.all() or not heads.any():
        raise ValueError("coins must show both sides in the pilot of the canaries")
    best, at = -1.0, float(np.median(values))
    for threshold in np.quantile(values, np.linspace(0.05, 0.95, 37)):
        p = float((values[heads] >= threshold).mean())
        q = float((values[~heads] >= threshold).mean())
        spread = p * (1 - p) / heads.sum() + q * (1 - q) / (~heads).sum()
        sure = (p - q) / np.sqrt(spread + 1.0 / values.size**2)
        if sure > best:
            best, at = float(sure), float(threshold)
    return at
