"""Embedding tables: norms and sums of the gradients of rows looked up by number.

An example touches few rows. Rows that it looks up twice add up before the square: pairs
of look-ups are compared, or sorted when there are many. A table of no more rows than
there are look-ups (kinds of bonds, types of tokens) is formed for each example, as a
product with ones and zeros: that takes no more numbers than the look-ups, and no
additions into the same few rows from everywhere.

A table that also stands in a product (a tied embedding) has the gradient G + H, with

    G[v] = sum over t with row_t = v of g_t,    H[v] = sum over s of left_s[v] right_s

and |G + H|^2 = |G|^2 + |H|^2 + 2 sum over t, s of left_s[row_t] <right_s, g_t>. So the
cross term takes positions^2 numbers for an example, and no row of the table is formed.
A computed inner product errs by at most r |right_s| |g_t| (r from `inner_roundoff`),
the picked numbers are exact, and what is added up is in float64: the cross term errs by
at most (r + n 2^-53) sum |left_s[row_t]| |right_s| |g_t|, which `upper` adds twice.
Here G is not formed: the cross term is that of the exact G, not of a rounded one.

Unless G is formed, the sum scales each looked-up row and rounds it. Rows that are
looked up twice can cancel, and these errors need not: with u the roundoff, at most
u (sum over v of (sum over t with row_t = v of |g_t|)^2)^(1/2) (`sum_error`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from demur.training.clipping.accumulation import accumulated
from demur.training.clipping.factored_gradients import FactoredGradients
from demur.training.clipping.norms import (
    EXACT,
    STRIP,
    MeasuredLeaf,
    inner,
    inner_roundoff,
    leave_out,
    measure,
    measure_instantiated,
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


def measure_lookup(factors: FactoredGradients, *, form: bool = True) -> MeasuredLeaf:
    """Norms and sum of a table's gradients; equal rows add up before the square.

    `form`: a small table may be formed.
    """
    right = factors.right.astype(wide(factors.right.dtype))
    rows, size = factors.rows, factors.table
    used = (rows >= 0)[..., None]
    right = jnp.where(used, right, 0)
    if form and _is_small(size, *right.shape[2:]):
        ones = (rows[..., None] == jnp.arange(size)).astype(right.dtype)
        return measure_instantiated(
            jnp.einsum("bstv,bsto->bsvo", ones, right, precision=EXACT)
        )

    @in_float64
    def add_up(weights: Any, finite: Any) -> Any:
        scaled = weighted(leave_out(right, finite), weights)
        slices = rows.shape[1]
        scaled = scaled.astype(accumulated(right.dtype, weights))
        table = jnp.zeros((slices, size, right.shape[-1]), scaled.dtype)
        table = as_varying(table, like=right)
        which = jnp.broadcast_to(
            jnp.arange(slices, dtype=jnp.int32)[None, :, None], rows.shape
        )
        inside = jnp.where(rows >= 0, rows, size)
        return table.at[which, inside].add(scaled, mode="drop")

    if rows.shape[2] > _MOST_PAIRS:
        square, upper, terms = _sorted_lookup(rows, right)
    else:
        square, upper, terms = _paired_lookup(rows, right)
    error = _rounded(terms, right.dtype)
    return MeasuredLeaf(square, upper, error, right.dtype, add_up, _mass(right))


def _is_small(size: int, positions: int, width: int) -> bool:
    """Whether a table takes no more room than its look-ups, ones and zeros included."""
    return size <= positions and (positions <= _MOST_PAIRS or size <= width)


@in_float64
def _rounded(terms: Any, dtype: Any) -> Any:
    """The sum error: every scaled row is rounded."""
    return (1.01 * unit_roundoff(dtype)) ** 2 * terms


@in_float64
def _mass(right: Any) -> Any:
    """(T sum over t of |right_t|)^2, summed over slices; rounded up."""
    lengths = jnp.sqrt(sum_of_squares(right, 3)[1])
    positions = right.shape[2]
    grow = 1 + (positions + 16) * U64
    # As long as the norm of one term each, scaled.
    return sum_of_bounds((1.01 * (positions + 1) * total(lengths, 2) * grow) ** 2)


@in_float64
def _paired_lookup(rows: Any, right: Any) -> tuple[Any, Any, Any]:
    """The square, its bound, and the sum over rows of (sum of |g_t|)^2."""
    same = (rows[..., :, None] == rows[..., None, :]) & (rows >= 0)[..., None]
    table = inner(right, right)
    roundoff = inner_roundoff(right.shape[-1], right.dtype)
    sizes = jnp.diagonal(table, axis1=2, axis2=3)
    lengths = jnp.sqrt(jax.lax.convert_element_type(sizes, jnp.float64))
    pairs = jnp.where(same, lengths[..., :, None] * lengths[..., None, :], 0)
    terms = total(pairs, 2)
    square = total(jnp.where(same, table, 0), 2)
    slack = 1.01 * roundoff + 8 * (rows.shape[2] ** 2 + 8) * U64
    grow = 1 + 2 * roundoff + 1e-9
    upper = sum_of_bounds(square + slack * grow * terms)
    return total(square, 1), upper, sum_of_bounds(grow * terms)


@in_float64
def _sorted_lookup(rows: Any, right: Any) -> tuple[Any, Any, Any]:
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
    _, terms = sum_of_squares((1 + 2 * most) * sizes, 1)
    return square, upper, terms


def measure_mixed(
    looked_up: FactoredGradients, product: FactoredGradients
) -> MeasuredLeaf:
    """Norms and sum of a table that is looked up and multiplied."""
    rows, whole = measure_lookup(looked_up, form=False), measure(product)
    square, upper = _with_cross_term(looked_up, product, rows, whole)

    @in_float64
    def add_up(weights: Any, finite: Any) -> Any:
        return whole.add_up(weights, finite) + rows.add_up(weights, finite)

    dtype = jnp.promote_types(rows.dtype, whole.dtype)
    error = rows.sum_error
    if whole.sum_error is not None:
        error = _added(rows.sum_error, whole.sum_error)
    return MeasuredLeaf(
        square, upper, error, dtype, add_up, _both(rows, whole), whole.least
    )


@in_float64
def _added(first: Any, second: Any) -> Any:
    """The square of the sum of two errors, from their squares; rounded up."""
    return (jnp.sqrt(first) + jnp.sqrt(second)) ** 2 * (1 + 16 * U64)


@in_float64
def _both(rows: MeasuredLeaf, whole: MeasuredLeaf) -> Any:
    """Two sums and one more addition: the terms of both, and one each."""
    masses = jnp.sqrt(rows.mass) + jnp.sqrt(whole.mass)
    return (2 * masses) ** 2 * (1 + 16 * U64)


@in_float64
def _with_cross_term(
    looked_up: FactoredGradients,
    product: FactoredGradients,
    rows: MeasuredLeaf,
    whole: MeasuredLeaf,
) -> tuple[Any, Any]:
    cross, error = _cross_term(looked_up, product)
    square = rows.square + whole.square + 2 * cross
    upper = rows.upper + whole.upper + 2 * (cross + error)
    # The two parts add up, at most: a bound that needs no cross term.
    most = (jnp.sqrt(rows.upper) + jnp.sqrt(whole.upper)) ** 2
    return square, jnp.minimum(upper, most) * (1 + 16 * U64)


@in_float64
def _cross_term(
    looked_up: FactoredGradients, product: FactoredGradients
) -> tuple[Any, Any]:
    """<G, H> for each example, and what it may err by."""
    numbers, right = looked_up.rows, looked_up.right
    right = jnp.where((numbers >= 0)[..., None], right.astype(wide(right.dtype)), 0)
    other = product.right.astype(wide(product.right.dtype))
    dtype = jnp.promote_types(right.dtype, other.dtype)
    right, other = right.astype(dtype), other.astype(dtype)
    positions, width = right.shape[2:]
    lengths = [jnp.sqrt(sum_of_squares(part, 3)[1]) for part in (other, right)]
    cross: Any = 0.0
    sizes: Any = 0.0
    for start in range(0, positions, STRIP):
        strip = slice(start, start + STRIP)
        picked = jax.vmap(jax.vmap(lambda left, at: left[:, at]))(
            product.left, jnp.maximum(numbers[:, :, strip], 0)
        )
        picked = jax.lax.convert_element_type(picked, jnp.float64)
        table = inner(other, right[:, :, strip])
        cross += total(picked * jax.lax.convert_element_type(table, jnp.float64), 1)
        both = lengths[0][..., :, None] * lengths[1][:, :, None, strip]
        sizes += total(jnp.abs(picked) * both, 1)
    roundoff = inner_roundoff(width, dtype)
    terms = positions * other.shape[2] * right.shape[1]
    return cross, (1.01 * roundoff + 4 * (terms + 8) * U64) * 1.01 * sizes
