"""Rearrangements: operations on a parameter that only move its entries about.

Their transposes keep the norm of a cotangent, so that the norm of a gradient may be
taken behind them: the gradient of `W` and that of `W.T.reshape(...)` have one norm.
A slice counts: its transpose pads with zeros. So does a change of precision, whose
transpose here is the identity: sums stay in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from demur.training.clipping.ghost.inlining import kind_of

Transpose = Callable[[core.JaxprEqn, Any], Any]


def _operand(eqn: core.JaxprEqn) -> Any:
    return kind_of(eqn.invars[0])


def _reshape(eqn: core.JaxprEqn, cotangent: Any) -> Any:
    shape, order = _operand(eqn).shape, eqn.params.get("dimensions")
    if order is None:
        return cotangent.reshape(shape)
    # `lax.reshape` can reorder the axes first.
    return _reordered(cotangent.reshape([shape[axis] for axis in order]), order)


def _transpose(eqn: core.JaxprEqn, cotangent: Any) -> Any:
    return _reordered(cotangent, eqn.params["permutation"])


def _reordered(cotangent: Any, order: Sequence[int]) -> Any:
    """The cotangent before its axes were put in this order."""
    return jnp.transpose(cotangent, sorted(range(len(order)), key=order.__getitem__))


def _slice(eqn: core.JaxprEqn, cotangent: Any) -> Any:
    start = eqn.params["start_indices"]
    strides = eqn.params["strides"] or (1,) * len(start)
    padding = []
    for axis, (first, step) in enumerate(zip(start, strides, strict=True)):
        taken = first + (cotangent.shape[axis] - 1) * step + 1
        padding.append((first, _operand(eqn).shape[axis] - taken, step - 1))
    return jax.lax.pad(cotangent, jnp.zeros((), cotangent.dtype), padding)


def _reverse(eqn: core.JaxprEqn, cotangent: Any) -> Any:
    return jax.lax.rev(cotangent, eqn.params["dimensions"])


def _negate(eqn: core.JaxprEqn, cotangent: Any) -> Any:
    return -cotangent


def _same(eqn: core.JaxprEqn, cotangent: Any) -> Any:
    return cotangent


def _same_order(eqn: core.JaxprEqn, cotangent: Any) -> Any:
    return cotangent.reshape(_operand(eqn).shape)


_TRANSPOSES: dict[str, Transpose] = {
    "reshape": _reshape,
    "squeeze": _same_order,
    "expand_dims": _same_order,
    "broadcast_in_dim": _same_order,
    "transpose": _transpose,
    "slice": _slice,
    "rev": _reverse,
    "neg": _negate,
    "copy": _same,
    "convert_element_type": _same,
}


def keeps_norms(eqn: core.JaxprEqn) -> bool:
    """Whether the equation only rearranges its (floating) operand."""
    if eqn.primitive.name not in _TRANSPOSES or len(eqn.invars) != 1:
        return False
    before, after = kind_of(eqn.invars[0]), kind_of(eqn.outvars[0])
    if not jnp.issubdtype(after.dtype, jnp.floating):
        return False
    if eqn.primitive.name == "slice":
        return after.size > 0
    return bool(before.size == after.size)


def are_apart(eqns: Sequence[core.JaxprEqn]) -> bool:
    """Whether these are slices of one value that have no entry in common."""
    if not all(eqn.primitive.name == "slice" for eqn in eqns):
        return False
    return all(
        any(
            one.params["limit_indices"][axis] <= other.params["start_indices"][axis]
            or other.params["limit_indices"][axis] <= one.params["start_indices"][axis]
            for axis in range(len(one.params["start_indices"]))
        )
        for one, other in combinations(eqns, 2)
    )


def pull_back(eqn: core.JaxprEqn, cotangent: Any, stacked: int) -> Any:
    """The cotangent before the equation; `stacked` axes stand in front of it."""
    transpose: Callable[[Any], Any] = lambda whole: _TRANSPOSES[  # noqa: E731
        eqn.primitive.name
    ](eqn, whole)
    for _ in range(stacked):
        transpose = jax.vmap(transpose)
    return transpose(cotangent)
