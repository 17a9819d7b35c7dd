"""Sabotages of what is done with data: sensitivity, sampling, state, secrets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from demur.testing.sabotages.patches import Category, Sabotage

_BOUNDS = "demur.convex.sensitivity.gradient_bounds"
_MODELS = "demur.unlearning.models"


def _times(factor: float) -> Any:
    return lambda right: lambda *args, **options: right(*args, **options) * factor


def _not_clipped(right: Any) -> Any:
    def prepare(estimator: Any, X: Any, y: Any, **options: Any) -> Any:
        prepared = right(estimator, X, y, **options)
        return prepared._replace(X=np.asarray(X))

    return prepare


def _one_participation(right: Any) -> Any:
    def sensitivity(self: Any, participation: Any) -> Any:
        return right(self, replace(participation, max_participations=1))

    return sensitivity


def _twice_as_likely(right: Any) -> Any:
    return lambda n, p: right(n, min(2 * p, 1))


def _fixed_size(right: Any) -> Any:
    class Always:
        def __init__(self, size: int) -> None:
            self.size = size

        def draw(self, stream: Any) -> int:
            del stream
            return self.size

    return lambda n, p: Always(round(n * p))


def _the_first_ones(right: Any) -> Any:
    return lambda places, count, stream: np.array(places[:count])


def _kept_rows(right: Any) -> Any:
    def fit(self: Any, X: Any, y: Any = None) -> Any:
        fitted = right(self, X, y)
        fitted.rows_ = np.array(X)
        return fitted

    return fit


def _kept_cache(right: Any) -> Any:
    def insert_many(self: Any, X: Any, Y: Any) -> Any:
        kept = self.__dict__.setdefault("recent", [])
        kept += np.asarray(X).tolist()
        del kept[:-16]
        return right(self, X, Y)

    return insert_many


def _not_done(right: Any) -> Any:
    def delete(
        self: Any, x: Any = None, y: Any = None, noise: Any = None, **more: Any
    ) -> None:
        self.forget_nothing(noise, grid=more.get("grid"))

    return delete


def _silent(right: Any) -> Any:
    def forget_nothing(self: Any, noise: Any = None, *, grid: Any = None) -> Any:
        quiet = None if noise is None else np.zeros_like(noise)
        return right(self, quiet, grid=grid)

    return forget_nothing


def _data_in_the_name(right: Any) -> Any:
    """A declaration that tells of the value it is charged for."""

    def release(self: Any, value: Any, *, label: str = "a value", **more: Any) -> Any:
        told = f"{label} of about {float(np.sum(value)):.6f}"
        return right(self, value, label=told, **more)

    return release


SABOTAGES = (
    Sabotage(
        "convex sensitivities times 0.7",
        Category.SENSITIVITY,
        "convex",
        (f"{_BOUNDS}:grad_diff_bound", f"{_BOUNDS}:full_replacement_bound"),
        _times(0.7),
    ),
    Sabotage(
        "the shift of ogd times 0.4",
        Category.SENSITIVITY,
        "unlearning",
        (f"{_MODELS}.ogd:OGD.shift_bound",),
        _times(0.4),
    ),
    Sabotage(
        "a quarter of the shift of logistic",
        Category.SENSITIVITY,
        "unlearning",
        (f"{_MODELS}.logistic:Logistic.shift_bound",),
        _times(0.25),
    ),
    Sabotage(
        "0.9 of how far a record moves prototypes",
        Category.SENSITIVITY,
        "convex",
        ("demur.convex.heads.prototypes:_moved",),
        _times(0.9),
    ),
    Sabotage(
        "rows of a head not clipped",
        Category.SENSITIVITY,
        "convex",
        ("demur.convex.heads.inputs:prepare",),
        _not_clipped,
    ),
    Sabotage(
        "correlated noise for one participation of several",
        Category.SENSITIVITY,
        "training",
        ("demur.mechanisms.correlated.toeplitz:BandedToeplitz.sensitivity",),
        _one_participation,
    ),
    Sabotage(
        "batches at twice the rate",
        Category.SAMPLING,
        "training",
        ("demur.training.batches.binomial:binomial_table",),
        _twice_as_likely,
    ),
    Sabotage(
        "batches of a fixed size, priced as Poisson samples",
        Category.SAMPLING,
        "training",
        ("demur.training.batches.binomial:binomial_table",),
        _fixed_size,
    ),
    Sabotage(
        "batches of the first records, as many as were drawn",
        Category.SAMPLING,
        "training",
        ("demur.training.batches.subsets:subset",),
        _the_first_ones,
    ),
    Sabotage(
        "a fitted head that keeps its rows",
        Category.STATE,
        "convex",
        ("demur.convex.heads.base:PrivateHead.fit",),
        _kept_rows,
    ),
    Sabotage(
        "a cache of records that deletions leave alone",
        Category.STATE,
        "unlearning",
        (f"{_MODELS}.ogd:OGD.insert_many",),
        _kept_cache,
    ),
    Sabotage(
        "a deletion that is acknowledged and not done",
        Category.STATE,
        "unlearning",
        (f"{_MODELS}.least_squares:LeastSquares.delete",),
        _not_done,
    ),
    Sabotage(
        "a deletion without its noise",
        Category.STATE,
        "unlearning",
        (f"{_MODELS}.ogd:OGD.forget_nothing",),
        _silent,
    ),
    Sabotage(
        "a label that tells the value",
        Category.SECRETS,
        "ledger",
        ("demur.mechanisms.gaussian:Gaussian.release",),
        _data_in_the_name,
    ),
)
