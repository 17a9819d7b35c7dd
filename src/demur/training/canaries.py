"""Canary gradients through the real parts of a plan: batches, clipping, noise.

The loss <parameters, row> has the row itself as its gradient, wherever the parameters
are. So a dataset of chosen rows (the canaries of `demur.audit.Canaries`) drives the
plan's own batch selection, clipped gradient and noise, and the result of each step is
what a training run would have passed to its optimiser. The rows are the auditor's: no
private data is read and nothing is charged.

**Weights.** The releases of a run are G + stddev C^-1 Z, so C times them (public) is
C G + stddev Z with independent noise. A canary that takes part in every step, or in
each with one probability, moves row t of C G in proportion to (C 1)_t; by Neyman and
Pearson that is how the rows are weighted, which makes C^T C 1 the weights of the
releases themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import recording
from demur.core.entropy import NoiseKey, OsEntropy, Source
from demur.training.clipping.types import ClippedGrad, PyTree
from demur.training.noise.threefry import STEP_NOISE, step_keys
from demur.training.plans.plan import DPExecutionPlan

Values = NDArray[np.float64]
Run = Callable[..., Values]


def step_weights(plan: DPExecutionPlan) -> Values:
    """The weights of a run's releases in a canary's score: C^T C 1."""
    strategy = plan.noise_addition_transform.spec.strategy
    matrix = np.asarray(strategy.matrix())
    return matrix.T @ matrix.sum(axis=1)


def gradient_run(plan: DPExecutionPlan, params: PyTree) -> Run:
    """`run(rows, source)`: the plan's releases on rows that are their own gradients.

    `params` gives the shapes; a row holds one number for each parameter, leaves in the
    order of `jax.tree.leaves`. The result has a row for each step and is what
    `demur.audit.audit` takes as a run. With an `OsEntropy` source (the default) every
    call is a new draw; a `Seeded` one repeats.

    >>> from demur.core.entropy import Seeded
    >>> from demur.training import dp_sgd
    >>> plan = dp_sgd(iterations=3, sampling_prob=1.0, noise_multiplier=1.0,
    ...     neighboring_relation="ADD_OR_REMOVE_ONE", l2_clip_norm=1.0).make()
    >>> run = gradient_run(plan, {"w": jnp.zeros(4), "b": jnp.zeros(2)})
    >>> run(np.eye(6), Seeded(0)).shape
    (3, 6)
    """
    shapes = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
    leaves, treedef = jax.tree.flatten(shapes)
    cuts = np.cumsum([leaf.size for leaf in leaves])
    clipped = _clipped(plan, leaves, treedef)
    privatizer = plan.noise_addition_transform
    hardened = privatizer.spec.hardened

    def total_of(batch: Any, real: Any) -> Any:
        result = clipped(shapes, batch, num_real=real)
        return result[0] if clipped.has_aux else result

    def whole(state: Any, batch: Any, real: Any, key: Any) -> Any:
        return privatizer.update(total_of(batch, real), state, key=key)

    def programs() -> tuple[Any, Any]:
        # New functions each time: JAX keeps what it traced with the function.
        return (
            jax.jit(lambda *args: total_of(*args)),
            jax.jit(lambda *args: whole(*args), donate_argnums=0),
        )

    unwatched = programs()

    def run(rows: ArrayLike, source: Source | None = None) -> Values:
        matrix = _rows(rows, int(cuts[-1]))
        # A program that was traced under one tape would record to that one for ever.
        watched = recording.active() is not None
        add, noisy_sum = programs() if watched else unwatched
        key = NoiseKey.free(source or OsEntropy())
        batches = plan.batch_selection_strategy.batch_iterator(len(matrix), key)
        # One size for every batch, so that one program serves all steps.
        padded = np.zeros((max(len(matrix), 1), matrix.shape[1]), np.float32)
        state, releases = privatizer.init(shapes), []
        for step, chosen in enumerate(batches):
            # The trainer drops padding indices too, which are negative.
            real = matrix[np.asarray(chosen)[np.asarray(chosen) >= 0]]
            padded[: len(real)], padded[len(real) :] = real, 0.0
            count = np.int32(len(real))
            if hardened:
                noisy, state = privatizer.update(add(padded, count), state, key=key)
            else:
                fresh = step_keys(key.stream(STEP_NOISE, step), len(leaves))
                noisy, state = noisy_sum(state, padded, count, jnp.asarray(fresh))
            flat = [np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(noisy)]
            releases.append(np.concatenate(flat))
        return np.asarray(releases, dtype=np.float64)

    return run


def _clipped(plan: DPExecutionPlan, leaves: list[Any], treedef: Any) -> ClippedGrad:
    cuts = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def loss(at: PyTree, rows: Any) -> Any:
        total = jnp.zeros(())
        parts = jnp.split(rows, cuts, axis=-1)
        for leaf, part in zip(jax.tree.leaves(at), parts, strict=True):
            total += jnp.sum(leaf.reshape(-1) * part)
        return total

    gradient = plan.clipped_grad
    if isinstance(gradient, ClippedGrad):
        return gradient.with_(
            fun=loss, batch_argnums=1, has_aux=False, prng_argnum=None
        )
    return plan.gradient(loss)


def _rows(rows: ArrayLike, dimension: int) -> NDArray[np.float32]:
    matrix = np.asarray(rows, dtype=np.float32)
    if matrix.ndim != 2 or matrix.shape[1] != dimension:
        raise ValueError(
            f"rows must have one number for each of {dimension} parameters; got shape"
            f" {matrix.shape}"
        )
    if not np.isfinite(matrix).all():
        raise ValueError("rows must be finite")
    return matrix
