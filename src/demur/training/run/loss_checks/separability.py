"""Separable losses: a check, before anything is spent, that examples do not interact.

Gradients are clipped example by example, and the loss is called with batches of one. A
loss that looks across its batch (batch normalisation, contrastive terms, a mixture of
experts with a capacity) is then silently another loss. So the loss of two examples is
compared with the losses of each alone, on made-up inputs: value and gradient must be
the mean, or the sum, of the two. It is compared at the given parameters and near them:
at zero weights most terms vanish, those between examples among them.

**What counts as equal.** Two orders of summation round differently, by an amount that
follows from the precision in which the loss computes, not from the loss being
separable. A program with numbers narrower than float32, given or cast to, is therefore
widened (`widened_programs`), and the comparison made in float32, where interactions
stand far above rounding. Where an operation cannot be widened, the tolerance is
measured: every weight is moved by one rounding of that operation's precision, and how
far the gradients of the single examples move, which a term between examples does not
enter, says what one rounding is worth in this network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from demur.training.clipping.frozen_losses import frozen_of, loss_at
from demur.training.clipping.types import PyTree
from demur.training.errors import LossNotSeparable
from demur.training.run.loss_checks.widened_programs import (
    WidenedProgram,
    narrow_roundoff,
)

_TRIES = 3
# float32 products may round to TensorFloat-32, at 5e-4. Interactions are far above.
_TOLERANCE = 2e-3
_ROUNDINGS = 4.0  # as many roundings as weigh together, in narrower precision


def check_separable(
    loss_fn: Callable[..., Any],
    params: PyTree,
    structs: tuple[Any, ...],
    *,
    has_aux: bool = False,
) -> list[bool]:
    """Refuse a loss whose value for two examples is neither mean nor sum of theirs.

    `structs` are the batch arguments for a batch of two, as shapes and dtypes. Inputs
    are made up: no example is looked at. A loss that is not finite on them is not
    judged. Returns, for each leaf of `params`, whether it had a gradient on them.
    """

    frozen = frozen_of(loss_fn)

    def scalar(params: PyTree, batch: tuple[Any, ...], frozen: PyTree) -> Any:
        value = loss_at(loss_fn, frozen)(params, *batch)
        value = value[0] if has_aux else value
        return jnp.asarray(value, jnp.float32).sum()

    def of_each(params: PyTree, pair: tuple[Any, ...], frozen: PyTree) -> Any:
        singles = jax.tree.map(lambda leaf: leaf[:, None], pair)
        one = jax.vmap(jax.value_and_grad(scalar), in_axes=(None, 0, None))
        return one(params, singles, frozen)

    def compare(
        params: PyTree, pair: tuple[Any, ...], frozen: PyTree
    ) -> tuple[Any, Any, list[Any]]:
        both = jax.value_and_grad(scalar)(params, pair, frozen)
        each = of_each(params, pair, frozen)
        depends = [jnp.any(leaf != 0) for leaf in jax.tree.leaves(each[1])]
        return _distance(both, each, 1.0), _distance(both, each, 0.5), depends

    leaves, tree = jax.tree.flatten(structs)
    pairs = [
        jax.tree.unflatten(
            tree, [_made_up(leaf, attempt, i) for i, leaf in enumerate(leaves)]
        )
        for attempt in range(_TRIES)
    ]
    run, roundoff = _wide_and_quick(compare, params, pairs[0], frozen)
    # Only where it is needed: it is another program to compile.
    rounding = None
    if _ROUNDINGS * roundoff > _TOLERANCE:
        rounding, _ = _wide_and_quick(of_each, params, pairs[0], frozen)
    depends = np.zeros(len(jax.tree.leaves(params)), bool)
    for attempt, pair in enumerate(pairs):
        here = params if not attempt else jax.tree.map(_moved, params)
        total, mean, felt = run(here, pair, frozen)
        depends |= np.asarray(felt, bool)
        off, tolerance = min(float(total), float(mean)), _TOLERANCE
        if rounding is not None and off > tolerance:
            near = jax.tree.map(partial(_rounded, roundoff=roundoff), here)
            moved = rounding(near, pair, frozen)
            one = float(_apart(rounding(here, pair, frozen), moved))
            tolerance = _ROUNDINGS * max(one, roundoff)
        if np.isfinite(off) and off > tolerance:
            raise LossNotSeparable(
                "the loss of a batch of two is neither the mean nor the sum of the"
                f" losses of its examples (off by {off:.2g}), as with batch"
                " normalisation. Clipping takes examples one by one, so terms between"
                " examples would silently vanish: remove them. Nothing was spent."
            )
    return depends.tolist()


def _wide_and_quick(
    function: Callable[..., Any], *arguments: Any
) -> tuple[Callable[..., Any], float]:
    """The function, compiled, in float32 where it is narrower.

    And the largest unit roundoff of what is narrow all the same: 0 where nothing is.
    """
    as_given = _quick(function)
    traced = as_given.trace(*arguments)
    roundoff = narrow_roundoff(traced.jaxpr)
    if not roundoff:
        return as_given, 0.0
    tree = jax.tree.structure(traced.out_info)

    def widened(*arguments: Any) -> Any:
        return jax.tree.unflatten(tree, program(*jax.tree.leaves(arguments)))

    run = _quick(widened)
    try:
        program = WidenedProgram(traced.jaxpr)
        run.trace(*arguments)
    except Exception:
        # An operation that takes narrow numbers alone, in a way of its own. The loss
        # itself was traced above, so this hides no error of it.
        return as_given, roundoff
    return run, program.roundoff


def _quick(function: Callable[..., Any]) -> Any:
    """Run a handful of times: quick to compile counts for more than quick to run."""
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    if jax.default_backend() == "gpu":  # or it tries out the ways to multiply
        options["xla_gpu_autotune_level"] = 0
    return jax.jit(function, compiler_options=options)


def _distance(both: Any, each: Any, scale: float) -> Any:
    """The distance to the sum of both examples, or with 0.5 to their mean.

    Relative to the sizes of all three, so that two gradients that cancel, and whose
    roundings do not, are no reason to refuse.
    """
    off = size = jnp.zeros(())
    for whole, parts in zip(jax.tree.leaves(both), jax.tree.leaves(each), strict=True):
        whole, parts = whole.astype(jnp.float32), scale * parts.astype(jnp.float32)
        off += jnp.sum((whole - parts.sum(axis=0)) ** 2)
        size += jnp.sum(whole**2) + 2 * jnp.sum(parts**2)
    return jnp.sqrt(off / jnp.maximum(size, 1e-30))


def _apart(first: Any, second: Any) -> float:
    """The relative distance of two trees."""
    off = size = 0.0
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        if not a.is_fully_addressable:
            gap, sizes = _squares(a, b)
            off, size = off + float(gap), size + float(sizes)
            continue
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        off += float(np.sum((a - b) ** 2))
        size += float(np.sum(a**2) + np.sum(b**2))
    return float(np.sqrt(off / max(size, 1e-30)))


@jax.jit
def _squares(first: Any, second: Any) -> tuple[Any, Any]:
    first, second = first.astype(jnp.float32), second.astype(jnp.float32)
    return jnp.sum((first - second) ** 2), jnp.sum(first**2) + jnp.sum(second**2)


def _is_elsewhere(leaf: Any) -> bool:
    """Whether other processes hold parts of a leaf of real numbers."""
    return (
        isinstance(leaf, jax.Array)
        and not leaf.is_fully_addressable
        and jnp.issubdtype(leaf.dtype, jnp.floating)
    )


def _where_it_lies(change: Callable[[Any, Any], Any], leaf: Any) -> Any:
    """`change(leaf, key)` by all processes that hold parts of the leaf."""
    changed = jax.jit(change, out_shardings=leaf.sharding)
    return changed(leaf, np.array([0, leaf.size % 2**32], np.uint32))


def _rounded(leaf: Any, roundoff: float) -> Any:
    """Every weight off by one rounding, up or down."""
    if _is_elsewhere(leaf):

        def rounded(array: Any, key: Any) -> Any:
            signs = jax.random.rademacher(key, array.shape, jnp.float32)
            moved = array.astype(jnp.float32) * (1.0 + 2.0 * roundoff * signs)
            return moved.astype(array.dtype)

        return _where_it_lies(rounded, leaf)
    array = np.asarray(leaf)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return leaf
    signs = np.random.default_rng(array.size).choice([-1.0, 1.0], size=array.shape)
    moved = array.astype(np.float64) * (1.0 + 2.0 * roundoff * signs)
    return moved.astype(array.dtype)


def _moved(leaf: Any) -> Any:
    """A weight somewhat off: by half its usual size, or by 0.1 where it is zero."""
    if _is_elsewhere(leaf):

        def moved(array: Any, key: Any) -> Any:
            weights = array.astype(jnp.float32)
            size = jnp.sqrt(jnp.mean(weights**2))
            step = jax.random.normal(key, array.shape, jnp.float32)
            return (weights + jnp.maximum(0.5 * size, 0.1) * step).astype(array.dtype)

        return _where_it_lies(moved, leaf)
    array = np.asarray(leaf)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return leaf
    weights = array.astype(np.float64)
    size = np.sqrt(np.mean(weights**2)) if weights.size else 0.0
    step = np.random.default_rng(array.size).normal(size=array.shape)
    return (weights + max(0.5 * size, 0.1) * step).astype(array.dtype)


def _made_up(struct: Any, attempt: int, place: int) -> Any:
    # Each column has numbers of its own: with equal words, labels and masks the words
    # that a mask leaves have one loss, and their mean over a batch is a mean of means.
    rng = np.random.default_rng([attempt, place])
    if jnp.issubdtype(struct.dtype, jnp.floating):
        drawn = (
            rng.normal(size=struct.shape) if attempt else rng.uniform(size=struct.shape)
        )
        return drawn.astype(struct.dtype)
    # 0 and 1 are labels, tokens and bytes under every encoding.
    return rng.integers(0, 2, size=struct.shape).astype(struct.dtype)
