"""The objective of a head on rows in memory: value, gradient, curvature, in float64.

What a chunk of rows adds is in `derivatives`. Work is done `CHUNK` rows at a time:
nothing of size n x K x d exists, nor a copy of X.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.convex.sensitivity.form import HeadForm
from demur.convex.solving import derivatives
from demur.convex.solving.derivatives import Labels
from demur.core.bounds import finite_matrix
from demur.core.digest import digest_of_array, digest_of_parts

Array = NDArray[np.float64]

CHUNK = 4096
_CACHED_ENTRIES = 100_000_000  # probabilities kept between two Hessian products


@dataclass(frozen=True, eq=False)
class Objective:
    """The objective on given data; built by `objective`."""

    form: HeadForm
    X: Array
    y: Labels  # class indices for softmax, signs otherwise
    shares: Array | None = None  # weights of the rows, from 0 to 1

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
        parts = [self.X, self.y.astype(np.float64)]
        if self.shares is not None:
            parts.append(self.shares)
        return digest_of_parts(*(digest_of_array(part) for part in parts))

    def value_and_gradient(self, theta: ArrayLike) -> tuple[float, Array]:
        """F(theta) and its gradient, of theta's shape."""
        theta = self._checked(theta)
        total, gradient = 0.0, np.zeros_like(theta)
        for rows, y, shares in self._chunks():
            value, part = derivatives.gradient_sums(self.form, theta, rows, y, shares)
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
        form, dtype = self.form, np.float32 if single else np.float64
        all_rows: NDArray[Any] = self._single if single else self.X
        classes = form.num_classes if form.multinomial else 1
        cached: list[NDArray[Any]] = []
        fits = self.n * classes <= _CACHED_ENTRIES
        weights = np.zeros(classes)
        for rows, y, shares in self._chunks():
            exact = derivatives.row_weights(form, theta, rows, y)
            if fits:
                cached.append(exact.astype(dtype, copy=False))
            mean = exact * (1.0 - exact) if form.multinomial else exact
            weights += (mean if shares is None else (mean.T * shares).T).sum(axis=0)

        def product(direction: Array) -> Array:
            total = np.zeros_like(theta)
            cast = direction.astype(dtype, copy=False)
            for index, (rows, y, shares) in enumerate(self._chunks()):
                if fits:
                    local = cached[index]
                else:
                    exact = derivatives.row_weights(form, theta, rows, y)
                    local = exact.astype(dtype, copy=False)
                same = all_rows[index * CHUNK : index * CHUNK + len(rows)]
                total += derivatives.product_sum(form, local, same, cast, shares)
            return total / self.n + self.lam * direction

        return Curvature(product, weights / self.n)

    def sample_moments(self) -> Array:
        """X~^T X~ / m over m evenly spaced rows: what a preconditioner needs."""
        most = max(4 * self.X.shape[1], 512)
        rows = self.X[:: max(1, self.n // most)][:most]
        rows = derivatives.augmented_rows(self.form, rows)
        moments: Array = rows.T @ rows / len(rows)
        return moments

    @cached_property
    def _bounded_form(self) -> HeadForm:
        """The form with a norm bound: its own, or the norm of the longest row."""
        if self.form.norm_bound < math.inf:
            return self.form
        longest = float(np.sqrt(np.einsum("ij,ij->i", self.X, self.X).max()))
        return replace(self.form, norm_bound=longest or 1e-300)

    def rounding(self, theta_norm: float) -> float:
        """How far the computed gradient can be from the true one, in norm."""
        return derivatives.rounding(
            self._bounded_form,
            theta_norm,
            features=self.X.shape[1],
            additions=min(self.n, CHUNK) + self.n // CHUNK,
        )

    def _checked(self, theta: ArrayLike) -> Array:
        checked = np.asarray(theta, dtype=np.float64)
        if checked.shape != self.shape:
            raise ValueError(
                f"theta must have shape {self.shape} (the bias last); got"
                f" {checked.shape}"
            )
        return checked

    def _chunks(self) -> Iterator[tuple[Array, Labels, Array | None]]:
        for start in range(0, self.n, CHUNK):
            some = slice(start, start + CHUNK)
            shares = None if self.shares is None else self.shares[some]
            yield self.X[some], self.y[some], shares


class Curvature(NamedTuple):
    """Products with the Hessian, and each class's mean weight in it."""

    product: Callable[[Array], Array]
    weights: Array


def objective(
    form: HeadForm, X: ArrayLike, y: ArrayLike, shares: Array | None = None
) -> Objective:
    """The objective of a form on rows X and labels y, checked, in float64.

    Labels are 0..K-1 for softmax, and 0/1 or -1/+1 for the binary losses. A float64
    matrix is used as it is, not copied; rows are not clipped here. lam = 0 is allowed
    (noisy gradient descent does without); `minimise` refuses it. `shares`, from 0 to 1,
    multiply the loss of each row: every bound for rows without them holds.

    >>> F = objective(HeadForm("logistic", lam=0.1), [[1.0], [-1.0]], [1, 0])
    >>> value, gradient = F.value_and_gradient([0.0, 0.0])
    >>> round(value, 4), gradient.tolist()
    (0.6931, [-0.5, 0.0])
    """
    rows = _matrix(X)
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) != len(rows):
        raise ValueError(
            f"y must have one label for each of {len(rows)} rows; got shape"
            f" {labels.shape}. Nothing was spent."
        )
    if form.multinomial:
        indices = _class_indices(labels, form.num_classes)
        return Objective(form, rows, indices, shares)
    return Objective(form, rows, _signs(labels), shares)


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
    values = set(np.unique(labels).tolist())
    if values <= {-1, 1}:
        return labels.astype(np.float64)
    if values <= {0, 1}:
        return 2.0 * labels.astype(np.float64) - 1.0
    raise ValueError(
        "y must hold 0 and 1, or -1 and +1, for a binary loss; got"
        f" {sorted(values)[:5]}. Nothing was spent."
    )


def gradient_norm(
    form: HeadForm, X: ArrayLike, y: ArrayLike, theta: ArrayLike
) -> float:
    """|grad F(theta)| of the stated objective on the stated data, in float64.

    The certificate of a model trained elsewhere: its distance to the minimiser is at
    most this over lam. It is a function of the private data: do not publish it.
    """
    _, gradient = objective(form, X, y).value_and_gradient(theta)
    return float(np.linalg.norm(gradient))
