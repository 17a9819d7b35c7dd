r"""Linear discriminant analysis from private class sums and second moments.

Released once: the sum S_c of the rows of each class, and the second moments
M = sum_i x_i x_i^T of all rows, as a vector t(M) whose norm is |M|_F. Both stand in one
vector (S, a t(M)) with one Gaussian noise; a is public and sets their shares of the
budget.

**Sensitivity.** A record that moves by r in its class moves a class sum by r and M by
at most g(r) (`preprocessing.second_moments`, where g is shown to be attained), and so
the vector by at most sqrt(r^2 + a^2 g(r)^2).

**At ReplaceOne** class counts are released too, times B: as for prototypes the sums and
counts move by at most 2 B together, and the second moments by sqrt(2) B^2. At a ball
counts are public, and nothing is claimed at ReplaceOne.

**The head.** With the means m_c = S_c / n_c, of known noise s_c, and the shares pi_c,

    V = M / n - sum_c pi_c (m_c m_c^T - s_c^2 I)

estimates the covariance within classes without bias. Its negative eigenvalues are set
to 0 and `EDGE` times the largest eigenvalue that its noise alone would have,
sigma sqrt(2 d) / (a n), is added to all. Scores are those of Gaussian classes with this
covariance: x^T V^-1 m_c - m_c^T V^-1 m_c / 2 + log pi_c. `SHARE` and `EDGE` are
conventions: docs/convex.md says on what they were set.

Class sums are exact on a grid, and a sum of n products in float64 is off by at most
(n + 8) 2^-53 of the sum of absolute values; both are charged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted

from demur.convex.heads import inputs
from demur.convex.heads.base import PrivateHead, StagedFit, reported_space
from demur.convex.heads.prototypes import UNPROTECTED, UNPROTECTED_COUNTED
from demur.convex.privacy_report import PrivacyReport
from demur.convex.rows.sources import Rows
from demur.convex.rows.totals import UNIT_ROUNDOFF
from demur.convex.sensitivity.curves import row_space, unit_table
from demur.convex.sensitivity.form import unit_of
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import Bound
from demur.core.entropy import Source
from demur.core.promise import Promise
from demur.core.rounding import up
from demur.ledger import Ledger
from demur.mechanisms import Gaussian
from demur.mechanisms.estimates import positive_mean
from demur.preprocessing.second_moments import (
    as_vector,
    from_vector,
    second_moment_bound,
)
from demur.preprocessing.spaces import RowSpace

Array = NDArray[np.float64]

SHARE = 0.3  # of mu^2 for the second moments
EDGE = 0.25


@dataclass(frozen=True, eq=False)
class DiscriminantPlan:
    """The noise of one release, and how to read it; from public numbers alone."""

    mechanism: Gaussian
    scale: float
    norm_bound: float
    n: int
    shape: tuple[int, int]
    counts: Array | None

    @property
    def edge(self) -> float:
        """About the largest eigenvalue of the noise in the mean second moments."""
        assert isinstance(self.mechanism.sigma, float)
        wide = math.sqrt(2.0 * self.shape[1])
        return self.mechanism.sigma * wide / (self.scale * self.n)

    def value(self, sums: Array, rows: Array, counts: NDArray[np.int64]) -> Array:
        """The exact vector that noise is added to."""
        parts = [sums.reshape(-1), self.scale * as_vector(rows.T @ rows)]
        if self.counts is None:
            parts.append(self.norm_bound * counts.astype(np.float64))
        return np.concatenate(parts)

    def read(self, value: Array, prior: str) -> tuple[Array, Array, Array]:
        """Coefficients and intercepts of the head, and the class counts."""
        classes, d = self.shape
        assert isinstance(self.mechanism.sigma, float)
        sigma = self.mechanism.sigma
        sums = value[: classes * d].reshape(self.shape)
        rest = value[classes * d :]
        size = d * (d + 1) // 2
        counts = self.counts
        if counts is None:
            error = sigma / self.norm_bound
            noisy = rest[size:] / self.norm_bound
            counts = np.array([positive_mean(float(c), error) for c in noisy])
        divisors = np.maximum(counts, 1.0)
        means, noise = sums / divisors[:, None], sigma / divisors
        shares = divisors / divisors.sum()
        within = from_vector(rest[:size] / self.scale, d) / self.n
        within -= (means.T * shares) @ means - np.eye(d) * (shares @ noise**2)
        values, vectors = np.linalg.eigh(within)
        floor = EDGE * self.edge + 1e-6 * self.norm_bound**2 / d
        coef = (means @ vectors / (np.maximum(values, 0.0) + floor)) @ vectors.T
        weight = shares if prior == "counts" else np.full(classes, 1.0 / classes)
        return coef, np.log(weight) - 0.5 * (coef * means).sum(axis=1), counts


def plan_discriminant(
    counts: NDArray[np.int64],
    promise: Promise,
    *,
    dimension: int,
    bound: Bound,
    step: float,
    space: RowSpace | None = None,
    assumptions: tuple[str, ...] = (),
) -> DiscriminantPlan:
    """The least noise that meets the promise.

    `bound` is the norm bound of the rows, `step` that of the grid they are summed on.
    At ReplaceOne only the number of classes and of records is read off `counts`.
    """
    unit, B, n = unit_of(promise), bound.value, int(counts.sum())
    ball = isinstance(unit, Ball)
    moved = 2.0 * B
    if isinstance(unit, Ball):
        moved = min(row_space(unit, space).radius_of(unit), 2.0 * B)
    scale = moved / second_moment_bound(moved, B) * math.sqrt(SHARE / (1.0 - SHARE))
    snapped = math.sqrt(dimension) * step
    # The sums become floats, and products are added up in any order, in both worlds.
    rounding = 16.0 * UNIT_ROUNDOFF * n * B
    rounding += scale * 2.0 * (n + 8) * UNIT_ROUNDOFF * n * B**2
    table, _ = unit_table(
        unit,
        lambda shift: up(shift + rounding, 4),
        lambda r: up(math.hypot(r + snapped, scale * second_moment_bound(r, B)), 8),
        None if ball else up(math.hypot(2.0 * B + snapped, scale * 2**0.5 * B**2), 8),
        norm_bound=B,
        space=space,
    )
    classes = len(counts)
    size = classes * dimension + dimension * (dimension + 1) // 2
    mechanism = Gaussian.calibrated(
        epsilon=promise.epsilon,
        delta=promise.delta,
        sensitivity=table,
        unit=unit,
        dimension=size + (0 if ball else classes),
        name="class sums and second moments with Gaussian noise",
        bounds=(bound,),
        unprotected=UNPROTECTED if ball else UNPROTECTED_COUNTED,
        assumptions=assumptions,
    )
    # No value is refused for its size: that would tell something about it.
    mechanism.check_bound(2.0 * n * max(B, math.sqrt(2.0) * scale * B**2))
    known = counts.astype(np.float64) if ball else None
    return DiscriminantPlan(mechanism, scale, B, n, (classes, dimension), known)


class BallDiscriminantClassifier(PrivateHead):
    """Linear discriminant analysis; class sums and second moments released once.

    It uses correlations, has nothing to set and solves nothing. The second moments have
    d (d + 1) / 2 entries: take it where n is large for d^1.5 (docs/convex.md), and
    prototypes where it is not. Rows are in memory. `prior` is "counts" or "uniform".

    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(900) % 3
    >>> X = np.eye(3)[y] * 0.7 + 0.1 * rng.normal(size=(900, 3))
    >>> head = BallDiscriminantClassifier(epsilon=1.0, radius=0.3).fit(X, y)
    >>> head.score(X, y) > 0.9
    True
    """

    coef_: Array
    intercept_: Array

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        radius: float | None = None,
        norm_bound: float = 1.0,
        classes: Sequence[Any] | None = None,
        *,
        unit: Ball | ReplaceOne | None = None,
        ledger: Ledger | None = None,
        prior: str = "counts",
        space: str = "records",
        clip: bool = True,
        label: str | None = None,
        source: Source | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.radius = radius
        self.norm_bound = norm_bound
        self.classes = classes
        self.unit = unit
        self.ledger = ledger
        self.prior = prior
        self.space = space
        self.clip = clip
        self.label = label
        self.source = source

    def _staged(self, X: ArrayLike | Rows, y: ArrayLike | None) -> StagedFit:
        promise = self._promise()
        with inputs.nothing_spent():
            if self.prior not in ("counts", "uniform"):
                raise ValueError(
                    f"prior must be 'counts' or 'uniform'; got {self.prior!r}"
                )
        before = self._before(promise)
        data = self._prepare(X, y, two_classes=False)
        with inputs.nothing_spent():
            if not isinstance(data, inputs.Prepared):
                raise ValueError(
                    "BallDiscriminantClassifier takes rows in memory; for rows that"
                    " are read in passes take BallPrototypeClassifier"
                )
            sums, step = data.exact_sums()

        def plan_at(promise: Promise) -> DiscriminantPlan:
            return plan_discriminant(
                data.counts,
                promise,
                dimension=data.width,
                bound=data.bound,
                step=step,
                space=before.space,
                assumptions=self._assumptions(data, before),
            )

        plan = plan_at(promise)

        def finish() -> None:
            with self._declining(promise, lambda less: plan_at(less).mechanism):
                release = plan.mechanism.release(
                    plan.value(sums, data.X, data.counts),
                    ledger=self._ledger(promise),
                    label=self.label or "a discriminant head",
                    source=self.source,
                )
            coef, intercept, counts = plan.read(release.value, self.prior)
            assert isinstance(plan.mechanism.sigma, float)
            self.classes_ = data.classes
            self.coef_, self.intercept_ = coef, intercept
            self.privacy_ = PrivacyReport(
                promise,
                float(self.norm_bound),
                "output",
                plan.mechanism.sigma,
                None,
                release.entry,
                reported_space(promise, before),
                tuple(float(count) for count in counts),
            )

        return StagedFit(plan.mechanism, finish)

    def decision_function(self, X: ArrayLike) -> Array:
        """Log-probabilities of the classes up to a constant; of two, the log-odds."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probabilities of the classes, for Gaussian classes of one covariance."""
        probabilities: Array = softmax(self._scores(X), axis=1)
        return probabilities

    def _scores(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        scores: Array = self._rows(X) @ self.coef_.T + self.intercept_
        return scores
