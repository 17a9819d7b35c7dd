"""Searches for the worst pair of datasets of each head, through `fit` itself.

With a strong regulariser the minimiser stays near 0 and the curvature of the loss is
small beside lam: there a head moves by nearly what its theorem allows (Delta = G(r) /
(lam n)), so that a declaration that is a few per cent too small is refuted. Searches
start at the pair that the proof calls extreme (a row on the sphere that moves towards
the origin, a label that changes) and try others near it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.audit import AuditResult, search_sensitivity
from demur.cluster import CentralKMeans
from demur.convex import (
    BallDiscriminantClassifier,
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    BallSVC,
)
from demur.core.adjacency import Ball, ReplaceOne, Unit
from demur.core.entropy import Source
from demur.preprocessing import PrivatePCA, PrivateStandardScaler
from demur.testing.audit_suite.case import Size

RADIUS = 0.5
NEAR = Ball(RADIUS, space="records")
PERSON = Ball(RADIUS, space="records", records_per_person=2)
_ROWS, _STRONG = 8, 50.0

Values = NDArray[np.float64]
Data = tuple[Values, NDArray[np.int64]]
Make = Callable[[Source], Any]


def _unit_vector(direction: Values) -> Values:
    return np.asarray(direction / max(float(np.linalg.norm(direction)), 1e-12))


def near_pair(direction: Values) -> tuple[Data, Data]:
    """One row on the unit sphere, and the same row moved by the radius inwards."""
    unit = _unit_vector(direction)
    rows, labels = _others(len(direction))
    moved = rows.copy()
    rows[-1], moved[-1] = unit, unit * (1.0 - RADIUS)
    return (rows, labels), (moved, labels)


def label_pair(direction: Values) -> tuple[Data, Data]:
    """A row on the unit sphere, and its opposite or itself with another label."""
    unit = _unit_vector(direction)
    rows, labels = _others(len(direction))
    rows[-1] = unit
    other = labels.copy()
    other[-1] = (labels[-1] + 1) % 2
    return (rows, labels), (rows.copy(), other)


def opposite_pair(direction: Values) -> tuple[Data, Data]:
    """A row on the unit sphere, and the opposite one of the same class."""
    unit = _unit_vector(direction)
    rows, labels = _others(len(direction))
    moved = rows.copy()
    rows[-1], moved[-1] = unit, -unit
    return (rows, labels), (moved, labels)


def turned_pair(direction: Values) -> tuple[Data, Data]:
    """A row on the unit sphere, and one at a right angle to it."""
    unit = _unit_vector(direction)
    across = _unit_vector(np.roll(unit, 1) - (np.roll(unit, 1) @ unit) * unit)
    rows, labels = _others(len(direction))
    moved = rows.copy()
    rows[-1], moved[-1] = unit, across
    return (rows, labels), (moved, labels)


def person_pair(direction: Values) -> tuple[Data, Data]:
    """Two rows of a person on the unit sphere, both moved inwards by the radius."""
    (rows, labels), (moved, _) = near_pair(direction)
    rows[-2], moved[-2] = rows[-1], moved[-1]
    same = labels.copy()
    same[-2] = same[-1]
    return (rows, same), (moved, same)


def _others(columns: int) -> Data:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(_ROWS, columns)) * 0.05
    return rows, np.arange(_ROWS, dtype=np.int64) % 2


def _logistic(source: Source, **unit: Any) -> Any:
    return BallLogisticRegression(lam=_STRONG, classes=(0, 1), source=source, **unit)


def _softmax(source: Source, **unit: Any) -> Any:
    return BallSoftmaxClassifier(lam=_STRONG, classes=(0, 1, 2), source=source, **unit)


def _svc(loss: str) -> Callable[..., Any]:
    def make(source: Source, **unit: Any) -> Any:
        return BallSVC(lam=_STRONG, loss=loss, classes=(0, 1), source=source, **unit)

    return make


def _prototypes(source: Source, **unit: Any) -> Any:
    return BallPrototypeClassifier(classes=(0, 1), source=source, **unit)


def _discriminant(source: Source, **unit: Any) -> Any:
    return BallDiscriminantClassifier(classes=(0, 1), source=source, **unit)


def _pca(source: Source, **unit: Any) -> Any:
    return PrivatePCA(source=source, **unit)


def _scaler(source: Source, **unit: Any) -> Any:
    return PrivateStandardScaler(source=source, **unit)


def searched(
    make: Callable[..., Any],
    pair: Callable[[Values], tuple[Data, Data]],
    unit: Unit,
    subject: str,
    least: float,
) -> Callable[[Size, int], AuditResult]:
    """The audit of one estimator at one unit."""
    at: dict[str, Any] = {"radius": RADIUS} if unit == NEAR else {"unit": unit}

    def run(data: Data, source: Source) -> dict[str, Any]:
        model = make(source, epsilon=1.0, delta=1e-6, **at).fit(*data)
        public = {k: v for k, v in vars(model).items() if k.endswith("_")}
        return {"model": public}

    def audited(size: Size, seed: int) -> AuditResult:
        return search_sensitivity(
            run,
            (np.array([1.0, 0.0, 0.0]), np.array([0.6, -0.8, 0.0])),
            pair,
            unit=unit,
            subject=subject,
            moved=lambda best, rng: best + 0.2 * rng.normal(size=best.size),
            rounds=size.of(4),
            least=least,
            random_state=seed,
        )

    return audited


# name, estimator, pair, unit, and the share of what is declared that must be reached
SEARCHES: tuple[
    tuple[str, Callable[..., Any], Callable[[Values], tuple[Data, Data]], Unit, float],
    ...,
] = (
    ("logistic head at a ball", _logistic, near_pair, NEAR, 0.85),
    ("softmax head at a ball", _softmax, near_pair, NEAR, 0.85),
    ("Huber SVC at a ball", _svc("huber"), near_pair, NEAR, 0.85),
    ("squared-hinge SVC at a ball", _svc("squared_hinge"), near_pair, NEAR, 0.85),
    ("logistic head, label changed", _logistic, label_pair, ReplaceOne(), 0.85),
    ("logistic head, two records of a person", _logistic, person_pair, PERSON, 0.85),
    ("prototypes, two records of a person", _prototypes, person_pair, PERSON, 0.95),
    ("prototypes at a ball", _prototypes, near_pair, NEAR, 0.95),
    ("prototypes at any replacement", _prototypes, opposite_pair, ReplaceOne(), 0.95),
    ("discriminant head at a ball", _discriminant, near_pair, NEAR, 0.5),
    ("private PCA at any replacement", _pca, turned_pair, ReplaceOne(), 0.6),
    ("private scaler at any replacement", _scaler, opposite_pair, ReplaceOne(), 0.6),
)


def kmeans(size: Size, seed: int) -> AuditResult:
    """k-means on the server: a point at one corner of the cube, and at another."""

    def run(points: Values, source: Source) -> dict[str, Any]:
        model = CentralKMeans(2, random_state=0, source=source).fit(points)
        return {"centres": model.cluster_centers_}

    def pair(corner: Values) -> tuple[Values, Values]:
        rng = np.random.default_rng(5)
        points = 0.4 + 0.2 * rng.random((40, 2))
        other = points.copy()
        points[-1], other[-1] = corner, 1.0 - corner
        return points, other

    return search_sensitivity(
        run,
        tuple(np.array(corner) for corner in ((0.0, 0.0), (1.0, 0.0), (0.0, 0.5))),
        pair,
        unit=ReplaceOne(),
        subject="cluster: k-means on the server",
        least=0.2,
        random_state=seed,
    )
