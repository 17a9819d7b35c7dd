"""Private k-means in scikit-learn's conventions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from demur.cluster.decoding.counts import best_count
from demur.cluster.decoding.decoders import baseline_rows
from demur.cluster.decoding.labelling import Labels, NearestCenter
from demur.cluster.decoding.likelihood import Clusters
from demur.cluster.decoding.lloyd import lloyd
from demur.cluster.decoding.noise import Noise, noise_of
from demur.cluster.decoding.search import fit_clusters
from demur.cluster.decoding.uncertainty import probabilities, uncertainty
from demur.cluster.estimators.base import LABEL, N_INIT, PrivateClusterer
from demur.cluster.estimators.conventions import CentreDistances
from demur.cluster.rows.ranked_rows import RankedRows
from demur.core.entropy import Source
from demur.ledger import Ledger
from demur.mechanisms.reports import ReportMechanism

Array = NDArray[np.float64]

_AGREEMENT = 1.2


class PrivateKMeans(CentreDistances, PrivateClusterer):
    """k-means of points that their owners perturbed (local differential privacy).

    `decoder="noise_aware"` fits round clusters under the known noise and takes the
    centres with the least expected SSE over the posterior (`decoding.posterior`).
    Where reports are few, the law that k-means on the clipped reports suggests has a
    share in them, by its likelihood (`decoding.clipped_law`), unless `fallback=False`;
    `decoder_reason_` says so. "clip" is k-means on the reports clipped to the cube,
    "plain" on the reports as they are (its centres may lie outside).

    `n_clusters="auto"` takes the number with the best Schwarz criterion of the reports,
    at most 20 (`n_clusters_`). A warning (`UnsupportedClusters`) says where the reports
    do not show as many clusters as were asked for.

    Of the noise-aware fit: `centers_interval_` (by cluster and coordinate, 95% of the
    posterior), `centers_covariance_`, `weights_` and `weights_interval_` (shares of the
    points), `widths_` (of each cluster) and `width_`. They hold for the model of round
    clusters; beyond 1,000,000 pairs of report and cluster, and in many dimensions where
    chains do not move, they are those of a Gaussian at the peak of the likelihood.
    Where centres are looked for in a subspace (many
    reports in more than 12 dimensions) they include what the reports leave open outside
    of it, and are wide there (`decoding.subspace`).

    Up to 1,000,000 pairs of report and cluster the search and the chains are seeded by
    the values of the reports, so that a fit is a function of those alone: their order,
    their ids and `random_state` change nothing. Beyond, and for the other decoders,
    `random_state` seeds the clustering. (For "auto" it also chooses the 10,000 reports
    on which numbers of clusters are compared, where there are more.)

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
        n_clusters: int | str = 8,
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
        if isinstance(self.n_clusters, str):
            return int(vars(self).get("n_clusters_", 1))
        return self.n_clusters

    def _check_count(self) -> None:
        if not isinstance(self.n_clusters, str):
            super()._check_count()
        elif self.n_clusters != "auto" or self.decoder != "noise_aware":
            raise ValueError(
                "n_clusters must be a whole number from 1, or 'auto' with"
                f" decoder='noise_aware'; got {self.n_clusters!r:.40}. Nothing was"
                " spent."
            )

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
            self._noise_aware(reports, noise_of(mechanism), rng)
            return
        model = lloyd(
            baseline_rows(reports, decoder),
            self._count,
            rng=rng,
            n_init=self.n_init,
            max_iter=self.max_iter,
        )
        self.cluster_centers_ = model.cluster_centers_.astype(np.float64)
        self.n_clusters_ = self._count
        self.n_iter_ = int(model.n_iter_)
        self.width_: float | None = None
        self.averaged_ = False

    def _noise_aware(
        self, reports: RankedRows, noise: Noise, rng: np.random.Generator
    ) -> None:
        count = self._count
        if self.n_clusters == "auto":
            count = best_count(reports, noise, rng=rng)
        fit = fit_clusters(
            reports,
            noise,
            count,
            rng=rng,
            n_init=self.n_init,
            max_iter=self.max_iter,
            clipped=self.fallback,
        )
        self._note(fit, reports.shape[0])
        self.n_clusters_ = count
        self.cluster_centers_ = fit.centers
        self.n_iter_ = fit.iterations
        self.averaged_ = fit.averaged
        known = uncertainty(fit.draws, fit.centers)
        self.width_ = fit.width
        self.widths_ = known.widths
        self.weights_ = known.weights
        self.weights_interval_ = known.weights_interval
        self.centers_interval_ = known.centers_interval
        self.centers_covariance_ = known.centers_covariance
        self.disagreement_ = fit.draws.disagreement

    def predict(self, X: ArrayLike) -> Labels:
        """The nearest centre of each row."""
        rows = self._rows(X)
        return self._labelling()(rows)

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of each cluster for each row, taken for a point."""
        rows = self._rows(X)
        d = rows.shape[1]
        widths = self._soft("widths_")
        logs = np.log(self.weights_) - d * np.log(widths)
        return special.softmax(
            logs - 0.5 * (self._distances(rows) / widths) ** 2, axis=1
        )

    def report_proba(self, reports: ArrayLike) -> Array:
        """The probability of each cluster for each *report*, its noise known."""
        rows = self._nameless_rows(reports)
        noise = noise_of(self.report_mechanism_)
        clusters = Clusters(self.cluster_centers_, self.weights_, self._soft("widths_"))
        return probabilities(clusters, noise, rows)

    def _soft(self, name: str) -> Array:
        if name not in vars(self):
            raise AttributeError(
                f"decoder={self.decoder_!r} has no probabilities: it fits centres"
                " alone. Use decoder='noise_aware'."
            )
        return np.asarray(vars(self)[name])

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
                else "of the most likely clusters"
            )
            lines.append(f"centres {how}; width of a cluster {self.width_:.3g}")
            low, high = self.weights_interval_.T
            shares = ", ".join(
                f"{w:.3f} ({a:.3f} to {b:.3f})"
                for w, a, b in zip(self.weights_, low, high, strict=True)
            )
            lines.append(f"shares (95%): {shares}")
            half = 0.5 * np.diff(self.centers_interval_, axis=2).max()
            lines.append(f"centres known within {half:.2g} on each coordinate (95%)")
            if self.disagreement_ > _AGREEMENT:
                lines.append(
                    f"the chains of the posterior disagree ({self.disagreement_:.2f};"
                    " 1 where they agree): the reports allow several answers"
                )
        return self._about(lines)
