"""From norms to clip factors, with every rounding on the private side.

An example's contribution is w G, with G its gradient (restricted to a group of
parameters that share one clip norm C). We know `upper` >= |G|^2 and that rounding while
adding up moves the contribution by at most w sqrt(wobble). With

    w = scale * min(1, C (1 - margin) / (sqrt(upper) + sqrt(wobble)))

the contribution is at most scale * C: it is at most w (|G| + sqrt(wobble)), and the
margin of 4 u covers what is rounded outside float64: w itself, its product with an
entry of G, and the result where a narrower dtype was asked for. An example whose
gradient is not finite has w = 0 in all groups and takes no part at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, and_
from typing import Any

import jax
import jax.numpy as jnp

from demur.core.validate import shorten
from demur.training.clipping.norms import Measured
from demur.training.clipping.rounding import (
    U64,
    in_float64,
    smallest_normal,
    unit_roundoff,
)

_MARGIN = 4


@dataclass(frozen=True)
class Clip:
    """Clip norms as a tree that is a prefix of the gradient, and the public scale."""

    norms: Any
    rescale_to_unit_norm: bool
    normalize_by: float
    dtype: Any = None  # of the result; None: that of each sum

    @property
    def _norms(self) -> list[float]:
        return [float(norm) for norm in jax.tree.leaves(self.norms)]

    @property
    def l2_norm_bound(self) -> float:
        """The length of the longest contribution, over all groups together."""
        each = [1.0] * len(self._norms) if self.rescale_to_unit_norm else self._norms
        return math.hypot(*each) / self.normalize_by

    def groups(self, gradient: Any) -> list[int]:
        """For each leaf of `gradient`, the number of its clip norm."""
        count = iter(range(len(self._norms)))
        numbers = jax.tree.map(lambda _: next(count), self.norms)
        try:
            spread = jax.tree.map(
                lambda number, below: jax.tree.map(lambda _: number, below),
                numbers,
                gradient,
            )
        except ValueError as error:
            raise ValueError(
                "l2_clip_norm must be a number, or a tree of numbers that is a prefix"
                f" of the gradient; got {shorten(self.norms)}"
            ) from error
        return jax.tree.leaves(spread)

    @in_float64
    def factors(
        self, measured: Sequence[Measured], groups: Sequence[int], real: Any
    ) -> tuple[list[Any], Any]:
        """The clip factor [B] for each leaf, and which examples are finite."""
        lengths: dict[int, Any] = {}
        for number in set(groups):
            members = [
                one
                for one, group in zip(measured, groups, strict=True)
                if group == number
            ]
            length = jnp.sqrt(reduce(add, [one.upper for one in members]))
            wobbles = [one.wobble for one in members if one.wobble is not None]
            if wobbles:
                length = length + jnp.sqrt(reduce(add, wobbles))
            lengths[number] = length * (1 + (len(members) + 8) * U64)
        fine = reduce(and_, [jnp.isfinite(length) for length in lengths.values()])
        kept = fine if real is None else fine & real
        factors = []
        for one, group in zip(measured, groups, strict=True):
            norm = self._norms[group]
            scale = 1 / self.normalize_by
            if self.rescale_to_unit_norm:
                scale /= norm
            roundoff = max(
                unit_roundoff(d) for d in (one.dtype, self.dtype or one.dtype)
            )
            margin = 1 - _MARGIN * roundoff
            factor = jnp.minimum(1.0, norm * margin / lengths[group]) * scale
            # Below the normal range a factor loses its precision: zero is private.
            normal = factor >= max(smallest_normal(one.dtype), one.least)
            factor = jnp.where(kept & normal, factor, 0.0)
            factors.append(jax.lax.convert_element_type(factor, one.dtype))
        return factors, fine


def add_up(
    measured: Sequence[Measured], clip: Clip, groups: Sequence[int], real: Any
) -> list[Any]:
    """The sum of clipped contributions, one array for each leaf.

    Leaving out a bad example needs a masked copy of everything, so it is done only when
    there is one.
    """
    factors, fine = clip.factors(measured, groups, real)

    def sums(finite: Any) -> list[Any]:
        return [
            one.add_up(factor, finite)
            for one, factor in zip(measured, factors, strict=True)
        ]

    return jax.lax.cond(jnp.all(fine), lambda: sums(None), lambda: sums(fine))
