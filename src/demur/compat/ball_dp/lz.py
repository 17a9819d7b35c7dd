"""Lipschitz-in-data constants of per-record gradients, the original's values.

True and loose: with `loss=` and `B=` the releases of `api` use the bounds of
`demur.convex.grad_diff_bound`, 10 to 100 times smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from demur.convex.sensitivity.lz import (
    lz_glm_data_independent_bound as lz_glm_data_independent_bound,
)
from demur.convex.sensitivity.lz import (
    lz_logistic_binary_bound as lz_logistic_binary_bound,
)
from demur.convex.sensitivity.lz import lz_prototypes_exact as lz_prototypes_exact
from demur.convex.sensitivity.lz import (
    lz_softmax_linear_bound as lz_softmax_linear_bound,
)
from demur.convex.sensitivity.lz import lz_squared_hinge_bound as lz_squared_hinge_bound
from demur.core import validate


def estimate_lz_empirical_torch(
    grad_fn: Callable[[Any], ArrayLike],
    *,
    pairs: tuple[ArrayLike, ArrayLike],
    metric: Callable[[Any, Any], float],
    eps: float = 1e-12,
) -> float:
    """The largest |g(z) - g(z')| / (d(z, z') + eps) over the pairs given.

    A diagnostic, and a lower estimate: it is no bound, and no release may rest on it.
    (The name is the original's; nothing here needs torch.)
    """
    validate.non_negative(eps=eps)
    first, second = (np.asarray(side) for side in pairs)
    if len(first) != len(second) or not len(first):
        raise ValueError(
            f"pairs must be two arrays of equal length, at least 1; got {len(first)}"
            f" and {len(second)}"
        )
    ratios = []
    for z, other in zip(first, second, strict=True):
        moved = np.subtract(grad_fn(z), grad_fn(other), dtype=np.float64)
        ratios.append(np.linalg.norm(moved.reshape(-1)) / (metric(z, other) + eps))
    return float(max(ratios))
