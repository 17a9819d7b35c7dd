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
"not better than epsilon(s)" at the plan's delta. The lower bound is epsilon at the
smallest refuted s of a fixed grid. The grid is walked by halving; each decision about
an s is a function of the same counts, and refutations are monotone in s up to
numerical noise, so no level is spent on the search. A correct run keeps f_1, so that a
bound above the claim has probability at most alpha.

What the number means: like mu of `confidence.mu_from_counts`, it places the mechanism
in a family. It is no bound on epsilon at this delta for a mechanism whose curve has
another form; a claim is refuted validly for every mechanism, because f_1 is what was
claimed.

**Two tests** of one curve, with the same scores and coins:

- *f-DP*: the recursion of `one_run.refutes_curve` on the number of right guesses. It
  holds for every mechanism, and needs no independence between canaries.
- *counts*: a threshold from the first half of the canaries; on the second half true
  positives and false positives with Clopper-Pearson limits at alpha / 2 each, and
  refuted if the lower one of the first lies above the curve at the upper one of the
  second. It needs scores that are independent given the coins, as they are under noise
  independent over coordinates (`independence_test`) and independent sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.audit.claim import THE_PAIR
from demur.audit.confidence import proportion_lower, proportion_upper, scores
from demur.audit.one_run import Guesses, _coins, guess, guess_sizes, refutes_curve
from demur.audit.result import AuditResult, Level
from demur.core import accounting, validate
from demur.core.accounting import events
from demur.core.accounting.events import Event
from demur.core.adjacency import Unit
from demur.core.rounding import printed_down

Test: TypeAlias = Literal["f-DP", "counts"]
_PER_DOUBLING = 12  # grid points of s between a noise and its double
_LEAST, _MOST = -3 * _PER_DOUBLING, 6 * _PER_DOUBLING  # an eighth to 64 times the noise
_DOTS = 400


def with_noise(event: Event, factor: float) -> Event:
    """The same event with `factor` times the noise in each of its steps.

    >>> with_noise(events.GaussianEvent(2.0), 0.5)
    GaussianEvent(multiplier=1.0)
    """
    validate.positive(factor=factor)
    scaled: dict[events.Atom, int] = {}
    for atom, count in events.atoms(event).items():
        if not hasattr(atom, "multiplier"):
            raise ValueError(
                f"event must be of Gaussian steps; {type(atom).__name__} has no noise"
                " multiplier"
            )
        wider = replace(atom, multiplier=atom.multiplier * factor)
        scaled[wider] = scaled.get(wider, 0) + count
    return events.from_atoms(scaled)


class Curve:
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

    def most(self, x: float) -> float:
        """The most that a probability x may become in a neighbouring world."""
        one = self._growth * x + self._delta
        two = 1.0 - (1.0 - self._delta - x) / self._growth
        return min(1.0, float(one.min()), float(two.min()))


@lru_cache(maxsize=256)
def curve_of(event: Event) -> Curve:
    """The curve of an event; kept, because a sampled plan's takes a second."""
    return Curve(event)


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
    values, heads = scores("score_of", score_of), _coins(coins)
    if values.size != heads.size:
        raise ValueError(f"{values.size} scores for {heads.size} coins")
    refutes, evidence = _tests(values, heads, test, alpha)

    def refuted_at(step: int) -> bool:
        return refutes(curve_of(with_noise(event, 2.0 ** (step / _PER_DOUBLING))))

    lower = 0.0
    if refuted_at(_MOST):
        low, high = _LEAST, _MOST  # high is refuted; low is taken for not refuted
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if refuted_at(middle) else (middle, high)
        shown = with_noise(event, 2.0 ** (high / _PER_DOUBLING))
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
        refuted=lower > claimed,
        evidence=evidence,
    )


Refutes: TypeAlias = Callable[[Curve], bool]


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
    half = values.size // 2
    threshold = _threshold(values[:half], heads[:half])
    rest, there = values[half:], heads[half:]
    if there.all() or not there.any():
        raise ValueError(
            "coins must show both sides in the second half of the canaries"
        )
    hits = int((rest[there] >= threshold).sum())
    false = int((rest[~there] >= threshold).sum())
    inside, outside = int(there.sum()), int((~there).sum())
    true_low = proportion_lower(hits, inside, alpha / 2.0)
    false_high = proportion_upper(false, outside, alpha / 2.0)
    return (
        lambda curve: true_low > curve.most(false_high),
        f"True positives of at least {printed_down(true_low)} at {false} of {outside}"
        " false ones.",
    )


def _threshold(values: NDArray[np.float64], heads: NDArray[np.bool_]) -> float:
    """Where the first half's scores are told apart most surely.

    The largest difference of the two shares in units of its deviation; any threshold
    is valid, since the second half alone is counted.
    """
    if heads.all() or not heads.any():
        raise ValueError("coins must show both sides in the first half of the canaries")
    best, at = -1.0, float(np.median(values))
    for threshold in np.quantile(values, np.linspace(0.05, 0.95, 37)):
        p = float((values[heads] >= threshold).mean())
        q = float((values[~heads] >= threshold).mean())
        spread = p * (1 - p) / heads.sum() + q * (1 - q) / (~heads).sum()
        sure = (p - q) / np.sqrt(spread + 1.0 / values.size**2)
        if sure > best:
            best, at = float(sure), float(threshold)
    return at
