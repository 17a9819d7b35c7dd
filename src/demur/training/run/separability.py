"""Separable losses: a check, before anything is spent, that examples do not interact.

Gradients are clipped example by example, and the loss is called with batches of one. A
loss that looks across its batch (batch normalisation, contrastive terms, a mixture of
experts with a capacity) is then silently another loss. So the loss of two examples is
compared with the losses of each alone, on made-up inputs: value and gradient must be
the mean, or the sum, of the two. It is compared at the given parameters and near them:
at zero weights most terms vanish, those between examples among them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from demur.training.clipping.types import PyTree
from demur.training.errors import LossNotSeparable

_TRIES = 3
# Float32 noise between two orders of summation is far below; interactions far above.
_TOLERANCE = 2e-3


def check_separable(
    loss_fn: Callable[..., Any],
    params: PyTree,
    structs: tuple[Any, ...],
    *,
    has_aux: bool = False,
) -> None:
    """Refuse a loss whose value for two examples is neither mean nor sum of theirs.

    `structs` are the batch arguments for a batch of two, as shapes and dtypes. Inputs
    are made up: no example is looked at. A loss that is not finite on them is not
    judged.
    """

    def scalar(params: PyTree, batch: tuple[Any, ...]) -> Any:
        value = loss_fn(params, *batch)
        value = value[0] if has_aux else value
        return jnp.asarray(value, jnp.float32).sum()

    # Run a handful of times: quick to compile counts for more than quick to run.
    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def compare(params: PyTree, pair: tuple[Any, ...]) -> tuple[Any, Any]:
        both = jax.value_and_grad(scalar)(params, pair)
        singles = jax.tree.map(lambda leaf: leaf[:, None], pair)
        each = jax.vmap(jax.value_and_grad(scalar), in_axes=(None, 0))(params, singles)
        total = jax.tree.map(lambda leaf: leaf.sum(axis=0), each)
        # Distance to sum and to mean, relative to the larger of the two sides.
        return _distance(both, total, 1.0), _distance(both, total, 0.5)

    for attempt in range(_TRIES):
        pair = jax.tree.map(partial(_made_up, attempt=attempt), structs)
        here = params if not attempt else jax.tree.map(_moved, params)
        off = min(float(distance) for distance in compare(here, pair))
        if np.isfinite(off) and off > _TOLERANCE:
            raise LossNotSeparable(
                "the loss of a batch of two is neither the mean nor the sum of the"
                f" losses of its examples (off by {off:.2g}), as with batch"
                " normalisation. Clipping takes examples one by one, so terms between"
                " examples would silently vanish: remove them. Nothing was spent."
            )


def _distance(both: Any, total: Any, scale: float) -> Any:
    off = jnp.zeros(())
    size = jnp.zeros(())
    for a, b in zip(jax.tree.leaves(both), jax.tree.leaves(total), strict=True):
        a, b = a.astype(jnp.float32), scale * b.astype(jnp.float32)
        off += jnp.sum((a - b) ** 2)
        size += jnp.sum(a**2) + jnp.sum(b**2)
    return jnp.sqrt(off / jnp.maximum(size, 1e-30))


def _moved(leaf: Any) -> Any:
    """A weight somewhat off: by half its usual size, or by 0.1 where it is zero."""
    array = np.asarray(leaf)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return leaf
    wide = array.astype(np.float64)
    size = np.sqrt(np.mean(wide**2)) if wide.size else 0.0
    step = np.random.default_rng(array.size).normal(size=array.shape)
    return jnp.asarray(wide + max(0.5 * size, 0.1) * step, array.dtype)


def _made_up(struct: Any, attempt: int) -> Any:
    rng = np.random.default_rng(attempt)
    if jnp.issubdtype(struct.dtype, jnp.floating):
        drawn = (
            rng.normal(size=struct.shape) if attempt else rng.uniform(size=struct.shape)
        )
        return jnp.asarray(drawn, struct.dtype)
    # 0 and 1 are labels, tokens and bytes under every encoding.
    return jnp.asarray(rng.integers(0, 2, size=struct.shape), struct.dtype)
