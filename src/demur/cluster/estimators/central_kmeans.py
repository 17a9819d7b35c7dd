"""Private k-means on a trusted server: what the local promise costs, by comparison."""

from __future__ import annotations

from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.cluster.decoding.labelling import Labels, NearestCenter
from demur.cluster.estimators.conventions import CentreDistances
from demur.cluster.estimators.inputs import (
    feature_names_of,
    generator_from_state,
    points_of,
)
from demur.cluster.noisy_lloyd import (
    MOST_POINTS,
    NoisyLloyd,
    plan_lloyd,
    run_lloyd,
)
from demur.core import validate
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne, Unit
from demur.core.declaration import Declaration
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.core.promise import Promise
from demur.ledger import Ledger
from demur.mechanisms.bpm import BPM
from demur.preprocessing.meta_estimators import compare_with_a_private_search
from demur.preprocessing.pipelines import preprocessing_of

Array = NDArray[np.float64]

_STARTS = 64


class CentralKMeans(CentreDistances):
    """k-means by noisy Lloyd steps on points that the server sees (central DP).

    Another promise than that of `PrivateKMeans`: the server must be trusted with the
    points, and the centres alone are private. `unit` is `ReplaceOne()` by default, or
    `AddOrRemoveOne()`; a `Ball` costs as much as a replacement, because a small move
    may change a point's cluster. `steps` are paid for together. X must lie in the unit
    cube, scaled by public bounds. `random_state` seeds the first centres, which do not
    depend on the points.

    `cluster_centers_`, `counts_` (noisy) and `entry_` are all that is released.
    `predict` and its like answer about the rows they are given.

    >>> import numpy as np
    >>> X = np.repeat([[0.2, 0.2], [0.8, 0.7]], 500, axis=0)
    >>> found = CentralKMeans(2, epsilon=2.0, random_state=0).fit(X)
    >>> bool(found.compute_sse(X) < 10.0)
    True
    """

    cluster_centers_: Array
    counts_: Array
    entry_: Entry

    def __init__(
        self,
        n_clusters: int = 8,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        steps: int = 5,
        random_state: Any = None,
        *,
        unit: ReplaceOne | AddOrRemoveOne | Ball | None = None,
        ledger: Ledger | None = None,
        label: str = "k-means on the server",
        source: Source | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.steps = steps
        self.random_state = random_state
        self.unit = unit
        self.ledger = ledger
        self.label = label
        self.source = source

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Charge for all steps, then take them."""
        del y
        points, plan = self._checked(X)
        compare_with_a_private_search(self.promise(), "demur.tuning.search_kmeans")
        release = run_lloyd(
            plan,
            points,
            self._start(points.shape[1]),
            ledger=cast(Ledger | None, self.ledger),
            label=self.label,
            source=self.source,
        )
        self._reset()
        self.cluster_centers_ = release.value[:, :-1].copy()
        self.counts_ = release.value[:, -1].copy()
        self.entry_ = release.entry
        self.n_features_in_ = points.shape[1]
        self._keep_names(feature_names_of(X))
        return self

    def promise(self) -> Promise:
        """What a fit costs, at its unit."""
        validate.positive(epsilon=self.epsilon)
        validate.open_probability(delta=self.delta)
        unit = ReplaceOne() if self.unit is None else self.unit
        if not isinstance(unit, Unit):
            raise TypeError(
                "unit must be ReplaceOne(), AddOrRemoveOne() or a Ball; got"
                f" {unit!r:.40}. Nothing was spent."
            )
        return Promise(unit, float(self.epsilon), float(self.delta))

    def fit_declaration(self, X: ArrayLike) -> Declaration:
        """What `fit` would declare to the ledger; nothing is charged."""
        return self._checked(X)[1].declaration()

    def _checked(self, X: ArrayLike) -> tuple[Array, NoisyLloyd]:
        """The points that may be clustered, and the plan of the steps."""
        points = points_of(X)
        validate.name(label=self.label)
        validate.count(n_clusters=self.n_clusters, steps=self.steps)
        promise = self.promise()
        preprocessing_of(self, ReplaceOne(), "cube")
        # Points outside the cube are refused as those of local reports are.
        points = BPM(1.0, 1.0, points.shape[1]).check(points)
        if len(points) > MOST_POINTS:
            raise ValueError(
                f"X has {len(points)} rows; sums are exact up to {MOST_POINTS}. Take a"
                " random part of the rows. Nothing was spent."
            )
        plan = plan_lloyd(
            promise,
            clusters=int(self.n_clusters),
            dimension=points.shape[1],
            steps=int(self.steps),
        )
        return points, plan

    def _start(self, dimension: int) -> Array:
        """Public centres: of some random sets, the one whose centres are far apart."""
        rng = generator_from_state(self.random_state)
        count = int(self.n_clusters)
        sets = 0.1 + 0.8 * rng.random((_STARTS, count, dimension))
        if count == 1:
            return np.asarray(sets[0])
        gaps = ((sets[:, :, None] - sets[:, None, :]) ** 2).sum(axis=3)
        gaps += 1e9 * np.eye(count)
        return np.asarray(sets[int(gaps.min(axis=(1, 2)).argmax())])

    def predict(self, X: ArrayLike) -> Labels:
        """The nearest centre of each row."""
        return NearestCenter(self.cluster_centers_)(self._rows(X))

    def fit_predict(self, X: ArrayLike, y: Any = None, **kwargs: Any) -> Labels:
        """Fit, then the nearest centre of each row; of raw rows that is not private."""
        return self.fit(X).predict(X)

    def compute_sse(self, X: ArrayLike) -> float:
        """Squared distances of rows to their centres, summed; not private for raw X."""
        nearest = NearestCenter(self.cluster_centers_)
        return float(nearest.with_squares(self._rows(X))[1].sum())

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """-SSE, as scikit-learn's k-means; not private for raw X."""
        return -self.compute_sse(X)
