"""A private Gaussian mixture in scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.mixture import GaussianMixture

from demur.cluster.decoding.decoders import PreparedLabel, baseline_rows
from demur.cluster.decoding.gaussian_em import (
    COVARIANCE_TYPES,
    GaussianClusters,
    fit_gaussians,
    responsibilities,
)
from demur.cluster.decoding.labelling import Label, Labels
from demur.cluster.decoding.lloyd import without_convergence_warnings
from demur.cluster.decoding.noise import Noise, noise_of
from demur.cluster.decoding.scale_mixture import Nodes, scale_mixture
from demur.cluster.decoding.search import fit_clusters
from demur.cluster.estimators.base import LABEL, N_INIT
from demur.cluster.estimators.mixture import PrivateMixture
from demur.cluster.rows.ranked_rows import RankedRows, new_key, subsample
from demur.core.entropy import Source
from demur.ledger import Ledger
from demur.mechanisms.reports import ReportMechanism

Array = NDArray[np.float64]

_EM_REPORTS = 100_000  # a Gaussian mixture is fitted to at most that many reports
_FIRST_WIDTH = 0.05
_PRIOR_POINTS = 5.0  # added to every weight


class PrivateGMM(PrivateMixture):
    """A Gaussian mixture of points that their owners perturbed (local DP).

    `decoder="noise_aware"` maximises the likelihood of N(mu, Sigma) clusters convolved
    with the known noise (`demur.cluster.decoding.gaussian_em`), from the start that
    `PrivateKMeans` finds; of more than 100,000 reports a random 100,000 are used.
    `covariances_` has scikit-learn's shape for the `covariance_type`. "clip" and
    "plain" fit scikit-learn's GaussianMixture to the reports, whose covariances contain
    the noise.

    `labels_` and `inertia_` are those of the *reports*. `entry_` is the ledger entry
    that paid, None after `fit_reports`.
    """

    def __init__(
        self,
        n_components: int = 1,
        epsilon: float = 1.0,
        L: float | str = "auto",
        covariance_type: str = "full",
        max_iter: int = 100,
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
        self.n_components = n_components
        self.epsilon = epsilon
        self.L = L
        self.covariance_type = covariance_type
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

    def _check(self) -> None:
        if self.covariance_type not in COVARIANCE_TYPES:
            raise ValueError(
                f"covariance_type must be one of {COVARIANCE_TYPES}; got"
                f" {self.covariance_type!r:.40}. Nothing was spent."
            )

    def _check_noise(self, mechanism: ReportMechanism) -> None:
        noise = noise_of(mechanism)
        if noise.block != noise.dimension:
            raise ValueError(
                "noise by coordinate has no closed form under covariances: use"
                " decoder='clip' or 'plain' with per-dimension Laplace, or"
                " PrivateKMeans. Nothing was spent."
            )

    def _prepare(self, noise: Noise) -> None:
        super()._prepare(noise)
        scale_mixture(noise)

    def _cluster(
        self, reports: RankedRows, mechanism: ReportMechanism, decoder: str
    ) -> None:
        rng = self._rng()
        if decoder == "noise_aware":
            self._noise_aware(reports, noise_of(mechanism), rng)
            return
        model = GaussianMixture(
            self.n_components,
            covariance_type=self.covariance_type,
            max_iter=self.max_iter,
            n_init=1,
            reg_covar=1e-5,
            random_state=int(rng.integers(2**31 - 1)),
        )
        with without_convergence_warnings():
            model.fit(baseline_rows(reports, decoder))
        self.weights_, self.means_ = model.weights_, model.means_
        self.covariances_ = model.covariances_
        self.n_iter_ = int(model.n_iter_)

    def _noise_aware(
        self, reports: RankedRows, noise: Noise, rng: np.random.Generator
    ) -> None:
        sample = subsample(reports, new_key(rng), _EM_REPORTS)
        values = sample.values
        spheres = fit_clusters(
            sample,
            noise,
            self.n_components,
            rng=rng,
            n_init=self.n_init,
            max_iter=300,
            clipped=self.fallback,
        )
        self._note(spheres, len(values))
        if len(values) < reports.shape[0]:
            self._subsampled = (
                f"{len(values):,} of the {reports.shape[0]:,} reports were fitted;"
                f" of those {self._subsampled}"
            )
        peak = spheres.peak
        eye = np.eye(values.shape[1])
        # EM leaves a tiny covariance only slowly: begin wide rather than narrow.
        variance = max(spheres.width, _FIRST_WIDTH) ** 2
        covariances = np.repeat(variance * eye[None], self.n_components, axis=0)
        start = GaussianClusters(peak.weights, spheres.centers, covariances)
        fit = fit_gaussians(
            values,
            scale_mixture(noise),
            start,
            covariance_type=self.covariance_type,
            max_iter=self.max_iter,
            pseudo_count=_PRIOR_POINTS,
        )
        clusters = fit.clusters
        self.weights_, self.means_ = clusters.weights, clusters.means
        self.covariances_ = _as_shaped(clusters.covariances, self.covariance_type)
        self.n_iter_ = len(fit.log_likelihoods)

    def _labelling(self) -> Label:
        if self.decoder_ != "noise_aware":
            return PreparedLabel(MostLikely(self._clusters()), self.decoder_)
        nodes = scale_mixture(noise_of(self.report_mechanism_))
        return ThroughNoise(nodes, self._clusters())

    def _clusters(self) -> GaussianClusters:
        return GaussianClusters(self.weights_, self.means_, self._matrices())

    def _matrices(self) -> Array:
        """Covariances as one matrix for each cluster."""
        d = self.means_.shape[1]
        given = np.asarray(self.covariances_)
        match self.covariance_type:
            case "tied":
                return np.repeat(given[None], self.n_components, axis=0)
            case "diag":
                return given[:, :, None] * np.eye(d)
            case "spherical":
                return given[:, None, None] * np.eye(d)
        return given

    def _log_densities(self, rows: Array) -> Array:
        return self._clusters().log_densities(rows)

    def _parameters(self) -> int:
        count, d = self.means_.shape
        shape = {
            "full": count * d * (d + 1) // 2,
            "tied": d * (d + 1) // 2,
            "diag": count * d,
            "spherical": count,
        }[self.covariance_type]
        return shape + count * d + count - 1

    def _scatter(self, labels: Labels, rng: np.random.Generator) -> Array:
        roots = np.linalg.cholesky(self._matrices())
        z = rng.normal(size=(len(labels), self.means_.shape[1]))
        return np.einsum("iab,ib->ia", roots[labels], z)


@dataclass(frozen=True, eq=False)
class MostLikely:
    """The most likely cluster of rows that are taken for points."""

    clusters: GaussianClusters

    def __call__(self, rows: Array) -> Labels:
        """A label for each row."""
        return self.clusters.log_densities(rows).argmax(axis=1)


@dataclass(frozen=True, eq=False)
class ThroughNoise:
    """The most likely cluster of reports, their noise known."""

    nodes: Nodes
    clusters: GaussianClusters

    def __call__(self, reports: Array) -> Labels:
        """A label for each report."""
        return responsibilities(reports, self.nodes, self.clusters).argmax(axis=1)


def _as_shaped(covariances: Array, covariance_type: str) -> Array:
    """scikit-learn's shape of covariances."""
    match covariance_type:
        case "tied":
            return covariances[0].copy()
        case "diag":
            return np.diagonal(covariances, axis1=1, axis2=2).copy()
        case "spherical":
            return covariances[:, 0, 0].copy()
    return covariances
