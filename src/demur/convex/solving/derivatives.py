r"""Derivatives of a head's loss, summed over a chunk of rows, and their rounding error.

Every function is a pure function of its arguments: the same code serves rows in memory,
rows of a file and rows on another machine. Labels are class indices for softmax, signs
otherwise. theta and the rows are those of `sensitivity.form`. `shares`, where rows have
weights, are numbers from 0 to 1 that multiply each row's loss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from demur.convex.rows.totals import UNIT_ROUNDOFF
from demur.convex.sensitivity.form import HeadForm

Array = NDArray[np.float64]
Labels = NDArray[np.intp] | Array

_ROWS_AT_ONCE = 1024  # of the n x K d matrix that a softmax Hessian is made of


class _Slopes(NamedTuple):
    """A margin loss at margins m: its values, -derivative and curvature."""

    value: Array
    slope: Array
    curvature: Array


def _logistic(m: Array, h: float) -> _Slopes:
    a = expit(-m)
    return _Slopes(np.logaddexp(0.0, -m), a, a * (1.0 - a))


def _squared_hinge(m: Array, h: float) -> _Slopes:
    gap = np.maximum(1.0 - m, 0.0)
    return _Slopes(gap * gap, 2.0 * gap, np.where(gap > 0, 2.0, 0.0))


def _huber(m: Array, h: float) -> _Slopes:
    a = np.clip((1.0 + h - m) / (2.0 * h), 0.0, 1.0)
    # Below 1 - h the loss is the hinge 1 - m; between, the parabola h a^2.
    value = np.where(a < 1.0, h * a * a, 1.0 - m)
    return _Slopes(value, a, np.where((a > 0.0) & (a < 1.0), 0.5 / h, 0.0))


_MARGIN = {"logistic": _logistic, "squared_hinge": _squared_hinge, "huber": _huber}


def gradient_sums(
    form: HeadForm, theta: Array, rows: Array, y: Labels, shares: Array | None = None
) -> tuple[float, Array]:
    """The sum of the rows' losses, and the sum of their gradients."""
    scores = _scores(form, rows, theta)
    if form.multinomial:
        values, coefficient = _softmax_parts(scores, y)
    else:
        slopes = _MARGIN[form.loss](scores * y, form.huber_width)
        values, coefficient = slopes.value, -slopes.slope * y
    if shares is not None:
        values, coefficient = values * shares, (coefficient.T * shares).T
    return float(values.sum()), _outer(form, coefficient, rows)


def row_weights(form: HeadForm, theta: Array, rows: Array, y: Labels) -> Array:
    """Each row's curvature; for softmax its probabilities."""
    scores = _scores(form, rows, theta)
    if form.multinomial:
        probabilities: Array = softmax(scores, axis=1)
        return probabilities
    return _MARGIN[form.loss](scores * y, form.huber_width).curvature


def product_sum(
    form: HeadForm,
    weights: NDArray[Any],
    rows: NDArray[Any],
    direction: NDArray[Any],
    shares: Array | None = None,
) -> NDArray[Any]:
    """The rows' (generalised) Hessians times a direction, summed."""
    moved = _scores(form, rows, direction)
    if form.multinomial:
        moved -= np.einsum("ij,ij->i", weights, moved)[:, None]
    moved *= weights
    if shares is not None:
        moved = (moved.T * shares.astype(moved.dtype)).T
    return _outer(form, moved, rows)


def hessian_sum(
    form: HeadForm, theta: Array, rows: Array, y: Labels, *, single: bool
) -> NDArray[Any]:
    """The rows' (generalised) Hessians as one square matrix; `single` in float32.

    For softmax it is diag(p) - p p' times x x': the second part is Z' Z with the
    K d numbers p_k x of each row in a row of Z.
    """
    dtype = np.float32 if single else np.float64
    weights: NDArray[Any] = row_weights(form, theta, rows, y).astype(dtype, copy=False)
    wide: NDArray[Any] = augmented_rows(form, rows).astype(dtype, copy=False)
    if not form.multinomial:
        return _gram(wide, np.sqrt(weights))
    classes, width = form.num_classes, wide.shape[1]
    hessian: NDArray[Any] = np.zeros((classes * width, classes * width), dtype=dtype)
    for start in range(0, len(wide), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        each: NDArray[Any] = weights[some, :, None] * wide[some, None, :]
        flat = each.reshape(len(each), -1)
        hessian -= flat.T @ flat
    for k in range(classes):
        block = slice(k * width, (k + 1) * width)
        hessian[block, block] += _gram(wide, np.sqrt(weights[:, k]))
    return hessian


def _scores(form: HeadForm, rows: NDArray[Any], theta: NDArray[Any]) -> NDArray[Any]:
    """<w, x> + s b for each row."""
    width = rows.shape[1]
    scores: NDArray[Any] = rows @ theta[..., :width].T
    if form.bias_scale > 0:
        scores += form.bias_scale * theta[..., width]
    return scores


def augmented_rows(form: HeadForm, rows: Array) -> Array:
    """Rows with their bias feature, if there is one."""
    if not form.bias_scale > 0:
        return rows
    return np.hstack([rows, np.full((len(rows), 1), form.bias_scale)])


def rounding(
    form: HeadForm, theta_norm: float, *, features: int, additions: float
) -> float:
    """How far a computed mean gradient can be from the true one, in norm.

    Three sums meet: over the d + 1 coordinates of a score (relative to |theta| Bt),
    over the rows of a chunk and over the chunks (relative to the largest coefficient
    times Bt). A sum of k products in any order is off by at most k u / (1 - k u) of
    the sum of absolute values; `additions` is that k for rows and chunks together, and
    the 16 extra terms are for exp, divisions and the regulariser.
    """
    Bt = form.augmented_norm
    width = features + 16
    if form.multinomial:
        steepest, bend = 2.0**0.5, 0.5
    elif form.loss == "squared_hinge":
        steepest, bend = 2.0 * (1.0 + theta_norm * Bt), 2.0
    else:
        bend = 0.25 if form.loss == "logistic" else 0.5 / form.huber_width
        steepest = 1.0
    steps = additions + form.num_classes + 16
    off = bend * width * theta_norm * Bt + steps * steepest + 16
    return 1.01 * UNIT_ROUNDOFF * off * max(Bt, form.lam * theta_norm, 1e-300)


def _outer(
    form: HeadForm, coefficient: NDArray[Any], rows: NDArray[Any]
) -> NDArray[Any]:
    """sum_i c_i (x_i, s): coefficients times rows, of theta's shape."""
    width = rows.shape[1]
    shape = (*coefficient.shape[1:], width + (form.bias_scale > 0))
    total = np.empty(shape, dtype=coefficient.dtype)
    total[..., :width] = coefficient.T @ rows
    if form.bias_scale > 0:
        total[..., width] = form.bias_scale * coefficient.sum(axis=0)
    return total


def _gram(wide: NDArray[Any], roots: NDArray[Any]) -> NDArray[Any]:
    scaled = wide * roots[:, None]
    gram: NDArray[Any] = scaled.T @ scaled
    return gram


def _softmax_parts(scores: Array, y: Labels) -> tuple[Array, Array]:
    """The losses and p - e_y, `scores` used up."""
    index = np.arange(len(scores)), y
    scores -= scores.max(axis=1, keepdims=True)
    own = scores[index].copy()
    np.exp(scores, out=scores)
    sums = scores.sum(axis=1, keepdims=True)
    values = np.log(sums[:, 0]) - own
    scores /= sums
    scores[index] -= 1.0
    return values, scores
