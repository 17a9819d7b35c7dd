"""Inputs of a fit, checked: points, the mechanism, clients' reports."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from demur.core.bounds import finite_matrix, real_array
from demur.core.release import Release
from demur.mechanisms.bpm import BPM
from demur.mechanisms.gaussian_reports import GaussianReports
from demur.mechanisms.laplace_reports import LaplaceReports
from demur.mechanisms.reports import ReportMechanism, Reports

Array = NDArray[np.float64]

MECHANISMS = ("bpm", "laplace", "planar_laplace", "laplace_per_dimension", "gaussian")


def points_of(X: ArrayLike) -> Array:
    """Points to perturb, as a finite matrix."""
    refuse_sparse(X)
    try:
        return finite_matrix("X", X)
    except ValueError as error:
        raise ValueError(f"{str(error).rstrip('.')}. Nothing was spent.") from error


def generator_from_state(seed: Any) -> np.random.Generator:
    """The generator of a `random_state`."""
    if isinstance(seed, np.random.RandomState):
        seed = int(seed.randint(2**31 - 1))
    elif seed is not None and (
        isinstance(seed, bool)
        or not isinstance(seed, numbers.Integral)
        or int(seed) < 0
    ):
        raise ValueError(
            "random_state must be None, a whole number from 0 or a RandomState;"
            f" got {seed!r:.40}. Nothing was spent."
        )
    return np.random.default_rng(seed)


def feature_names_of(X: object) -> NDArray[np.object_] | None:
    """The names of the columns of a table, if all of them are strings."""
    columns = getattr(X, "columns", None)
    if columns is None or not hasattr(X, "dtypes"):
        return None
    names = list(columns)
    if not names or not all(isinstance(name, str) for name in names):
        return None
    return np.array(names, dtype=object)


def refuse_sparse(X: object) -> None:
    """Refuse a sparse matrix: reports and centres are dense."""
    if issparse(X):
        raise TypeError(
            "X is a sparse matrix, and what is released (a report of a row, a centre)"
            " is dense: give X.toarray(), of fewer columns where that is large."
            " Nothing was spent."
        )


def mechanism_for(
    mechanism: str | ReportMechanism, epsilon: float, L: float | str, dimension: int
) -> ReportMechanism:
    """A mechanism by its name, or the one given, for points of `dimension` columns."""
    if isinstance(mechanism, str):
        match mechanism:
            case "bpm":
                return BPM(epsilon, L, dimension)
            case "laplace" | "planar_laplace":  # polar, in the plane
                return BPM(epsilon, math.inf, dimension)
            case "laplace_per_dimension":
                return LaplaceReports(epsilon, dimension)
            case "gaussian":
                return GaussianReports(epsilon, dimension)
    elif isinstance(mechanism, ReportMechanism):
        if mechanism.dimension != dimension:
            raise ValueError(
                f"the mechanism is for {mechanism.dimension} columns; X has"
                f" {dimension}. Nothing was spent."
            )
        return mechanism
    raise ValueError(
        f"mechanism must be one of {MECHANISMS}, or a mechanism; got"
        f" {mechanism!r:.40}. Nothing was spent."
    )


def reports_of(
    given: Reports | Release[Reports] | ArrayLike, mechanism: ReportMechanism | None
) -> Reports:
    """Local reports with their mechanism, checked to be ones that it can draw."""
    if isinstance(given, Release):
        given = given.value
    if isinstance(given, Reports):
        check_mechanism(given.mechanism, mechanism)
        return given
    if not isinstance(mechanism, ReportMechanism):
        raise TypeError(
            "a matrix of reports needs its mechanism, as in"
            " fit_reports(values, BPM(epsilon, L, dimension)); got"
            f" {type(mechanism).__name__}"
        )
    matrix = real_array("reports", given, "a matrix")
    if matrix.ndim != 2 or not len(matrix):
        raise ValueError(
            f"reports must be a matrix with at least one row; got shape {matrix.shape}"
        )
    return Reports(matrix, np.arange(len(matrix), dtype=np.uint64), mechanism)


def check_mechanism(own: ReportMechanism, given: ReportMechanism | None) -> None:
    """Refuse a mechanism that is not the reports' own."""
    if given is not None and given != own:
        raise ValueError(
            f"mechanism must be the reports' own, {own}; got {given}. Decoding with"
            " another noise would give wrong clusters."
        )
