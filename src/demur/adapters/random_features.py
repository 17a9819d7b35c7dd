"""Random Fourier features of the RBF kernel, and how far they stretch a distance.

The features are drawn without looking at the data, so they cost nothing, and a radius r
before them is at most L r after, L = sqrt(2/m) |Omega|_2: cos is 1-Lipschitz.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from demur.adapters.frameworks import missing
from demur.core import validate
from demur.core.rounding import up

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:  # pragma: no cover - without jax
    raise missing("JAX", "jax", error) from error

Method = Literal["clip", "fro", "svd", "power"]


def sample_rff_rbf(
    key: jax.Array,
    *,
    d_in: int,
    m: int,
    gamma: float = 1.0,
    clip_omega_norm: float | None = None,
    dtype: Any = np.float32,
) -> tuple[jax.Array, jax.Array]:
    """Frequencies (m, d_in) ~ N(0, 2 gamma) and phases (m,) ~ U[0, 2 pi).

    For the kernel exp(-gamma |x - x'|^2). `clip_omega_norm` limits each frequency.
    """
    validate.count(d_in=d_in, m=m)
    validate.positive(gamma=gamma)
    of_omega, of_phase = jax.random.split(key)
    omega = math.sqrt(2.0 * gamma) * jax.random.normal(of_omega, (m, d_in), dtype)
    if clip_omega_norm is not None:
        validate.positive(clip_omega_norm=clip_omega_norm)
        norms = jnp.maximum(jnp.linalg.norm(omega, axis=1, keepdims=True), 1e-30)
        omega = omega * jnp.minimum(1.0, clip_omega_norm / norms)
    return omega, jax.random.uniform(of_phase, (m,), dtype, 0.0, 2.0 * math.pi)


def rff_transform(X: Any, omega: jax.Array, phase: jax.Array) -> jax.Array:
    """sqrt(2/m) cos(X Omega^T + phase), a row of m features for each row of X."""
    return math.sqrt(2.0 / omega.shape[0]) * jnp.cos(jnp.asarray(X) @ omega.T + phase)


def rff_feature_norm_bound() -> float:
    """sqrt 2: no feature row is longer, whatever the data."""
    return math.sqrt(2.0)


def spectral_norm_svd(omega: jax.Array, *, safety: float = 1e-6) -> float:
    """The largest singular value of Omega, in float64, times 1 + `safety`; a bound."""
    validate.non_negative(safety=safety)
    matrix = np.asarray(omega, dtype=np.float64)
    return up((1.0 + safety) * float(np.linalg.norm(matrix, ord=2)), 8)


def spectral_norm_power_iteration(
    omega: jax.Array, *, key: jax.Array, num_iters: int = 60, eps: float = 1e-12
) -> float:
    """The largest singular value of Omega, approached from below by power iteration.

    A diagnostic: it may be too small, and no radius may rest on it.
    """
    validate.count(num_iters=num_iters)
    validate.positive(eps=eps)
    matrix = np.asarray(omega, dtype=np.float64)
    direction = np.asarray(jax.random.normal(key, (matrix.shape[1],)), np.float64)
    for _ in range(num_iters):
        direction = direction / (np.linalg.norm(direction) + eps)
        direction = matrix.T @ (matrix @ direction)
    direction = direction / (np.linalg.norm(direction) + eps)
    return float(np.linalg.norm(matrix @ direction))


def rff_lipschitz_bound(
    omega: jax.Array,
    *,
    method: Method = "fro",
    clip_omega_norm: float | None = None,
    key: jax.Array | None = None,
    safety: float = 1e-6,
) -> float:
    """L with |phi(x) - phi(x')| <= L |x - x'|, rounded up.

    "svd" is the tight one, "fro" the Frobenius norm, "clip" follows from the clipping
    of `sample_rff_rbf` alone. "power" is refused: power iteration approaches the norm
    from below and so is no bound; the singular values of an m x d matrix are cheap.
    """
    validate.non_negative(safety=safety)
    matrix = np.asarray(omega, dtype=np.float64)
    scale = math.sqrt(2.0 / matrix.shape[0]) * (1.0 + safety)
    if method == "fro":
        return up(scale * float(np.linalg.norm(matrix)), 8)
    if method == "svd":
        return up(scale * spectral_norm_svd(omega, safety=0.0), 8)
    if method == "clip":
        if clip_omega_norm is None:
            raise ValueError("method='clip' needs clip_omega_norm")
        validate.positive(clip_omega_norm=clip_omega_norm)
        # |Omega|_2 <= |Omega|_F <= sqrt(m) * the largest row.
        return up(math.sqrt(2.0) * (1.0 + safety) * float(clip_omega_norm), 4)
    if method == "power":
        raise ValueError(
            "method='power' is refused: power iteration converges from below, so what"
            " it returns is not an upper bound. Use method='svd'."
        )
    raise ValueError(f"method must be 'clip', 'fro' or 'svd'; got {method!r}")
