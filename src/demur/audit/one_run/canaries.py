"""Canaries: gradients that the auditor inserts and looks for in the releases.

A canary is a gradient along one coordinate, longer than the clip norm, so that a
correct clip brings it to exactly that norm and a missing clip leaves it visible. The
coordinates are all different: under noise that is independent over coordinates, the
inner products of a release with different canaries are independent, and one run shows
as much as many.

- *One step*: the inner product of the noisy clipped sum with a canary is N(C, s^2) if
  the canary is in and N(0, s^2) if not: `audit` with the canary as its score.
- *A short run*: every canary is in or out by a fair coin; the score is the sum over
  the steps of weighted inner products; `audit_one_run` compares scores and coins.

**What may be published.** Scores are functions of releases and of canaries that were
fixed beforehand; coins are the auditor's own. Every number computed from them is
post-processing, whatever private records were trained on in the same run. Exact sums,
batches and the noise are not used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.audit.claim import Claim, Shape
from demur.audit.one_run.guesses import Form, audit_one_run
from demur.audit.result import AuditResult
from demur.core import validate
from demur.core.accounting.events import Event

Values: TypeAlias = NDArray[np.float64]
_ROOM = 4.0  # how many clip norms a canary is long


@dataclass(frozen=True, eq=False)
class Canaries:
    """`length` times a signed unit vector at each of `places`, all different."""

    places: NDArray[np.int64]
    signs: Values
    length: float
    dimension: int

    @classmethod
    def draw(
        cls, count: int, dimension: int, *, clip_norm: float, random_state: int = 0
    ) -> Canaries:
        """`count` public canaries among `dimension` coordinates, from a seed."""
        validate.count(count=count, dimension=dimension)
        validate.positive(clip_norm=clip_norm)
        if count > dimension:
            raise ValueError(
                f"count must be at most the dimension {dimension}, so that no two"
                f" canaries share a coordinate; got {count}"
            )
        rng = np.random.default_rng(random_state)
        places = rng.permutation(dimension)[:count]
        signs = rng.choice([-1.0, 1.0], size=count)
        return cls(places, signs, _ROOM * float(clip_norm), int(dimension))

    def __len__(self) -> int:
        return len(self.places)

    def rows(self, which: ArrayLike | None = None) -> NDArray[np.float32]:
        """The gradients as a matrix: all, or those where `which` is true."""
        chosen = np.flatnonzero(np.ones(len(self)) if which is None else which)
        rows = np.zeros((chosen.size, self.dimension), np.float32)
        entries = self.signs[chosen] * self.length
        rows[np.arange(chosen.size), self.places[chosen]] = entries
        return rows

    def scores(
        self, releases: Iterable[ArrayLike], weights: ArrayLike | None = None
    ) -> Values:
        """For each canary the weighted sum over steps of its inner products."""
        steps = [np.asarray(step, dtype=np.float64).reshape(-1) for step in releases]
        if not steps or any(step.size != self.dimension for step in steps):
            raise ValueError(f"releases must be vectors of {self.dimension} numbers")
        each = np.ones(len(steps)) if weights is None else np.asarray(weights)
        if each.shape != (len(steps),):
            raise ValueError(
                f"weights must be one number for each of {len(steps)} releases; got"
                f" shape {each.shape}"
            )
        total = np.zeros(len(self))
        for weight, step in zip(each, steps, strict=True):
            total += weight * self.signs * step[self.places]
        return total


def flip_coins(count: int, *, random_state: int | None = None) -> NDArray[np.bool_]:
    """Fair coins from the operating system, or from a seed where a test must repeat."""
    validate.count(count=count)
    if random_state is not None:
        return np.random.default_rng(random_state).random(count) < 0.5
    bits = np.frombuffer(os.urandom((count + 7) // 8), dtype=np.uint8)
    return np.unpackbits(bits)[:count].astype(np.bool_)


def audit_canaries(
    score_of: ArrayLike,
    coins: ArrayLike,
    claim: Claim | Event | tuple[float, float],
    *,
    forms: Sequence[Form] | None = None,
    alpha: float = 1e-6,
    subject: str = "a training run",
) -> tuple[AuditResult, ...]:
    """The one-run audit in several forms, alpha shared among them.

    By default the classical and the f-DP form, and the GDP form for Gaussian claims.
    The claim is refuted if any of them refutes it.
    """
    stated = Claim.of(claim)
    if forms is None:
        gaussian = stated.shape is Shape.GAUSSIAN
        forms = ("classical", "f-DP", "GDP") if gaussian else ("classical", "f-DP")
    if not forms:
        raise ValueError("forms must name at least one form of the audit; got none")
    return tuple(
        audit_one_run(
            score_of,
            coins,
            stated,
            form=form,
            alpha=alpha / len(forms),
            subject=subject,
        )
        for form in forms
    )
