r"""The stated objective without its data: what a chunk of rows adds to its sums.

    F(theta) = (1/n) sum_i l(theta; x_i, y_i) + (lam/2) |theta|^2

over theta = (w, b) with the bias feature s: scores are <w, x> + s b. Binary losses have
a vector theta of d + 1 numbers (d where s = 0), softmax a matrix of K rows.

Every method is a pure function of its arguments: the same code serves rows in memory,
rows of a file and rows on another machine. Labels are class indices for softmax, signs
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from demur.convex.sensitivity.losses import (
    HUBER_WIDTH,
    augmented_norm,
    check_loss,
    check_width,
)
from demur.core import validate

Array = NDArray[np.float64]
Labels = NDArray[np.intp] | Array

UNIT_ROUNDOFF = 2.0**-53
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


@dataclass(frozen=True)
class Form:
    """A loss, its regularisation and its bias feature; built by `Form.of`."""

    loss: str
    lam: float
    bias_scale: float
    num_classes: int
    huber_width: float

    @classmethod
    def of(
        cls,
        loss: str,
        lam: float,
        bias_scale: float = 1.0,
        num_classes: int = 2,
        *,
        huber_width: float = HUBER_WIDTH,
    ) -> Form:
        """The form, its numbers checked."""
        check_loss(loss, num_classes)
        check_width(huber_width)
        validate.non_negative(lam=lam, bias_scale=bias_scale)
        return cls(
            loss, float(lam), float(bias_scale), int(num_classes), float(huber_width)
        )

    @property
    def multinomial(self) -> bool:
        """Whether theta is a matrix with a row for each class."""
        return self.loss == "softmax"

    def shape(self, features: int) -> tuple[int, ...]:
        """The shape of theta for rows of so many features."""
        width = features + (self.bias_scale > 0)
        return (self.num_classes, width) if self.multinomial else (width,)

    def gradient_sums(
        self, theta: Array, rows: Array, y: Labels
    ) -> tuple[float, Array]:
        """The rows' losses and their gradients, summed."""
        scores = self.scores(rows, theta)
        if self.multinomial:
            value, coefficient = _softmax_parts(scores, y)
        else:
            slopes = _MARGIN[self.loss](scores * y, self.huber_width)
            value, coefficient = float(slopes.value.sum()), -slopes.slope * y
        return value, self._outer(coefficient, rows)

    def weights(self, theta: Array, rows: Array, y: Labels) -> Array:
        """Each row's curvature; for softmax its probabilities."""
        scores = self.scores(rows, theta)
        if self.multinomial:
            probabilities: Array = softmax(scores, axis=1)
            return probabilities
        return _MARGIN[self.loss](scores * y, self.huber_width).curvature

    def product_sum(
        self, weights: NDArray[Any], rows: NDArray[Any], direction: NDArray[Any]
    ) -> NDArray[Any]:
        """The rows' (generalised) Hessians times a direction, summed."""
        moved = self.scores(rows, direction)
        if self.multinomial:
            moved -= np.einsum("ij,ij->i", weights, moved)[:, None]
        moved *= weights
        return self._outer(moved, rows)

    def hessian_sum(
        self, theta: Array, rows: Array, y: Labels, *, single: bool
    ) -> NDArray[Any]:
        """The rows' (generalised) Hessians as one square matrix; `single` in float32.

        For softmax it is diag(p) - p p' times x x': the second part is Z' Z with the
        K d numbers p_k x of each row in a row of Z.
        """
        kind = np.float32 if single else np.float64
        weights: NDArray[Any] = self.weights(theta, rows, y).astype(kind, copy=False)
        wide: NDArray[Any] = self.augmented(rows).astype(kind, copy=False)
        if not self.multinomial:
            return _gram(wide, np.sqrt(weights))
        classes, width = self.num_classes, wide.shape[1]
        found: NDArray[Any] = np.zeros((classes * width, classes * width), dtype=kind)
        for start in range(0, len(wide), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            each: NDArray[Any] = weights[some, :, None] * wide[some, None, :]
            flat = each.reshape(len(each), -1)
            found -= flat.T @ flat
        for k in range(classes):
            block = slice(k * width, (k + 1) * width)
            found[block, block] += _gram(wide, np.sqrt(weights[:, k]))
        return found

    def scores(self, rows: NDArray[Any], theta: NDArray[Any]) -> NDArray[Any]:
        """<w, x> + s b for each row."""
        width = rows.shape[1]
        scores: NDArray[Any] = rows @ theta[..., :width].T
        if self.bias_scale > 0:
            scores += self.bias_scale * theta[..., width]
        return scores

    def augmented(self, rows: Array) -> Array:
        """Rows with their bias feature, if there is one."""
        if not self.bias_scale > 0:
            return rows
        return np.hstack([rows, np.full((len(rows), 1), self.bias_scale)])

    def rounding(
        self, norm_bound: float, theta_norm: float, *, features: int, additions: float
    ) -> float:
        """How far a computed mean gradient can be from the true one, in norm.

        Three sums meet: over the d + 1 coordinates of a score (relative to
        |theta| Bt), over the rows of a chunk and over the chunks (relative to the
        largest coefficient times Bt). A sum of k products in any order is off by at
        most k u / (1 - k u) of the sum of absolute values; `additions` is that k for
        rows and chunks together, and the 16 extra terms pay for exp, divisions and the
        regulariser.
        """
        Bt = augmented_norm(norm_bound, self.bias_scale)
        width = features + 16
        if self.multinomial:
            steepest, bend = 2.0**0.5, 0.5
        elif self.loss == "squared_hinge":
            steepest, bend = 2.0 * (1.0 + theta_norm * Bt), 2.0
        else:
            bend = 0.25 if self.loss == "logistic" else 0.5 / self.huber_width
            steepest = 1.0
        steps = additions + self.num_classes + 16
        off = bend * width * theta_norm * Bt + steps * steepest + 16
        return 1.01 * UNIT_ROUNDOFF * off * max(Bt, self.lam * theta_norm, 1e-300)

    def _outer(self, coefficient: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
        """sum_i c_i (x_i, s): coefficients times rows, of theta's shape."""
        width = rows.shape[1]
        shape = (*coefficient.shape[1:], width + (self.bias_scale > 0))
        found = np.empty(shape, dtype=coefficient.dtype)
        found[..., :width] = coefficient.T @ rows
        if self.bias_scale > 0:
            found[..., width] = self.bias_scale * coefficient.sum(axis=0)
        return found


def _gram(wide: NDArray[Any], roots: NDArray[Any]) -> NDArray[Any]:
    scaled = wide * roots[:, None]
    gram: NDArray[Any] = scaled.T @ scaled
    return gram


def _softmax_parts(scores: Array, y: Labels) -> tuple[float, Array]:
    """The sum of losses and p - e_y, `scores` used up."""
    index = np.arange(len(scores)), y
    scores -= scores.max(axis=1, keepdims=True)
    own = scores[index].copy()
    np.exp(scores, out=scores)
    sums = scores.sum(axis=1, keepdims=True)
    value = float(np.log(sums).sum() - own.sum())
    scores /= sums
    scores[index] -= 1.0
    return value, scores
