"""Attacks on releases, with the success they had and the bound they cannot exceed.

- `membership`: a score for each release with and without the record (a head's margin,
  a canary's inner product, the likelihood of a report, the distance to a retrained
  model); the threshold is the one that a given share of false positives allows.
- `identification`: maximum a posteriori among equally likely candidates, by the log
  likelihood of the release under each of them. For the claimed law that is the best
  attack there is, by definition.

Scores and releases are those of made-up data: an attack on real data is an audit of
what was released, and free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from demur.audit.attacks.gains import AttackGains
from demur.core import validate
from demur.core.rounding import printed_down, printed_up


@dataclass(frozen=True)
class Attempt:
    """How often an attack succeeded, and how often it can at most."""

    attack: str
    success: float
    bound: float
    runs: int

    def statement(self) -> str:
        """Both numbers in a sentence."""
        return (
            f"{self.attack}: {printed_down(self.success)} in {self.runs:,} attempts,"
            f" and {printed_up(self.bound)} at most."
        )


def membership(
    with_record: ArrayLike,
    without: ArrayLike,
    gains: AttackGains,
    *,
    false_positives: float = 0.01,
) -> Attempt:
    """True positives of a threshold on scores, at a share of false positives.

    The threshold is a quantile of the scores without the record: the share of false
    positives is what it says, up to chance.
    """
    validate.open_probability(false_positives=false_positives)
    there, absent = (
        np.asarray(x, np.float64).reshape(-1) for x in (with_record, without)
    )
    if there.size < 2 or absent.size < 2:
        raise ValueError("with_record and without must have two scores at least")
    threshold = float(np.quantile(absent, 1.0 - false_positives, method="higher"))
    return Attempt(
        f"membership at {false_positives:g} false positives",
        float((there > threshold).mean()),
        gains.true_positives(false_positives),
        int(there.size),
    )


def identification(
    release: Callable[[Any, int], Any],
    candidates: Sequence[Any],
    log_likelihood: Callable[[Any, Any], float],
    gains: AttackGains,
    *,
    runs: int = 1000,
    random_state: int = 0,
) -> Attempt:
    """How often the record is named by its likelihood, among equally likely candidates.

    `release(candidate, number)` is one release where the record is that candidate;
    `log_likelihood(candidate, released)` is the claimed one.
    """
    validate.count(runs=runs)
    if len(candidates) < 2:
        raise ValueError("candidates must be two at least")
    rng = np.random.default_rng(random_state)
    right = 0
    for number in range(runs):
        truth = int(rng.integers(len(candidates)))
        seen = release(candidates[truth], number)
        likely = [log_likelihood(candidate, seen) for candidate in candidates]
        right += int(np.argmax(likely)) == truth
    return Attempt(
        f"one of {len(candidates)} candidates named",
        right / runs,
        gains.identification(candidates=len(candidates)),
        runs,
    )
