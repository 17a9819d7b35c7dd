"""Rounding of norms: sums in float64 with known bounds, whatever the loss's precision.

Adding n numbers in float32 can err by n 2^-24 of the sum of their sizes, in whatever
order a compiler picks: [1, 1e-4, 1e-4, ...] with a million entries has norm 1.005, and
a running total in float32 may report 1.0, because every other entry is lost against
it. In float64 the same bound is n 2^-53, squares of float32 numbers are exact and
cannot overflow, and a reduction costs no more memory traffic. JAX allows float64 inside
a `jax.enable_x64` block whatever the session's default; only numbers per example are
ever held in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

U64 = 2.0**-53
_TINY = 2.0**-1022
P = ParamSpec("P")
R = TypeVar("R")


def in_float64(function: Callable[P, R]) -> Callable[P, R]:
    """Let the function's arithmetic keep float64."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return run


def wide(dtype: Any) -> Any:
    """The dtype in which sums of this dtype are formed: float32 or wider."""
    return jnp.promote_types(dtype, jnp.float32)


def _limits(dtype: Any) -> Any:
    return jnp.finfo(dtype)  # type: ignore[no-untyped-call]


def unit_roundoff(dtype: Any) -> float:
    """Half the distance from 1 to the next number."""
    return float(_limits(dtype).eps) / 2


def smallest_normal(dtype: Any) -> float:
    """The smallest number that has full precision."""
    return float(_limits(dtype).tiny)


@in_float64
def total(array: Any, keep: int) -> Any:
    """The sum over all axes from `keep` on, in float64.

    It errs by at most n 2^-53 times the sum of the sizes of the n numbers.
    """
    array = jax.lax.convert_element_type(array, jnp.float64)
    return jnp.sum(array, axis=tuple(range(keep, array.ndim)))


@in_float64
def sum_of_squares(array: Any, keep: int) -> tuple[Any, Any]:
    """The squared norm over all axes from `keep` on: as computed, and an upper bound.

    The bound covers the rounding of squares and sums, and squares too small for a
    number.
    """
    array = jax.lax.convert_element_type(array, jnp.float64)
    value = total(array * array, keep)
    count = math.prod(array.shape[keep:])
    return value, value * (1 + (count + 4) * U64) + count * _TINY
