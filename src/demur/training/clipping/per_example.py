"""Per-example gradients by `vmap`, and the form in which every method returns them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend import core

from demur.training.clipping.norms import MeasuredLeaf, measure_instantiated
from demur.training.clipping.rounding import in_float64
from demur.training.devices.varying_axes import struct_of

Loss: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]


class MeasuredGradients(NamedTuple):
    """Measured gradients, leaf by leaf, and what else one pass over the batch gives."""

    leaves: list[MeasuredLeaf]
    tree: Any
    values: Any
    aux: Any
    norms: Any


@in_float64
def norms_of(leaves: list[MeasuredLeaf]) -> Any:
    """The gradient norm of each example, as computed."""
    norms = jnp.sqrt(reduce(add, [leaf.square for leaf in leaves]))
    return norms.astype(reduce(jnp.promote_types, [leaf.dtype for leaf in leaves]))


def one_example(loss: Loss, params: Any, rows: Any) -> core.ClosedJaxpr:
    """The program of the loss of one row."""
    row = jax.tree.map(partial(struct_of, row=True), rows)
    return jax.make_jaxpr(loss)(jax.tree.map(struct_of, params), row)


def vmap_gradients(
    loss: Loss,
    params: Any,
    rows: Any,
    transform: Callable[[Any], Any] | None,
    spmd_axis_name: Any,
    one_by_one: bool = False,
) -> MeasuredGradients:
    """Gradients of each example; `transform` may change them before the clip.

    The norms returned are those of the gradients themselves. `one_by_one`: in a loop,
    where a compiler would not keep examples apart.
    """

    def gradient_of(row: Any) -> tuple[Any, ...]:
        (value, aux), gradient = jax.value_and_grad(loss, has_aux=True)(params, row)
        changed = None if transform is None else transform(gradient)
        return value, aux, gradient, changed

    each = jax.vmap(gradient_of, spmd_axis_name=spmd_axis_name)
    values, aux, gradients, changed = (
        jax.lax.map(gradient_of, rows) if one_by_one else each(rows)
    )
    leaves, tree = jax.tree.flatten(gradients)
    measured = [measure_instantiated(leaf) for leaf in leaves]
    norms = norms_of(measured)
    if transform is not None:
        leaves, tree = jax.tree.flatten(changed)
        for leaf in leaves:
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise TypeError(
                    "pre_clipping_transform must return real floating numbers;"
                    f" got {leaf.dtype}"
                )
        measured = [measure_instantiated(leaf) for leaf in leaves]
    return MeasuredGradients(measured, tree, values, aux, norms)
