"""Gradients as products of two factors, and the order of axes they are brought to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp


@dataclass(frozen=True)
class ScanLoop:
    """A scan around an equation: each turn has its own slice, or all share one."""

    length: int
    own_slice: bool


@dataclass(frozen=True, eq=False)
class FactoredGradients:
    """left [B, S, T, I] and right [B, S, T, O]; or rows [B, S, T] for a look-up.

    A row number below 0 takes no part. With a `mask` [S, I, O] the gradient is the
    mask times the product of the factors, entry by entry.
    """

    left: Any
    right: Any
    precision: Any = None
    rows: Any = None
    table: int = 0
    mask: Any = None


def _axes(loops: Sequence[ScanLoop], own: bool) -> list[int]:
    return [axis for axis, loop in enumerate(loops) if loop.own_slice == own]


def grouped(
    array: Any, loops: Sequence[ScanLoop], axes: Sequence[Sequence[int]]
) -> Any:
    """`array` [loops..., B, ...] as [B, S, T, rest], from its own axes (s, t, rest)."""
    base = len(loops) + 1
    own, shared = _axes(loops, True), _axes(loops, False)
    s, t, rest = ([base + axis for axis in group] for group in axes)
    order = [base - 1, *own, *s, *shared, *t, *rest]
    moved = jnp.transpose(array, order)
    sizes = [
        math.prod(array.shape[axis] for axis in group)
        for group in ([*own, *s], [*shared, *t], rest)
    ]
    return moved.reshape((moved.shape[0], *sizes))
