"""Streams, worst cases and sabotaged modes for the tests of the unlearning modes."""

from __future__ import annotations

import numpy as np

from demur.unlearning.models import OGD, Logistic, Ridge, StandardisedRidge

# Every sound mode, in the configurations that take different code paths.
EVERY_MODE = {
    "ogd": lambda d: OGD(d),
    "ogd, projecting": lambda d: OGD(d, radius=0.4, lam=0.3, kappa=2.0, t0=50.0),
    "ogd, logistic": lambda d: OGD(d, loss="logistic", norm_bound=2.0, lam=0.05),
    "ridge": lambda d: Ridge(d, y_bound=2.0),
    "ridge, two limbs": lambda d: Ridge(d, bits=28, Lambda=0.3),
    "ridge, lagged": lambda d: Ridge(d, bits=16, refresh=7),
    "ridge, standardised": lambda d: StandardisedRidge(d, feature_bound=8.0),
    "logistic": lambda d: Logistic(d, Lambda=2.0, tolerance=1e5),
    "logistic, wide": lambda d: Logistic(d, Lambda=0.7, norm_bound=3.0, tolerance=1e6),
}


def records(n, d, seed=0, *, norm=1.0):
    """Rows of norms up to twice the bound and labels, which are targets as well."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X *= norm * rng.uniform(0.1, 2.0, size=(n, 1)) / np.linalg.norm(X, axis=1)[:, None]
    score = X @ rng.normal(size=d) + 0.3 * rng.normal(size=n)
    return X, (score > 0).astype(np.float64)


def unit_rows(n, d, seed=0):
    """Rows on the unit sphere and noisy linear targets."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, X @ rng.normal(size=d) + 0.1 * rng.normal(size=n)


def worst_case(n, d, at, seed=0):
    """A stream in which the records `at` do all the harm the theorem allows.

    They lie along the last axis, where nobody else does, and their residual is beyond
    kappa: the full gradient G, and nothing but the regulariser to wear it off.
    """
    X, Y = unit_rows(n, d, seed)
    X[:, -1] = 0.0
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    for i in at:
        X[i] = 0.0
        X[i, -1] = 1.0
        Y[i] = 1e6
    return X, Y
