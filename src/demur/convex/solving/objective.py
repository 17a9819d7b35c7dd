"""The stated objective on rows in memory: value, gradient, curvature, in float64.

What a chunk of rows adds is in `form`. Work is done `CHUNK` rows at a time: nothing of
size n x K x d exists, nor a copy of X.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.convex.sensitivity.form import Form, Labels
from demur.convex.sensitivity.losses import HUBER_WIDTH
from demur.core.bounds import finite_matrix
from demur.core.digest import digest_of_array, digest_of_parts

Array = NDArray[np.float64]

CHUNK = 4096
_CACHED_ENTRIES = 100_000_000  # probabilities kept between two Hessian products


@dataclass(frozen=True, eq=False)
class Objective:
    """The objective on given data; built by `objective`."""

    form: Form
    X: Array
    y: Labels  # class indices for softmax, signs otherwise

    @property
    def n(self) -> int:
        """The number of records."""
        return self.X.shape[0]

    @property
    def lam(self) -> float:
        """The weight of the regulariser."""
        return self.form.lam

    @property
    def bias_scale(self) -> float:
        """The bias feature; 0 for none."""
        return self.form.bias_scale

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of theta."""
        return self.form.shape(self.X.shape[1])

    def digest(self) -> str:
        """A digest of the data, for the entry that pays for them."""
        y = self.y.astype(np.float64)
        return digest_of_parts(digest_of_array(self.X), digest_of_array(y))

    def value_and_gradient(self, theta: ArrayLike) -> tuple[float, Array]:
        """F(theta) and its gradient, of theta's shape."""
        theta = self._checked(theta)
        total, gradient = 0.0, np.zeros_like(theta)
        for rows, y in self._chunks():
            value, part = self.form.gradient_sums(theta, rows, y)
            total += value
            gradient += part
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
        form, kind = self.form, np.float32 if single else np.float64
        all_rows: NDArray[Any] = self._single if single else self.X
        classes = form.num_classes if form.multinomial else 1
        keep = self.n * classes <= _CACHED_ENTRIES
        kept: list[NDArray[Any]] | None = [] if keep else None
        weights = np.zeros(classes)
        for rows, y in self._chunks():
            exact = form.weights(theta, rows, y)
            if kept is not None:
                kept.append(exact.astype(kind, copy=False))
            mean = exact * (1.0 - exact) if form.multinomial else exact
            weights += mean.sum(axis=0)

        def product(direction: Array) -> Array:
            found = np.zeros_like(theta)
            cast = direction.astype(kind, copy=False)
            for index, (rows, y) in enumerate(self._chunks()):
                local: NDArray[Any] = (
                    kept[index]
                    if kept is not None
                    else form.weights(theta, rows, y).astype(kind, copy=False)
                )
                same = all_rows[index * CHUNK : index * CHUNK + len(rows)]
                found += form.product_sum(local, same, cast)
            return found / self.n + self.lam * direction

        return Curvature(product, weights / self.n)

    def sample_moments(self) -> Array:
        """X~^T X~ / m over m evenly spaced rows: what a preconditioner needs."""
        most = max(4 * self.X.shape[1], 512)
        rows = self.X[:: max(1, self.n // most)][:most]
        rows = self.form.augmented(rows)
        moments: Array = rows.T @ rows / len(rows)
        return moments

    def rounding(self, norm_bound: float, theta_norm: float) -> float:
        """How far the computed gradient can be from the true one, in norm."""
        return self.form.rounding(
            norm_bound,
            theta_norm,
            features=self.X.shape[1],
            additions=min(self.n, CHUNK) + self.n // CHUNK,
        )

    def _checked(self, theta: ArrayLike) -> Array:
        found = np.asarray(theta, dtype=np.float64)
        if found.shape != self.shape:
            raise ValueError(
                f"theta must have shape {self.shape} (the bias last); got {found.shape}"
            )
        return found

    def _chunks(self) -> Iterator[tuple[Array, Labels]]:
        for start in range(0, self.n, CHUNK):
            yield self.X[start : start + CHUNK], self.y[start : start + CHUNK]


class Curvature(NamedTuple):
    """Products with the Hessian, and each class's mean weight in it."""

    product: Callable[[Array], Array]
    weights: Array


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
    form = Form.of(loss, lam, bias_scale, num_classes, huber_width=huber_width)
    rows = _matrix(X)
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) != len(rows):
        raise ValueError(
            f"y must have one label for each of {len(rows)} rows; got shape"
            f" {labels.shape}. Nothing was spent."
        )
    return Objective(
        form,
        rows,
        _class_indices(labels, num_classes) if form.multinomial else _signs(labels),
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
