"""Input checks of the modes: finite rows, clipped to the declared bound.

Clipping leaves a row alone whose norm is at most norm_bound (1 + 1e-12). So a row
that was clipped once is never changed again, and a record that is handed in for its
deletion becomes the same numbers as when it was learned. The sensitivities use
`longest`, which has room for that and for the rounding of the norm itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numba import typeof
from numpy.typing import ArrayLike

from demur.core import recording, validate
from demur.core.bounds import real_array
from demur.core.rounding import up
from demur.unlearning.models import kernels
from demur.unlearning.models.base import Array

LOOSE = 1.0 + 1e-12
MOST_PARAMETERS = 2**24  # a deletion takes 2 s and 0.9 GiB there
FLOAT64 = np.dtype(np.float64)  # one object, so `is` tells the common case fast


def check_size(parameters: int, kept: int) -> None:
    """Refuse a state that is too large, before any memory is taken.

    A deletion noises `parameters` numbers; `kept` numbers of 8 bytes are the state.
    """
    if parameters > MOST_PARAMETERS:
        raise ValueError(
            "dimension (times the number of classes) must be at most"
            f" {MOST_PARAMETERS:,}; got {parameters:,}: one copy of the weights takes"
            f" {_in_gib(parameters)}, and a deletion makes seven. Select or hash the"
            " features."
        )
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    if kept * 8 > pages * page:
        raise ValueError(
            f"dimension is too large for this mode: its sums of products take"
            f" {_in_gib(kept)} and this machine has {_in_gib(pages * page // 8)}."
            " Mode 'ogd' keeps weights alone; or select or hash the features."
        )


def _in_gib(numbers: int) -> str:
    return f"{numbers * 8 / 2**30:,.3g} GiB"


def check_norm_bound(norm_bound: float) -> None:
    """Squares of rows at the bound must neither vanish nor overflow: none would be
    clipped then.
    """
    validate.positive(norm_bound=norm_bound)
    if not 1e-100 <= norm_bound <= 1e100:
        raise ValueError(
            f"norm_bound must be between 1e-100 and 1e100; got {norm_bound!r}"
        )


def longest(norm_bound: float, dimension: int) -> float:
    """A bound on the norm of clipped rows, with the error of `kernels._dot`."""
    return up(norm_bound * (LOOSE + (dimension / 4.0 + 8.0) * 2.0**-53), 2)


def vector(x: ArrayLike, dimension: int, what: str = "x") -> Array:
    """A finite float64 vector of `dimension` entries, or a clear error."""
    row = _array(what, x, "a vector")
    if row.shape != (dimension,):
        one = ", one record in a call" if row.ndim == 2 else ""
        raise ValueError(f"{what} must have shape ({dimension},){one}; got {row.shape}")
    if not np.isfinite(row).all():
        raise ValueError(f"{what} must be finite; it holds NaN or infinity")
    return row


def clipped(row: Array, norm_bound: float) -> Array:
    """`row` scaled back to `norm_bound` if it is longer; untouched otherwise."""
    if not kernels.has_square(row):  # it overflows, and the kernels would decline
        row = row / float(np.max(np.abs(row))) * norm_bound * 2.0
    return kernels.clip(row, norm_bound)


def _array(name: str, values: ArrayLike, what: str) -> Array:
    """Rows in one piece; a copy only where that takes one."""
    if type(values) is np.ndarray and values.dtype is FLOAT64:
        return np.ascontiguousarray(values)
    return real_array(name, values, what)


def number(y: object) -> float:
    """A finite target; its error does not quote it."""
    try:
        validate.finite(y=y)
    except (TypeError, ValueError) as error:
        raise type(error)("y must be a finite number") from None
    return float(y)  # type: ignore[arg-type]


def label(y: object) -> float:
    """A class as 0.0 or 1.0; takes 0 / 1, -1 / 1 and False / True."""
    if isinstance(y, (bool, np.bool_)):
        return float(y)
    value = number(y)
    if value == 1.0:
        return 1.0
    if value in (0.0, -1.0):
        return 0.0
    raise ValueError("y must be a class, 0 or 1 (or -1 or 1); got another number")


def rows(X: ArrayLike, Y: ArrayLike, dimension: int) -> tuple[Array, Array]:
    """Finite rows and as many finite targets, or a clear error that names the row."""
    matrix = _array("X", X, "a matrix")
    targets = _array("Y", Y, "a vector")
    if matrix.ndim != 2 or matrix.shape[1] != dimension:
        raise ValueError(
            f"X must have shape (records, {dimension}); got {matrix.shape}"
        )
    if targets.shape != (len(matrix),):
        raise ValueError(
            f"Y must hold one target for each of {len(matrix)} rows; got shape"
            f" {targets.shape}"
        )
    good = np.isfinite(matrix).all(axis=1) & np.isfinite(targets)
    if not good.all():
        raise ValueError(
            f"X and Y must be finite: row {int(np.argmin(good))} holds NaN or infinity;"
            " nothing was learned"
        )
    return matrix, targets


class _Counted(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def records(self) -> int: ...


def to_forget(
    mode: _Counted,
    x: ArrayLike | None,
    y: ArrayLike | None,
    records: int,
    checked: Callable[[ArrayLike, ArrayLike], tuple[Array, Array]],
) -> tuple[Array, Array]:
    """The `records` rows of a deletion, `checked`, no more than are live; or an error.

    For a mode that must see what it is to forget.
    """
    validate.count(records=records)
    if x is None or y is None:
        raise ValueError(
            f"mode {mode.name!r} needs the record (x, y) that it is to forget"
        )
    matrix, targets = checked(np.atleast_2d(np.asarray(x)), np.atleast_1d(y))
    if len(matrix) != records:
        raise ValueError(f"records={records}, but {len(matrix)} were handed in")
    if records > mode.records:
        raise ValueError(f"{records} record(s) to forget, but {mode.records} are live")
    return matrix, targets


def with_noise(
    value: Array, noise: Array | None, grid: float | None, dimension: int
) -> Array:
    """`value`, rounded to the grid if there is one, plus the noise."""
    tape = recording.active()
    if tape is None:
        return sum_with(value, noise, grid, dimension)
    return tape.record_addition(
        value, noise, lambda: sum_with(value, noise, grid, dimension)
    )


def sum_with(
    value: Array, noise: Array | None, grid: float | None, dimension: int
) -> Array:
    """`with_noise` for a trial whose sum is thrown away: nothing is released."""
    if noise is None:
        raise ValueError("this mode's deletions need noise; nothing has changed")
    drawn = vector(noise, dimension, "noise")
    if grid is None:
        noised: Array = value + drawn
        return noised
    validate.positive(grid=grid)
    if math.frexp(grid)[0] != 0.5:
        raise ValueError(f"grid must be a power of two; got {grid!r}")
    index = np.rint(value / grid)
    if not float(np.max(np.abs(index))) < 2.0**52:
        raise ValueError(
            "the parameters are too large for this grid: float64 stops being exact."
            " Nothing has changed."
        )
    on_grid: Array = index * grid + drawn
    return on_grid


def without_dispatch(kernel: Any, *arguments: object) -> Callable[..., float]:
    """The compiled kernel for arguments of these types, which it no longer checks.

    numba's look at the types takes as long as the work of a short row.
    """
    compiled = getattr(kernel, "compile", None)  # missing where numba is switched off
    if compiled is None:
        return kernel
    entry = compiled(tuple(typeof(argument) for argument in arguments))
    return entry if callable(entry) else kernel
