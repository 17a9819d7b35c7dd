"""A private Student-t mixture in scikit-learn's conventions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.cluster.decoding.decoders import PreparedLabel, baseline_rows
from demur.cluster.decoding.labelling import Label, Labels, NearestCenter
from demur.cluster.decoding.lloyd import lloyd
from demur.cluster.decoding.noise import Noise, noise_of
from demur.cluster.decoding.radial import radial_table
from demur.cluster.decoding.search import fit_clusters
from demur.cluster.decoding.student_em import StudentClusters, fit_students
from demur.cluster.estimators.base import LABEL, N_INIT
from demur.cluster.estimators.mixture import PrivateMixture
from demur.cluster.rows.ranked_rows import RankedRows
from demur.core import validate
from demur.core.entropy import Source
from demur.ledger import Ledger
from demur.mechanisms.reports import ReportMechanism

Array = NDArray[np.float64]


class PrivateTMM(PrivateMixture):
    """A Student-t mixture, of one round scale, of points that their owners perturbed.

    `alpha` is the first value of the squared scale (fitted: `alpha_`), `nu` the degrees
    of freedom. `decoder="noise_aware"` fits the t clusters convolved with the known
    noise, as `PrivateKMeans` does, with `nu` as given: under noise with tails of its
    own the reports say hardly anything about it. "clip" and "plain" fit the t mixture
    to the reports (`decoding.student_em`), `nu` included unless `fixed_nu`, until a
    step gains less than `tol`.

    `covariances_` holds the scale matrices alpha_ I; a t's covariance is nu / (nu - 2)
    times that. `labels_` and `inertia_` are those of the *reports*. `entry_` is the
    ledger entry that paid, None after `fit_reports`.
    """

    def __init__(
        self,
        n_components: int = 3,
        epsilon: float = 1.0,
        L: float | str = "auto",
        nu: float = 15.0,
        alpha: float = 0.01,
        max_iter: int = 500,
        tol: float = 0.1,
        random_state: Any = None,
        *,
        fixed_nu: bool = False,
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
        self.nu = nu
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.fixed_nu = fixed_nu
        self.decoder = decoder
        self.fallback = fallback
        self.mechanism = mechanism
        self.n_init = n_init
        self.ledger = ledger
        self.label = label
        self.space = space
        self.source = source

    def _check(self) -> None:
        validate.positive(nu=self.nu, alpha=self.alpha)
        validate.non_negative(tol=self.tol)

    def _prepare(self, noise: Noise) -> None:
        radial_table(noise, float(self.nu))

    def _cluster(
        self, reports: RankedRows, mechanism: ReportMechanism, decoder: str
    ) -> None:
        rng = self._rng()
        if decoder == "noise_aware":
            fit = fit_clusters(
                reports,
                noise_of(mechanism),
                self.n_components,
                rng=rng,
                n_init=self.n_init,
                max_iter=self.max_iter,
                nu=float(self.nu),
                width=math.sqrt(self.alpha),
                shared=True,
                clipped=self.fallback,
            )
            clusters = StudentClusters(
                fit.peak.weights,
                fit.centers,
                fit.width**2,
                float(self.nu),
            )
            self.n_iter_ = fit.iterations
            self._note(fit, reports.shape[0])
        else:
            rows = baseline_rows(reports, decoder)
            model = lloyd(rows, self.n_components, rng=rng, n_init=self.n_init)
            equal = np.full(self.n_components, 1.0 / self.n_components)
            centers = model.cluster_centers_
            start = StudentClusters(equal, centers, float(self.alpha), float(self.nu))
            fitted = fit_students(
                rows,
                start,
                max_iter=self.max_iter,
                tol=self.tol,
                fixed_nu=self.fixed_nu,
            )
            clusters = fitted.clusters
            self.n_iter_ = len(fitted.log_likelihoods)
        self.weights_, self.means_ = clusters.weights, clusters.means
        self.alpha_, self.nu_ = clusters.alpha, clusters.nu
        eye = np.eye(self.means_.shape[1])
        self.covariances_ = np.repeat(
            self.alpha_ * eye[None], self.n_components, axis=0
        )

    def _labelling(self) -> Label:
        return PreparedLabel(NearestCenter(self.means_), self.decoder_)

    def _log_densities(self, rows: Array) -> Array:
        fitted = StudentClusters(self.weights_, self.means_, self.alpha_, self.nu_)
        return fitted.log_densities(rows)

    def _parameters(self) -> int:
        count, d = self.means_.shape
        return count * d + count - 1 + 2

    def _scatter(self, labels: Labels, rng: np.random.Generator) -> Array:
        z = rng.normal(size=(len(labels), self.means_.shape[1]))
        u = rng.gamma(self.nu_ / 2.0, 2.0 / self.nu_, size=len(labels))
        return z * np.sqrt(self.alpha_ / u)[:, None]
