r"""The stated objective in float64, in chunks of rows: value, gradient, curvature.

    F(theta) = (1/n) sum_i l(theta; x_i, y_i) + (lam/2) |theta|^2

over theta = (w, b) with the bias feature s: scores are <w, x> + s b. Binary losses have
a vector theta of d + 1 numbers (d where s = 0), softmax a matrix of K rows. Work is
done `CHUNK` rows at a time: nothing of size n x K x d exists, nor a copy of X.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax

from demur.convex.losses import HUBER_WIDTH, augmented_norm, check_loss, check_width
from demur.core import validate
from demur.core.bounds import finite_matrix

Array = NDArray[np.float64]

CHUNK = 4096
_UNIT_ROUNDOFF = 2.0**-53
_CACHED_ENTRIES = 100_000_000  # probabilities kept between two Hessian products


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


@dataclass(frozen=True, eq=False)
class Objective:
    """The objective on given data; built by `objective`."""

    loss: str
    X: Array
    y: NDArray[np.intp] | Array  # class indices for softmax, signs otherwise
    lam: float
    bias_scale: float
    num_classes: int
    huber_width: float

    @property
    def n(self) -> int:
        """The number of records."""
        return self.X.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of theta."""
        width = self.X.shape[1] + (self.bias_scale > 0)
        return (self.num_classes, width) if self.loss == "softmax" else (width,)

    def value_and_gradient(self, theta: ArrayLike) -> tuple[float, Array]:
        """F(theta) and its gradient, of theta's shape."""
        theta = self._checked(theta)
        total, gradient = 0.0, np.zeros_like(theta)
        for rows, y in self._chunks():
            scores = self._scores(rows, theta)
            if self.loss == "softmax":
                part, coefficient = _softmax_parts(scores, y)
            else:
                slopes = _MARGIN[self.loss](scores * y, self.huber_width)
                part, coefficient = float(slopes.value.sum()), -slopes.slope * y
            total += part
            self._add_outer(gradient, coefficient, rows)
        value = total / self.n + 0.5 * self.lam * float(np.vdot(theta, theta))
        return value, gradient / self.n + self.lam * theta

    @cached_property
    def _single(self) -> NDArray[np.float32]:
        """X in float32: half the work for Hessian products."""
        return self.X.astype(np.float32)

    def curvature(self, theta: ArrayLike, *, single: bool = False) -> Curvature:
        """The (generalised) Hessian at theta, as products and mean class weights.

        `single` computes products in float32, relative errors near 1e-6: enough for
        the direction of a step, whose worth the float64 gradient then decides.
        """
        theta = self._checked(theta)
        kind = np.float32 if single else np.float64
        all_rows: NDArray[Any] = self._single if single else self.X
        keep = self.n * (self.num_classes if self.loss == "softmax" else 1)
        kept: list[NDArray[Any]] | None = [] if keep <= _CACHED_ENTRIES else None
        weights = np.zeros(self.num_classes if self.loss == "softmax" else 1)
        for rows, y in self._chunks():
            exact = self._weights(theta, rows, y)
            if kept is not None:
                kept.append(exact.astype(kind, copy=False))
            mean = exact * (1.0 - exact) if self.loss == "softmax" else exact
            weights += mean.sum(axis=0)

        def product(direction: Array) -> Array:
            found = np.zeros_like(theta)
            cast = direction.astype(kind, copy=False)
            for index, (rows, y) in enumerate(self._chunks()):
                local: NDArray[Any] = (
                    kept[index]
                    if kept is not None
                    else self._weights(theta, rows, y).astype(kind, copy=False)
                )
                same = all_rows[index * CHUNK : index * CHUNK + len(rows)]
                moved = self._scores(same, cast)
                if self.loss == "softmax":
                    moved -= np.einsum("ij,ij->i", local, moved)[:, None]
                moved *= local
                self._add_outer(found, moved, same)
            return found / self.n + self.lam * direction

        return Curvature(product, weights / self.n)

    def sample_moments(self) -> Array:
        """X~^T X~ / m over m evenly spaced rows: what a preconditioner needs."""
        most = max(4 * self.X.shape[1], 512)
        rows = self.X[:: max(1, self.n // most)][:most]
        if self.bias_scale > 0:
            rows = np.hstack([rows, np.full((len(rows), 1), self.bias_scale)])
        moments: Array = rows.T @ rows / len(rows)
        return moments

    def rounding(self, norm_bound: float, theta_norm: float) -> float:
        """How far the computed gradient can be from the true one, in norm.

        Three sums meet: over the d + 1 coordinates of a score (relative to
        |theta| Bt), over the rows of a chunk and over the chunks (relative to the
        largest coefficient times Bt). A sum of k products in any order is off by at
        most k u / (1 - k u) of the sum of absolute values; the 16 extra terms pay for
        exp, divisions and the regulariser.
        """
        Bt = augmented_norm(norm_bound, self.bias_scale)
        width = self.X.shape[1] + 16
        if self.loss == "softmax":
            steepest, bend = 2.0**0.5, 0.5
        elif self.loss == "squared_hinge":
            steepest, bend = 2.0 * (1.0 + theta_norm * Bt), 2.0
        else:
            bend = 0.25 if self.loss == "logistic" else 0.5 / self.huber_width
            steepest = 1.0
        steps = min(self.n, CHUNK) + self.n // CHUNK + self.num_classes + 16
        off = bend * width * theta_norm * Bt + steps * steepest + 16
        return 1.01 * _UNIT_ROUNDOFF * off * max(Bt, self.lam * theta_norm, 1e-300)

    def _checked(self, theta: ArrayLike) -> Array:
        found = np.asarray(theta, dtype=np.float64)
        if found.shape != self.shape:
            raise ValueError(
                f"theta must have shape {self.shape} (the bias last); got {found.shape}"
            )
        return found

    def _chunks(self) -> Iterator[tuple[Array, NDArray[np.intp] | Array]]:
        for start in range(0, self.n, CHUNK):
            yield self.X[start : start + CHUNK], self.y[start : start + CHUNK]

    def _scores(self, rows: NDArray[Any], theta: NDArray[Any]) -> NDArray[Any]:
        width = rows.shape[1]
        scores: NDArray[Any] = rows @ theta[..., :width].T
        if self.bias_scale > 0:
            scores += self.bias_scale * theta[..., width]
        return scores

    def _add_outer(
        self, into: Array, coefficient: NDArray[Any], rows: NDArray[Any]
    ) -> None:
        width = rows.shape[1]
        into[..., :width] += coefficient.T @ rows
        if self.bias_scale > 0:
            into[..., width] += self.bias_scale * coefficient.sum(axis=0)

    def _weights(self, theta: Array, rows: Array, y: NDArray[np.intp] | Array) -> Array:
        scores = self._scores(rows, theta)
        if self.loss == "softmax":
            probabilities: Array = softmax(scores, axis=1)
            return probabilities
        return _MARGIN[self.loss](scores * y, self.huber_width).curvature


class Curvature(NamedTuple):
    """Products with the Hessian, and each class's mean weight in it."""

    product: Callable[[Array], Array]
    weights: Array


def _softmax_parts(scores: Array, y: NDArray[np.intp] | Array) -> tuple[float, Array]:
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


def objective(
    loss: str,
    X: ArrayLike,
    y: ArrayLike,
    lam: float,
    bias_scale: float = 1.0,
    num_classes: int = 2,
    *,
    huber_width: float = HUBER_WIDTH,
) -> Objective:
    """The objective of `loss` on rows X and labels y, checked, in float64.

    Labels are 0..K-1 for softmax, and 0/1 or -1/+1 for the binary losses. A float64
    matrix is used as it is, not copied. lam = 0 is allowed here (noisy gradient descent
    does without); `solver.minimise` refuses it.

    >>> F = objective("logistic", [[1.0], [-1.0]], [1, 0], lam=0.1)
    >>> value, gradient = F.value_and_gradient([0.0, 0.0])
    >>> round(value, 4), gradient.tolist()
    (0.6931, [-0.5, 0.0])
    """
    check_loss(loss, num_classes)
    check_width(huber_width)
    validate.non_negative(lam=lam, bias_scale=bias_scale)
    rows = _matrix(X)
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) != len(rows):
        raise ValueError(
            f"y must have one label for each of {len(rows)} rows; got shape"
            f" {labels.shape}. Nothing was spent."
        )
    return Objective(
        loss,
        rows,
        _class_indices(labels, num_classes) if loss == "softmax" else _signs(labels),
        float(lam),
        float(bias_scale),
        int(num_classes),
        float(huber_width),
    )


def _matrix(X: ArrayLike) -> Array:
    if (
        isinstance(X, np.ndarray)
        and X.dtype == np.float64
        and X.ndim == 2
        and X.size
        # A sum is finite only if every entry is; no n x d mask is built.
        and np.isfinite(X.sum())
    ):
        return X
    return finite_matrix("X", X)


def _class_indices(labels: NDArray[np.generic], num_classes: int) -> NDArray[np.intp]:
    if (
        labels.dtype.kind not in "iub"
        or labels.min() < 0
        or labels.max() >= num_classes
    ):
        raise ValueError(
            f"y must hold whole numbers from 0 to {num_classes - 1} for softmax; got"
            f" {np.unique(labels)[:5].tolist()}... Nothing was spent."
        )
    return labels.astype(np.intp)


def _signs(labels: NDArray[np.generic]) -> Array:
    found = set(np.unique(labels).tolist())
    if found <= {-1, 1}:
        return labels.astype(np.float64)
    if found <= {0, 1}:
        return 2.0 * labels.astype(np.float64) - 1.0
    raise ValueError(
        "y must hold 0 and 1, or -1 and +1, for a binary loss; got"
        f" {sorted(found)[:5]}. Nothing was spent."
    )


def gradient_norm(
    loss: str,
    X: ArrayLike,
    y: ArrayLike,
    theta: ArrayLike,
    *,
    lam: float,
    bias_scale: float = 1.0,
    num_classes: int = 2,
    huber_width: float = HUBER_WIDTH,
) -> float:
    """|grad F(theta)| of the stated objective on the stated data, in float64.

    The certificate of a model trained elsewhere: its distance to the minimiser is at
    most this over lam. It is a function of the private data, so do not publish it.
    """
    stated = objective(
        loss, X, y, lam, bias_scale, num_classes, huber_width=huber_width
    )
    _, gradient = stated.value_and_gradient(theta)
    return float(np.linalg.norm(gradient))
