"""Private k-means in scikit-learn's conventions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.cluster.decoding.decoders import baseline_rows
from demur.cluster.decoding.labelling import Labels, NearestCenter
from demur.cluster.decoding.lloyd import lloyd
from demur.cluster.decoding.noise import noise_of
from demur.cluster.decoding.search import fit_clusters, subsampling
from demur.cluster.estimators.base import LABEL, N_INIT, PrivateClusterer
from demur.cluster.rows.ranked_rows import RankedRows
from demur.core.entropy import Source
from demur.ledger import Ledger
from demur.mechanisms.reports import ReportMechanism

Array = NDArray[np.float64]


class PrivateKMeans(PrivateClusterer):
    """k-means of points that their owners perturbed (local differential privacy).

    `decoder="noise_aware"` fits round clusters under the known noise by maximum
    likelihood, and takes the centres with the least expected SSE over the posterior
    (`decoding.posterior`). "clip" is k-means on the reports clipped to the cube,
    "plain" on the reports as they are (its centres may lie outside). Below 200 reports
    at epsilon <= 2 the default falls back to clipping, unless `fallback=False`;
    `decoder_` and `decoder_reason_` say what was done.

    Of many reports all starts use 4,000, the best few 40,000, the last one all of them.

    `labels_` and `inertia_` are those of the *reports*, and so is `fit_predict`.
    `entry_` is the ledger entry that paid, None after `fit_reports`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.repeat([[0.2, 0.2], [0.8, 0.7]], 500, axis=0)
    >>> X = np.clip(X + 0.03 * rng.normal(size=X.shape), 0, 1)
    >>> kmeans = PrivateKMeans(n_clusters=2, epsilon=8.0, random_state=0).fit(X)
    >>> kmeans.cluster_centers_.shape, kmeans.decoder_
    ((2, 2), 'noise_aware')
    >>> bool(kmeans.compute_sse(X) < 10.0)
    True
    """

    def __init__(
        self,
        n_clusters: int = 8,
        epsilon: float = 1.0,
        L: float | str = "auto",
        max_iter: int = 300,
        random_state: Any = None,
        *,
        decoder: str = "noise_aware",
        fallback: bool = True,
        mechanism: str | ReportMechanism = "bpm",
        n_init: int = N_INIT,
        ledger: Ledger | None = None,
        label: str = LABEL,
        space: str = "cube",
        source: Source | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.L = L
        self.max_iter = max_iter
        self.random_state = random_state
        self.decoder = decoder
        self.fallback = fallback
        self.mechanism = mechanism
        self.n_init = n_init
        self.ledger = ledger
        self.label = label
        self.space = space
        self.source = source

    @property
    def _count(self) -> int:
        return self.n_clusters

    @property
    def _count_name(self) -> str:
        return "n_clusters"

    @property
    def _centers(self) -> Array:
        return self.cluster_centers_

    def _labelling(self) -> NearestCenter:
        return NearestCenter(self.cluster_centers_)

    def _cluster(
        self, reports: RankedRows, mechanism: ReportMechanism, decoder: str
    ) -> None:
        rng = self._rng()
        if decoder == "noise_aware":
            fit = fit_clusters(
                reports,
                noise_of(mechanism),
                self.n_clusters,
                rng=rng,
                n_init=self.n_init,
                max_iter=self.max_iter,
            )
            self._subsampled = subsampling(reports.shape[0])
            self.cluster_centers_ = fit.centers
            self.n_iter_ = fit.iterations
            self.width_: float | None = fit.width
            self.averaged_ = fit.averaged
        else:
            model = lloyd(
                baseline_rows(reports, decoder),
                self.n_clusters,
                rng=rng,
                n_init=self.n_init,
                max_iter=self.max_iter,
            )
            self.cluster_centers_ = model.cluster_centers_.astype(np.float64)
            self.n_iter_ = int(model.n_iter_)
            self.width_ = None
            self.averaged_ = False

    def predict(self, X: ArrayLike) -> Labels:
        """The nearest centre of each row."""
        rows = self._rows(X)
        return self._labelling()(rows)

    def compute_sse(self, X: ArrayLike) -> float:
        """Squared distances of rows to their centres, summed; not private for raw X."""
        rows = self._rows(X)
        return float(self._labelling().with_squares(rows)[1].sum())

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """-SSE, as scikit-learn's k-means; not private for raw X."""
        return -self.compute_sse(X)

    def summary(self) -> str:
        """A summary of the fit: mechanism, decoder and privacy statement."""
        lines = []
        if self.__dict__.get("width_") is not None:
            how = (
                "averaged over the posterior"
                if self.averaged_
                else "of the most likely clusters (reports are many)"
            )
            lines.append(f"centres {how}; width of a cluster {self.width_:.3g}")
        return self._about(lines)
