"""Streams over several classes, and oracles in extended precision."""

from __future__ import annotations

import numpy as np

from demur.unlearning.models import OGD, Logistic, Ridge

# Every mode over classes, in the configurations that take different code paths.
EVERY_CLASS_MODE = {
    "ogd": lambda d, K: OGD(d, classes=K),
    "ogd, projecting": lambda d, K: OGD(d, classes=K, radius=0.4, lam=0.3, t0=50.0),
    "ridge": lambda d, K: Ridge(d, classes=K),
    "ridge, two limbs": lambda d, K: Ridge(d, classes=K, bits=28, Lambda=0.3),
    "ridge, lagged": lambda d, K: Ridge(d, classes=K, bits=16, refresh=7),
    "logistic": lambda d, K: Logistic(d, classes=K, Lambda=2.0, tolerance=1e5),
}

FAMILIES = ("plain", "imbalanced", "duplicates", "one direction")


def class_records(n, d, K, seed=0, *, family="plain", norm=1.0):
    """Rows of norms up to twice the bound, and classes that follow them.

    "imbalanced": nearly all records are of one class, and one class has none;
    "duplicates": five rows, each many times, with whatever class;
    "one direction": all rows along one line, where curvature piles up.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X *= norm * rng.uniform(0.1, 2.0, size=(n, 1)) / np.linalg.norm(X, axis=1)[:, None]
    scores = X @ rng.normal(size=(d, K)) * 3.0 / norm + rng.gumbel(size=(n, K))
    Y = np.argmax(scores, axis=1)
    if family == "imbalanced":
        Y = np.where(rng.random(n) < 0.95, 0, np.minimum(Y, K - 2))
    elif family == "duplicates":
        X = X[rng.integers(0, min(5, n), size=n)]
    elif family == "one direction":
        X = X[:1] * rng.choice([-1.0, 1.0], size=(n, 1))
    return X, Y.astype(np.float64)


def conflict(n, d, K, at, seed=0):
    """A stream whose record `at` has nearly the largest gradient there is.

    All before it say class 0 along the first axis, it says class 1, and all after it
    lie in other directions: nothing but the regulariser wears it off.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[:, 0] = 0.0
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    Y = rng.integers(0, K, size=n).astype(np.float64)
    X[: at + 1] = np.eye(d)[0]
    Y[:at], Y[at] = 0.0, 1.0
    return X, Y


def probabilities(scores):
    """Softmax of the last axis, in the precision of the scores."""
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def true_gradient(mode, X, Y):
    """The norm of a logistic mode's gradient over these records, in long double."""
    long, K = np.longdouble, mode.classes
    W = mode._vectors[0].astype(long).reshape(K, -1)
    rows = np.array([mode.check(x, y)[0] for x, y in zip(X, Y, strict=True)])
    rows = rows.reshape(-1, mode.dimension).astype(long)
    p = probabilities(rows @ W.T)
    p[np.arange(len(rows)), np.asarray(Y, dtype=int)] -= 1
    total = p.T @ rows + mode.Lambda * W
    return float(np.sqrt((total * total).sum()))


def shift(make, X, Y, missing):
    """The distance between a run and its replay without some ticks, and the bound."""
    whole, replay = make(), make()
    whole.insert_many(X, Y)
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        replay.skip() if i in missing else replay.insert(x, float(y))
    distance = float(np.linalg.norm(whole.published() - replay.published()))
    return distance, whole.shift_bound(len(missing))
