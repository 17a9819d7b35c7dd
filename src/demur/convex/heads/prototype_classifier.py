"""The private nearest-prototype classifier, in scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted

from demur.convex.heads import inputs, prototypes
from demur.convex.heads.base import (
    Array,
    PrivateHead,
    StagedFit,
    reported_space,
)
from demur.convex.heads.prototype_rule import PrototypeRule
from demur.convex.privacy_report import PrivacyReport
from demur.convex.rows.sources import Rows
from demur.core import validate
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import real_array
from demur.core.entropy import Source
from demur.core.promise import Promise
from demur.ledger import Ledger


class BallPrototypeClassifier(PrivateHead):
    """The most probable class given noisy class prototypes.

    Exact mu-GDP at the unit: `Ball(radius, space)`, where labels and class counts are
    public, or `unit=ReplaceOne()`, where sums and counts are released with noise and
    nothing but n is public (this needs `classes`). `lam` = 0 releases the class means.

    Classes are compared by the Bayes rule of `prototype_rule`, which weighs the
    evidence for each class by its known noise. `prior` is the weight of each class
    before a row is seen: "counts" (the released ones), "uniform", or one number for
    each class.

    A fitted classifier has `prototypes_`, `class_prior_`, `classes_`, `privacy_` (a
    `PrivacyReport`) and `entry_`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(-1, 0.3, (200, 2)), rng.normal(1, 0.3, (200, 2))])
    >>> y = np.repeat([0, 1], 200)
    >>> head = BallPrototypeClassifier(epsilon=1.0, radius=0.5, norm_bound=2.0)
    >>> head.fit(X, y).score(X, y) > 0.95
    True
    >>> head.privacy_.epsilon_at(0.5) <= 1.0
    True
    >>> head.entry_.label
    'class prototypes'
    """

    prototypes_: Array

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        radius: float | None = None,
        lam: float = 0.0,
        norm_bound: float = 1.0,
        classes: Sequence[Any] | None = None,
        *,
        unit: Ball | ReplaceOne | None = None,
        ledger: Ledger | None = None,
        prior: str | Sequence[float] = "counts",
        space: str = "records",
        clip: bool = True,
        label: str | None = None,
        source: Source | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.radius = radius
        self.lam = lam
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
            validate.non_negative(lam=self.lam)
        before = self._before(promise)
        data = self._prepare(X, y, two_classes=False)
        dimension = data.width
        with inputs.nothing_spent():
            self._prior(np.ones(len(data.classes)))
            sums, step = data.exact_sums()

        def plan_at(promise: Promise) -> prototypes.PrototypePlan:
            return prototypes.plan_prototypes(
                data.counts,
                promise,
                dimension=dimension,
                lam=self.lam,
                bound=data.bound,
                step=step,
                space=before.space,
                assumptions=self._assumptions(data, before),
            )

        plan = plan_at(promise)

        def finish() -> None:
            with self._declining(promise, lambda less: plan_at(less).mechanism):
                release = plan.mechanism.release(
                    plan.value(sums, data.counts),
                    ledger=self._ledger(promise),
                    label=self.label or "class prototypes",
                    source=self.source,
                )
            known = plan.read(release.value)
            self.classes_ = data.classes
            self.prototypes_ = known.prototypes
            self.privacy_ = PrivacyReport(
                promise,
                float(self.norm_bound),
                "output",
                tuple(float(s) for s in known.sigma),
                None,
                release.entry,
                reported_space(promise, before),
                tuple(float(count) for count in known.counts),
            )

        return StagedFit(plan.mechanism, finish)

    @property
    def class_prior_(self) -> Array:
        """The weight of each class before a row is seen; `prior` may change freely."""
        check_is_fitted(self)
        return self._prior(np.asarray(self.privacy_.counts))

    def decision_function(self, X: ArrayLike) -> Array:
        """Log-probabilities of the classes up to a constant; of two, the log-odds."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probabilities of the classes under the rule's own model."""
        probabilities: Array = softmax(self._scores(X), axis=1)
        return probabilities

    def _scores(self, X: ArrayLike) -> Array:
        rows = self._rows(X)
        sigma, bound = np.asarray(self.privacy_.sigma), self.privacy_.norm_bound
        rule = PrototypeRule.of(self.prototypes_, sigma, self.class_prior_, bound)
        return rule(rows)

    def _prior(self, counts: Array) -> Array:
        """The weights of the classes, which sum to 1."""
        if isinstance(self.prior, str):
            if self.prior not in ("counts", "uniform"):
                raise ValueError(
                    "prior must be 'counts', 'uniform' or a weight for each class;"
                    f" got {self.prior!r}"
                )
            weights = counts if self.prior == "counts" else np.ones(len(counts))
        else:
            weights = real_array("prior", self.prior)
            if weights.shape != counts.shape or not (
                np.isfinite(weights).all() and (weights > 0).all()
            ):
                raise ValueError(
                    f"prior must have a positive weight for each of {len(counts)}"
                    f" classes, in the order of classes_; got shape {weights.shape}"
                )
        prior: Array = weights / weights.sum()
        return prior
