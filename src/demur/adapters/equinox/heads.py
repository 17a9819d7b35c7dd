"""Convex heads in Equinox and their objectives.

The objective is mean loss + lam/2 (|w|^2 + |b|^2), the bias penalised like the weights.
A trained head is exact, not private: pass it to `release_equinox`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from demur.adapters.frameworks import missing
from demur.adapters.ridge_prototypes import ridge_prototypes

try:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
except ImportError as error:  # pragma: no cover - without equinox
    raise missing("JAX and Equinox", "jax", error) from error

Aux = dict[str, jax.Array]


class SquaredHingeSVMEqx(eqx.Module):
    """A score w.x + b; its sign is the class."""

    w: jax.Array
    b: jax.Array

    def __init__(self, d_in: int, *, key: jax.Array, init_scale: float = 1e-2) -> None:
        self.w = init_scale * jax.random.normal(key, (d_in,))
        self.b = jnp.zeros(())

    def __call__(self, x: jax.Array) -> jax.Array:
        """The score of one record."""
        return x @ self.w + self.b


class LogisticRegressorEqx(eqx.Module):
    """A logit w.x + b."""

    w: jax.Array
    b: jax.Array

    def __init__(self, d_in: int, *, key: jax.Array, init_scale: float = 1e-2) -> None:
        self.w = init_scale * jax.random.normal(key, (d_in,))
        self.b = jnp.zeros(())

    def __call__(self, x: jax.Array) -> jax.Array:
        """The logit of one record."""
        return x @ self.w + self.b


class SoftmaxLinearEqx(eqx.Module):
    """Logits W x + b."""

    W: jax.Array
    b: jax.Array

    def __init__(
        self, d_in: int, n_classes: int, *, key: jax.Array, init_scale: float = 1e-2
    ) -> None:
        self.W = init_scale * jax.random.normal(key, (n_classes, d_in))
        self.b = jnp.zeros((n_classes,))

    def __call__(self, x: jax.Array) -> jax.Array:
        """The logits of one record."""
        return self.W @ x + self.b


class RidgePrototypesEqx(eqx.Module):
    """The nearest of K prototypes."""

    mus: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        """The class of one record."""
        return jnp.argmin(jnp.sum((self.mus - x) ** 2, axis=1))

    def predict(self, X: jax.Array) -> jax.Array:
        """The class of each row."""
        return jax.vmap(self)(X)


def squared_hinge_objective(
    model: SquaredHingeSVMEqx,
    state: Any,
    xb: jax.Array,
    yb: jax.Array,
    key: jax.Array | None,
    *,
    lam: float,
) -> tuple[jax.Array, Aux]:
    """mean max(0, 1 - y s)^2 + lam/2 (|w|^2 + b^2), for labels -1 and +1."""
    scores = jax.vmap(model)(xb)
    loss = jnp.mean(jnp.maximum(0.0, 1.0 - yb * scores) ** 2)
    return _penalised(loss, lam, model.w, model.b)


def logistic_objective(
    model: LogisticRegressorEqx,
    state: Any,
    xb: jax.Array,
    yb: jax.Array,
    key: jax.Array | None,
    *,
    lam: float,
) -> tuple[jax.Array, Aux]:
    """mean log(1 + e^(-y s)) + lam/2 (|w|^2 + b^2), for labels -1 and +1."""
    loss = jnp.mean(jax.nn.softplus(-yb * jax.vmap(model)(xb)))
    return _penalised(loss, lam, model.w, model.b)


def softmax_objective(
    model: SoftmaxLinearEqx,
    state: Any,
    xb: jax.Array,
    yb: jax.Array,
    key: jax.Array | None,
    *,
    lam: float,
) -> tuple[jax.Array, Aux]:
    """Mean cross entropy + lam/2 (|W|^2 + |b|^2), for labels 0 .. K-1."""
    logits = jax.vmap(model)(xb)
    own = jnp.take_along_axis(logits, yb[:, None].astype(jnp.int32), axis=1)[:, 0]
    loss = jnp.mean(jax.nn.logsumexp(logits, axis=1) - own)
    return _penalised(loss, lam, model.W, model.b)


def _penalised(
    loss: jax.Array, lam: float, weight: jax.Array, bias: jax.Array
) -> tuple[jax.Array, Aux]:
    penalty = 0.5 * lam * (jnp.sum(weight**2) + jnp.sum(bias**2))
    return loss + penalty, {"loss": loss, "reg": penalty}


def fit_ridge_prototypes_eqx(
    X: ArrayLike, y: ArrayLike, *, num_classes: int, lam: float
) -> tuple[RidgePrototypesEqx, jax.Array]:
    """Prototypes 2 S_c / (2 n_c + lam n) and class counts; exact, not private.

    Computed in float64 and stored in jax's default dtype.
    """
    means, counts = ridge_prototypes(
        np.asarray(X), np.asarray(y), num_classes=num_classes, lam=lam
    )
    stored = jnp.asarray(means, dtype=jnp.result_type(float))
    return RidgePrototypesEqx(stored), jnp.asarray(counts.astype(np.int32))
