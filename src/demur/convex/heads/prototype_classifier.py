"""The private nearest-prototype classifier, in scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from demur.convex.heads import inputs, prototypes
from demur.convex.heads.base import Array, PrivateHead, assumptions_of
from demur.convex.privacy_report import PrivacyReport
from demur.convex.release import head_ledger
from demur.convex.rows.sources import Rows
from demur.core import validate
from demur.core.entropy import Source
from demur.ledger import Ledger


class BallPrototypeClassifier(PrivateHead):
    """Nearest private class prototype, with noise for each class.

    Exact mu-GDP at `Ball(radius, space)`. Nothing is claimed at `ReplaceOne`, where
    class counts change. `lam` = 0 releases the class means. `debias` corrects distances
    for the known noise (see `prototypes`). A fitted classifier has `prototypes_`,
    `classes_`, `privacy_` (a `PrivacyReport`) and `entry_`.

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

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        radius: float | None = None,
        lam: float = 0.0,
        norm_bound: float = 1.0,
        classes: Sequence[Any] | None = None,
        *,
        ledger: Ledger | None = None,
        debias: bool = True,
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
        self.ledger = ledger
        self.debias = debias
        self.space = space
        self.clip = clip
        self.label = label
        self.source = source

    def _fit(self, X: ArrayLike | Rows, y: ArrayLike | None) -> Self:
        promise = self._promise()
        with inputs.nothing_spent():
            validate.non_negative(lam=self.lam)
        data = self._prepare(X, y, two_classes=False)
        dimension = data.width
        with inputs.nothing_spent():
            sums, step = data.exact_sums()
        plan = prototypes.plan_prototypes(
            data.counts,
            promise,
            dimension=dimension,
            lam=self.lam,
            bound=data.bound,
            step=step,
            assumptions=assumptions_of(data),
        )
        release = plan.mechanism.release(
            (sums / plan.denominators[:, None]).reshape(-1),
            ledger=head_ledger(self.ledger, promise),
            label=self.label or "class prototypes",
            source=self.source,
        )
        self.classes_ = data.classes
        self.prototypes_ = release.value.reshape(-1, dimension)
        sigma = tuple(float(s) for s in plan.sigma)
        self.privacy_ = PrivacyReport(
            promise, float(self.norm_bound), "output", sigma, None, release.entry
        )
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores, larger for a nearer prototype; for two classes their difference."""
        rows = self._rows(X)
        sigma = np.asarray(self.privacy_.sigma)
        scores = prototypes.Scores.of(self.prototypes_, sigma, debias=self.debias)(rows)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores
