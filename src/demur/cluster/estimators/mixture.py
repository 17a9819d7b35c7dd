"""The base of the private mixtures: everything computed from log densities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from demur.cluster.decoding.labelling import Labels
from demur.cluster.estimators.base import PrivateClusterer
from demur.core import validate

Array = NDArray[np.float64]


class PrivateMixture(PrivateClusterer):
    """The base of `PrivateGMM` and `PrivateTMM`."""

    n_components: int
    means_: Array
    weights_: Array

    @property
    def _count(self) -> int:
        return self.n_components

    @property
    def _centers(self) -> Array:
        return self.means_

    def _log_densities(self, rows: Array) -> Array:
        """log weight + log density of a point, a column for each cluster."""
        raise NotImplementedError

    def _parameters(self) -> int:
        """The number of free parameters."""
        raise NotImplementedError

    def predict(self, X: ArrayLike) -> Labels:
        """The most likely cluster of each row."""
        return self._log_densities(self._rows(X)).argmax(axis=1)

    def predict_proba(self, X: ArrayLike) -> Array:
        """The posterior probability of each cluster for each row."""
        return special.softmax(self._log_densities(self._rows(X)), axis=1)

    def score_samples(self, X: ArrayLike) -> Array:
        """The log-likelihood of each row as a point; not private for raw X."""
        return special.logsumexp(self._log_densities(self._rows(X)), axis=1)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """The mean log-likelihood of rows as points; not private for raw X."""
        return float(self.score_samples(X).mean())

    def compute_sse(self, X: ArrayLike) -> float:
        """Squared distances of rows to their cluster's mean; not private for raw X."""
        rows = self._rows(X)
        labels = self._log_densities(rows).argmax(axis=1)
        return float(((rows - self.means_[labels]) ** 2).sum())

    def compute_aic(self, X: ArrayLike) -> float:
        """Akaike's criterion on rows X; not private for raw X."""
        return -2.0 * float(self.score_samples(X).sum()) + 2.0 * self._parameters()

    def compute_bic(self, X: ArrayLike) -> float:
        """Schwarz's criterion on rows X; not private for raw X."""
        scores = self.score_samples(X)
        penalty = self._parameters() * math.log(len(scores))
        return -2.0 * float(scores.sum()) + penalty

    def _scatter(self, labels: Labels, rng: np.random.Generator) -> Array:
        """Deviations from the mean, for points of the given clusters."""
        raise NotImplementedError

    def sample(self, n_samples: int = 1) -> tuple[Array, Labels]:
        """Points drawn from the fitted mixture, and their clusters."""
        validate.count(n_samples=n_samples)
        self._rows(self.means_)
        rng = self._rng()
        labels = np.sort(rng.choice(len(self.weights_), n_samples, p=self.weights_))
        return self.means_[labels] + self._scatter(labels, rng), labels

    def summary(self) -> str:
        """A summary of the fit: mechanism, decoder and privacy statement."""
        return self._about([])
