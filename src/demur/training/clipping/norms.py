"""Per-example norms of a gradient in factored form, and its weighted sum.

With left [B, S, T, I] and right [B, S, T, O] (see `ghost.layers`), the squared norm of
G_b = sum over t of left_t (x) right_t is, for each s,

    one position      |left|^2 |right|^2
    Gram              sum over t, r of <left_t, left_r> <right_t, right_r>
    instantiated      the sum of squares of G_b itself

Gram is taken when T (I + O) <= I O, that is when it is less work. Then 2 T (I O)^(1/2)
<= I O, so the two T x T tables are at most half the size of G_b. Otherwise G_b is
smaller than the activations it comes from. So neither way needs more memory than the
ordinary backward pass uses, and an instantiated G_b is stored for the sum. Where a GPU
forms float32 products in TensorFloat-32, inner products, whose rounding would count,
take full float32 at a tenth of the speed, while a G_b is what it is however it was
rounded. There T^2 (I + O) exact products take as long as reading I O numbers three
times at T = 64, so that G_b is formed up to T / 64 times as large (four times at most).

Rounding. `upper` is proven to be no smaller than the true squared norm. Sums over
positions and entries are formed in float64 (`rounding`); what is left is the rounding
of inner products, which a GPU's matrix units form in float32 (on a CPU we use float64
for them too). Write u for their roundoff and m = sum over t of |left_t| |right_t|. A
computed inner product of length n errs by at most n u times the product of the norms,
in whatever order the hardware adds, so a Gram sum errs by at most (n_I + n_O) u m^2;
products longer than `_LONGEST` are cut into pieces. (Matrix units are taken to
accumulate like float32.)

The weighted sum multiplies one factor by the clip factor w_b, and rounds it to the
factor's dtype: each entry by a relative v (2^-8 in bfloat16; on a GPU float32
products may cut both factors off at 2^-10). Positions can cancel in G_b but these
errors need not, so they are not small against |G_b|; with |e_t| <= v |right_t| they
make at most

    |sum left_t (x) e_t| <= v min(m, ||left||_op |right|)
    ||left||_op^2 <= the Frobenius norm of the table <left_t, left_r>

Below the smallest normal number h, rounding is no longer relative: an entry may become
zero. Two positions that cancel would then leave one of them, times a factor right_t of
up to 1e38. Such errors are at most h per entry, and make at most

    h (T I)^(1/2) |right| / w_b     if left is the scaled factor
    h (T O)^(1/2) |left|            for the other

per unit of w_b. A clip factor below `least` = h^(2/3) is taken as zero, so that the
first is at most h^(1/3) (2^-42 in float32) times (T I)^(1/2) |right|.

A mask M (a weight of which every entry is scaled by itself) makes the gradient
M * G_b, entry by entry. Its norm is had by forming G_b for a few examples at a time, in
float32, which errs by at most (T + 1) u m, and what is added up is M times the
weighted sum. Since |M * E| <= max |M| |E|, each of these errors counts max |M| times.

`sum_error` is the square of all that per unit of w_b. The clip factor is computed from
|G_b| + sum_error^(1/2), so that what is in fact added is at most the clip norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp

from demur.training.clipping.accumulation import accumulated
from demur.training.clipping.factored_gradients import FactoredGradients
from demur.training.clipping.rounding import (
    U64,
    in_float64,
    smallest_normal,
    sum_of_squares,
    total,
    unit_roundoff,
    wide,
)

_LONGEST = 4096
STRIP = 256
EXACT = jax.lax.Precision.HIGHEST


@dataclass(frozen=True, eq=False)
class MeasuredLeaf:
    """Squared norms [B] of one parameter's gradients, and their weighted sum.

    In float64: `square` as computed, `upper` a proven bound, `sum_error` as in the
    module's text (None: no error). `add_up(weights, finite)` is the weighted sum, in
    `dtype`; `finite` is None, or marks the examples that count, the others being taken
    as zero. Weights are zero or at least `least`. They are numbers of `dtype`; if the
    array is float64, the sum is formed in float64, and `mass` says what that may err by
    (`accumulation`: the square of T m).
    """

    square: Any
    upper: Any
    sum_error: Any
    dtype: Any
    add_up: Callable[[Any, Any], Any]
    mass: Any
    least: float = 0.0

    @property
    def smallest_weight(self) -> float:
        """Below the normal range a weight loses its precision: zero is private."""
        return max(smallest_normal(self.dtype), self.least)


def norm_method(
    positions: int, left: int, right: int, dtype: Any = None, precision: Any = None
) -> str:
    """Which of the three formulas serves a gradient of this form.

    Without a dtype: the one that takes least memory.
    """
    if positions == 1:
        return "one position"
    larger = 1.0
    if dtype is not None and jax.default_backend() == "gpu":
        quick = product_roundoff(dtype, known_precision(precision)) > 0
        larger = min(4.0, max(1.0, positions / 64)) if quick else 1.0
    gram = 0 < larger * positions * (left + right) <= left * right
    return "Gram" if gram else "instantiated"


def product_roundoff(dtype: Any, precision: Any) -> float:
    """How far a matrix product rounds each factor before multiplying.

    GPUs take float32 as TensorFloat-32, whose 10 bits of fraction some products reach
    by cutting off, and TPUs as bfloat16, unless another precision is set.
    """
    if dtype != jnp.float32 or precision in (EXACT, (EXACT, EXACT)):
        return 0.0
    default = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    if precision is None and str(default) in ("highest", "float32"):
        return 0.0
    return {"cpu": 0.0, "gpu": 2.0**-10}.get(jax.default_backend(), 2.0**-8)


def known_precision(precision: Any) -> Any:
    """The precision asked for in the loss if its rounding is known, or else the best.

    A named algorithm may round more than is accounted for.
    """
    if precision is None:
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        named = str(precision).upper() in jax.lax.DotAlgorithmPreset.__members__
        return EXACT if named and str(precision).upper() != "DEFAULT" else None
    pair = precision if isinstance(precision, tuple) else (precision, precision)
    plain = all(isinstance(each, jax.lax.Precision) for each in pair)
    return precision if plain else EXACT


def leave_out(array: Any, finite: Any) -> Any:
    """The array with zeros for the examples that are not finite (None: all are)."""
    if finite is None:
        return array
    return jnp.where(finite.reshape((-1,) + (1,) * (array.ndim - 1)), array, 0)


@in_float64
def weighted(array: Any, weights: Any) -> Any:
    """Each example scaled, in the array's own dtype."""
    spread = weights.reshape((-1,) + (1,) * (array.ndim - 1))
    return (array * spread).astype(array.dtype)


def measure_instantiated(gradients: Any) -> MeasuredLeaf:
    """Norms and sum of gradients [B, ...] that were formed: one array serves both."""
    gradients = gradients.astype(wide(gradients.dtype))
    square, upper = sum_of_squares(gradients, 1)

    @in_float64
    def add_up(weights: Any, finite: Any) -> Any:
        counted = leave_out(gradients, finite)
        if weights.dtype != gradients.dtype:
            # Scaled and added up in one go: no copy in float64.
            spread = weights.reshape((-1,) + (1,) * (counted.ndim - 1))
            scaled = counted.astype(weights.dtype) * spread
            return jnp.sum(scaled, axis=0)
        return jnp.tensordot(weights, counted, axes=1, precision=EXACT)

    # One term for an example, which is rounded twice: scaled, then added.
    return MeasuredLeaf(
        square, upper, None, gradients.dtype, add_up, _squared(2.0, upper)
    )


@in_float64
def _squared(terms: float, mass: Any) -> Any:
    """(T m)^2 from m^2, rounded up."""
    return terms**2 * mass * (1 + 8 * U64)


@in_float64
def side_by_side(parts: Sequence[MeasuredLeaf]) -> MeasuredLeaf:
    """A gradient of parts without a common entry: their squares add up."""
    grow = 1 + (len(parts) + 4) * U64
    errors = [part.sum_error for part in parts if part.sum_error is not None]

    @in_float64
    def add_up(weights: Any, finite: Any) -> Any:
        return reduce(add, [part.add_up(weights, finite) for part in parts])

    return MeasuredLeaf(
        reduce(add, [part.square for part in parts]),
        reduce(add, [part.upper for part in parts]) * grow,
        reduce(add, errors) * grow if errors else None,
        reduce(jnp.promote_types, [part.dtype for part in parts]),
        add_up,
        reduce(add, [part.mass for part in parts]) * grow,
        max(part.least for part in parts),
    )


def measure(factors: FactoredGradients) -> MeasuredLeaf:
    """Norms and sum of gradients in factored form."""
    left, right = _one_dtype(factors.left, factors.right)
    precision = known_precision(factors.precision)
    positions, inputs = left.shape[2:]
    method = norm_method(
        positions, inputs, right.shape[3], left.dtype, factors.precision
    )
    mask = factors.mask
    if method == "instantiated" and mask is None:
        gradients = jnp.einsum(
            "bsti,bsto->bsio",
            left,
            right,
            precision=precision,
            preferred_element_type=wide(left.dtype),
        )
        return measure_instantiated(gradients)
    scale_left = inputs <= right.shape[3]

    @in_float64
    def add_up(weights: Any, finite: Any) -> Any:
        first, second = leave_out(left, finite), leave_out(right, finite)
        if scale_left:
            first = weighted(first, weights)
        else:
            second = weighted(second, weights)
        result = accumulated(wide(left.dtype), weights)
        if result == jnp.float64:
            first, second = first.astype(result), second.astype(result)
        summed = jnp.einsum(
            "bsti,bsto->sio",
            first,
            second,
            precision=precision,
            preferred_element_type=result,
        )
        return summed if mask is None else (summed * mask).astype(summed.dtype)

    rounded = unit_roundoff(left.dtype) + 2.001 * product_roundoff(
        left.dtype, precision
    )
    if mask is not None:
        square, upper, mass, sizes = _masked(left, right, mask)
        whole = mass
    elif method == "one position":
        square, upper, mass, sizes = _one_position(left, right)
        whole = mass
    else:
        square, upper, (mass, whole), sizes = _gram(left, right, scale_left)
    tiny = smallest_normal(left.dtype)
    least = tiny ** (2 / 3)
    # An entry of the scaled factor may lose `tiny` once scaled, the other's as it is.
    lost = (tiny / least, tiny) if scale_left else (tiny, tiny / least)
    entries = [positions * width for width in (inputs, right.shape[3])]
    errors = _errors(rounded, mass, lost, entries, sizes)
    # A scaled factor is at most 1 + `rounded` as long, a mask one more rounding.
    whole = _squared(1.01 * (positions + 1), whole)
    if mask is not None:
        errors = errors * _largest_square(mask)
        whole = whole * _largest_square(mask)
    return MeasuredLeaf(square, upper, errors, wide(left.dtype), add_up, whole, least)


@in_float64
def _errors(
    rounded: float,
    mass: Any,
    lost: Sequence[float],
    entries: Sequence[int],
    sizes: Sequence[Any],
) -> Any:
    """The sum error: rounding, and what each factor loses against the other's size."""
    errors = rounded * jnp.sqrt(mass)
    for each, count, other in zip(lost, entries, reversed(sizes), strict=True):
        errors += each * jnp.sqrt(count * other)
    return (1.01 * errors) ** 2


def _one_dtype(left: Any, right: Any) -> tuple[Any, Any]:
    """Both factors in one dtype: bfloat16 if both are, float32 or wider otherwise.

    float16 is widened: a scaled factor could fall out of its range. So is bfloat16 on
    a CPU, which has no such products.
    """
    if left.dtype == right.dtype == jnp.bfloat16 and _has_half_products():
        return left, right
    dtype = wide(jnp.promote_types(left.dtype, right.dtype))
    return left.astype(dtype), right.astype(dtype)


@in_float64
def _one_position(left: Any, right: Any) -> tuple[Any, Any, Any, list[Any]]:
    lefts, lefts_upper = sum_of_squares(left, 2)
    rights, rights_upper = sum_of_squares(right, 2)
    upper = sum_of_bounds(lefts_upper * rights_upper)
    sizes = [sum_of_bounds(lefts_upper), sum_of_bounds(rights_upper)]
    return total(lefts * rights, 1), upper, upper, sizes


def _has_half_products() -> bool:
    return jax.default_backend() != "cpu"


def _table_dtype(dtype: Any) -> Any:
    """In what inner products are added up: float64 where that costs little."""
    return jnp.dtype("float64") if jax.default_backend() == "cpu" else wide(dtype)


@in_float64
def inner(first: Any, second: Any) -> Any:
    """<first_t, second_r> for all t, r; long ones in pieces."""
    length = first.shape[-1]
    dtype = _table_dtype(first.dtype)
    if first.dtype != jnp.bfloat16 or dtype == jnp.float64:
        first, second = first.astype(dtype), second.astype(dtype)
    pieces = [
        jnp.einsum(
            "bsti,bsri->bstr",
            first[..., start : start + _LONGEST],
            second[..., start : start + _LONGEST],
            precision=None if first.dtype == jnp.bfloat16 else EXACT,
            preferred_element_type=dtype,
        )
        for start in range(0, max(length, 1), _LONGEST)
    ]
    return reduce(add, pieces)


def inner_roundoff(length: int, dtype: Any) -> float:
    """The error of one such inner product, in products of the two norms."""
    additions = min(length, _LONGEST) + -(-length // _LONGEST)
    return additions * unit_roundoff(_table_dtype(dtype))


@in_float64
def _gram(left: Any, right: Any, scale_left: bool) -> tuple[Any, Any, Any, list[Any]]:
    """The squared norm, its bound, masses and the factors' sizes.

    The masses are that of the sum error, min(m, ||left||_op |right|)^2, and m^2 itself.

    The tables are symmetric: strips on and above the diagonal are enough.
    """
    positions, inputs = left.shape[2:]
    square = still_squared = 0.0
    diagonals: tuple[list[Any], list[Any]] = ([], [])
    for start in range(0, positions, STRIP):
        own = min(STRIP, positions - start)
        tables = [
            inner(part[:, :, start : start + own], part[:, :, start:])
            for part in (left, right)
        ]
        # Off the diagonal block, each pair stands for two.
        for part, times in ((slice(0, own), 1), (slice(own, None), 2)):
            a, b = (
                jax.lax.convert_element_type(table[..., part], jnp.float64)
                for table in tables
            )
            square += times * total(a * b, 2)
            still = b if scale_left else a
            still_squared += times * total(still * still, 2)
        for pieces, table in zip(diagonals, tables, strict=True):
            pieces.append(jnp.diagonal(table[..., :own], axis1=2, axis2=3))
    each = [inner_roundoff(n, left.dtype) for n in (inputs, right.shape[3])]
    grow = 1 + 2 * (each[0] + each[1]) + 8 * (positions**2 + 8) * U64
    sizes = [
        jax.lax.convert_element_type(jnp.concatenate(pieces, axis=2), jnp.float64)
        * grow
        for pieces in diagonals
    ]
    m_squared = (total(jnp.sqrt(sizes[0] * sizes[1]), 2) * grow) ** 2
    slack = 1.01 * (each[0] + each[1]) + 4 * (positions**2 + 8) * U64
    upper = sum_of_bounds(jnp.minimum(square + slack * m_squared, m_squared))
    moving, still = sizes if scale_left else sizes[::-1]
    operator = jnp.sqrt(still_squared) + sum(each) * total(still, 2)
    mass = sum_of_bounds(jnp.minimum(m_squared, operator * total(moving, 2) * grow))
    return (
        total(square, 1),
        upper,
        (mass, sum_of_bounds(m_squared)),
        [sum_of_bounds(total(size, 2)) for size in sizes],
    )


@in_float64
def _largest_square(mask: Any) -> Any:
    """max |M|^2, rounded up."""
    largest = jnp.max(jnp.abs(jax.lax.convert_element_type(mask, jnp.float64)))
    return largest * largest * (1 + 4 * U64)


@in_float64
def _masked(left: Any, right: Any, mask: Any) -> tuple[Any, Any, Any, list[Any]]:
    """The same for a gradient with a mask: formed for a few examples at a time."""
    examples, slices, positions, inputs = left.shape
    outputs = right.shape[3]
    dtype = wide(left.dtype)
    exact_mask = jax.lax.convert_element_type(mask, jnp.float64)

    def square_of(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        first, second = (part.astype(dtype) for part in pair)
        formed = jnp.einsum("sti,sto->sio", first, second, precision=EXACT)
        whole = jax.lax.convert_element_type(formed, jnp.float64) * exact_mask
        return sum_of_squares(whole, 0)

    # As many at a time as take the room of their factors.
    room = examples * positions * (inputs + outputs) // max(1, inputs * outputs)
    together = max(1, min(examples, room))
    square, upper = jax.lax.map(square_of, (left, right), batch_size=together)
    lengths = [sum_of_squares(part, 3)[1] for part in (left, right)]
    sizes = [sum_of_bounds(total(length, 2)) for length in lengths]
    mass = total(jnp.sqrt(lengths[0] * lengths[1]), 1)
    mass = mass * (1 + (slices * positions + 16) * U64)
    error = 1.01 * (positions + 2) * unit_roundoff(dtype) * mass
    error = error * jnp.sqrt(_largest_square(mask))
    bound = (jnp.sqrt(upper) + error) ** 2 * (1 + 16 * U64)
    return square, bound, mass**2 * (1 + 4 * U64), sizes


@in_float64
def sum_of_bounds(per_slice: Any) -> Any:
    """The sum over s of upper bounds, rounded up."""
    return total(per_slice, 1) * (1 + (per_slice.shape[1] + 16) * U64)
