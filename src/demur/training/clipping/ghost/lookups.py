"""Embedding tables: norms and sums of the gradients of rows looked up by number.

An example touches few rows. Rows that it looks up twice add up before the square: pairs
of look-ups are compared, or sorted when there are many.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from demur.training.clipping.factored_gradients import FactoredGradients
from demur.training.clipping.norms import (
    MeasuredLeaf,
    inner,
    inner_roundoff,
    leave_out,
    sum_of_bounds,
    weighted,
)
from demur.training.clipping.rounding import (
    U64,
    in_float64,
    sum_of_squares,
    total,
    unit_roundoff,
    wide,
)
from demur.training.devices.varying_axes import as_varying

_MOST_PAIRS = 1024


def measure_lookup(factors: FactoredGradients) -> MeasuredLeaf:
    """Norms and sum of a table's gradients; equal rows add up before the square."""
    right = factors.right.astype(wide(factors.right.dtype))
    rows, size = factors.rows, factors.table
    used = (rows >= 0)[..., None]
    right = jnp.where(used, right, 0)

    def add_up(weights: Any, finite: Any) -> Any:
        scaled = weighted(leave_out(right, finite), weights)
        slices = rows.shape[1]
        table = jnp.zeros((slices, size, right.shape[-1]), right.dtype)
        table = as_varying(table, like=right)
        which = jnp.broadcast_to(jnp.arange(slices)[None, :, None], rows.shape)
        inside = jnp.where(rows >= 0, rows, size)
        return table.at[which, inside].add(scaled, mode="drop")

    if rows.shape[2] > _MOST_PAIRS:
        square, upper = _sorted_lookup(rows, right)
    else:
        square, upper = _paired_lookup(rows, right)
    return MeasuredLeaf(square, upper, None, right.dtype, add_up)


@in_float64
def _paired_lookup(rows: Any, right: Any) -> tuple[Any, Any]:
    same = (rows[..., :, None] == rows[..., None, :]) & (rows >= 0)[..., None]
    table = inner(right, right)
    roundoff = inner_roundoff(right.shape[-1], right.dtype)
    sizes = jnp.diagonal(table, axis1=2, axis2=3)
    lengths = jnp.sqrt(jax.lax.convert_element_type(sizes, jnp.float64))
    pairs = jnp.where(same, lengths[..., :, None] * lengths[..., None, :], 0)
    square = total(jnp.where(same, table, 0), 2)
    slack = 1.01 * roundoff + 8 * (rows.shape[2] ** 2 + 8) * U64
    grow = 1 + 2 * roundoff + 1e-9
    return total(square, 1), sum_of_bounds(square + slack * grow * total(pairs, 2))


@in_float64
def _sorted_lookup(rows: Any, right: Any) -> tuple[Any, Any]:
    """Rows sorted, equal ones added, the sums squared: for many look-ups."""

    def added(numbers: Any, values: Any) -> tuple[Any, Any]:
        order = jnp.argsort(numbers)
        numbers, values = numbers[order], values[order]
        fresh = jnp.concatenate([jnp.zeros(1, bool), numbers[1:] != numbers[:-1]])
        group = jnp.cumsum(fresh)
        sums = jnp.zeros_like(values).at[group].add(values)
        sizes = jnp.zeros_like(values).at[group].add(jnp.abs(values))
        return sums, sizes

    sums, sizes = jax.vmap(jax.vmap(added))(rows, right)
    square, _ = sum_of_squares(sums, 1)
    # A sum of k values errs by at most k u times the sum of their sizes.
    most = 1.01 * rows.shape[2] * unit_roundoff(right.dtype)
    _, upper = sum_of_squares(jnp.abs(sums) + most * sizes, 1)
    return square, upper
