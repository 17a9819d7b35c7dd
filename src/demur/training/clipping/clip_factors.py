"""Clip factors from per-example norms, with every rounding on the private side.

An example's contribution is w G, with G its gradient (restricted to a group of
parameters that share one clip norm C). We know `upper` >= |G|^2 and that rounding while
adding up moves the contribution by at most w sqrt(sum_error). With

    w = scale * min(1, C (1 - margin) / (sqrt(upper) + sqrt(sum_error)))

the contribution is at most scale * C: it is at most
w (|G| + sqrt(sum_error)), and the margin of 4 u covers what is rounded outside float64:
w itself, its product with an entry of G, and the result where a narrower dtype was
asked for. An example whose gradient is not finite has w = 0 in all groups and takes no
part at all.

With `accumulator="float64"` the length is at least what `accumulation` asks for, and
the factors, rounded as ever, are float64 arrays: sums are then formed in float64.
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
from demur.training.clipping.accumulation import Accumulator, least_length
from demur.training.clipping.norms import MeasuredLeaf
from demur.training.clipping.per_example import MeasuredGradients
from demur.training.clipping.rounding import (
    U64,
    in_float64,
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
    accumulator: Accumulator = "float32"

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
            number_of_leaf = jax.tree.map(
                lambda number, below: jax.tree.map(lambda _: number, below),
                numbers,
                gradient,
            )
        except ValueError as error:
            raise ValueError(
                "l2_clip_norm must be a number, or a tree of numbers that is a prefix"
                f" of the gradient; got {shorten(self.norms)}"
            ) from error
        return jax.tree.leaves(number_of_leaf)

    @in_float64
    def factors(
        self,
        leaves: Sequence[MeasuredLeaf],
        groups: Sequence[int],
        real: Any,
        slack: float = 0.0,
    ) -> tuple[list[Any], Any]:
        """The clip factor [B] for each leaf, and which examples are finite.

        `slack` takes that share off the clip norms.
        """
        lengths: dict[int, Any] = {}
        for number in set(groups):
            members = [
                leaf
                for leaf, group in zip(leaves, groups, strict=True)
                if group == number
            ]
            length = jnp.sqrt(reduce(add, [leaf.upper for leaf in members]))
            errors = [leaf.sum_error for leaf in members if leaf.sum_error is not None]
            if errors:
                length = length + jnp.sqrt(reduce(add, errors))
            if self.accumulator == "float64":
                terms = least_length([leaf.mass for leaf in members], len(length))
                length = jnp.maximum(length, terms)
            lengths[number] = length * (1 + (len(members) + 8) * U64)
        finite = reduce(and_, [jnp.isfinite(length) for length in lengths.values()])
        counted = finite if real is None else finite & real
        factors = []
        for leaf, group in zip(leaves, groups, strict=True):
            norm = self._norms[group]
            scale = 1 / self.normalize_by
            if self.rescale_to_unit_norm:
                scale /= norm
            roundoff = max(
                unit_roundoff(d) for d in (leaf.dtype, self.dtype or leaf.dtype)
            )
            margin = (1 - _MARGIN * roundoff) * (1 - slack)
            factor = jnp.minimum(1.0, norm * margin / lengths[group]) * scale
            factor = jnp.where(counted & (factor >= leaf.smallest_weight), factor, 0.0)
            factor = jax.lax.convert_element_type(factor, leaf.dtype)
            if self.accumulator == "float64":
                factor = jax.lax.convert_element_type(factor, jnp.float64)
            factors.append(factor)
        return factors, finite


def add_up(gradients: MeasuredGradients, clip: Clip, real: Any) -> list[Any]:
    """The sum of clipped contributions, one array for each leaf.

    Leaving out a bad example needs a masked copy of everything, so it is done only when
    there is one.
    """
    leaves = gradients.leaves
    groups = clip.groups(jax.tree.unflatten(gradients.tree, leaves))
    factors, finite = clip.factors(leaves, groups, real)

    def sums(counted: Any) -> list[Any]:
        return [
            leaf.add_up(factor, counted)
            for leaf, factor in zip(leaves, factors, strict=True)
        ]

    return jax.lax.cond(jnp.all(finite), lambda: sums(None), lambda: sums(finite))
