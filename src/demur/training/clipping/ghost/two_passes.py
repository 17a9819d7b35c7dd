"""Two passes: the clipped sum at the memory of an ordinary gradient.

The first pass streams norms (`streaming`), from which the clip factors follow. The
second pass streams the sums, with these factors. Neither holds a layer's operand and
cotangent longer than the layer's own step of the backward pass, and what a checkpoint
rematerialises stays rematerialised. The price is one more forward and backward pass.

The bound. Cotangents of the second pass are computed again, and a compiler that fuses
otherwise rounds otherwise: norms of the first pass say nothing certain about the terms
of the second. So the second pass measures again. Let w_b be the factor that the sum was
formed with, and f_b the one that `Clip.factors` allows from norms of the same pass,
that is, of the very arrays that were contracted. If w_b <= f_b for all examples, each
contribution is at most the clip norm, by the argument of `clip_factors`: it holds for
every factor up to f_b. If not, the pass is repeated with factors lowered to what was
measured, and from the third time on with zero for an example that is still too long.
Only a sum of which all terms were measured leaves the loop.

The factors of the first pass are lowered by `slack`, so that a repetition is rare:
2^-16 of the clip norm, or the roundoff of the narrowest layer if that is more.

An example whose gradient is not finite has weight zero, and zero times infinity is no
number. So the second pass sees another row in its place, the first that is finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from demur.training.clipping.accumulation import Accumulator
from demur.training.clipping.clip_factors import Clip
from demur.training.clipping.ghost.cotangents import BackwardPass, tapped_pass
from demur.training.clipping.ghost.gradients import Traced, measure_leaves
from demur.training.clipping.ghost.routes import find_routes
from demur.training.clipping.ghost.streaming import (
    StreamedLayer,
    streaming_routes,
    streams,
)
from demur.training.clipping.norms import MeasuredLeaf
from demur.training.clipping.per_example import MeasuredGradients, norms_of
from demur.training.clipping.rounding import in_float64, unit_roundoff
from demur.training.devices.varying_axes import as_varying

_SLACK = 2.0**-16
_LOWERED = 2  # so many repetitions lower a factor; later ones set it to zero


class _Round(NamedTuple):
    """The second pass, done `count` times: what it starts from and what it found."""

    count: Any
    accepted: Any
    weights: list[Any]
    finite: Any
    sums: list[Any]


class TwoPasses:
    """The two passes over a batch for one traced loss."""

    def __init__(
        self,
        traced: Traced,
        spmd_axis_name: Any,
        accumulator: Accumulator = "float32",
    ) -> None:
        self.traced, self.accumulator = traced, accumulator
        routes = find_routes(traced.program, len(traced.params), held=False)
        self.routes = streaming_routes(traced.program, routes)
        self.spmd_axis_name = spmd_axis_name
        self.leaf_of = {
            route.sites[0].number: number
            for number, route in enumerate(self.routes.of)
            if streams(route)
        }
        self.streamed = {
            site.number: StreamedLayer.of(site.layer, accumulator)
            for site in self.routes.all_sites
            if site.number in self.leaf_of
        }
        narrow = [unit_roundoff(site.layer.output.dtype) for site in self.all_sites]
        self.slack = max([_SLACK, *narrow])

    @property
    def all_sites(self) -> Any:
        """Every layer on a route."""
        return self.routes.all_sites

    def _pass(
        self, params: Sequence[Any], rows: Sequence[Any], weights: Any = None
    ) -> tuple[BackwardPass, list[MeasuredLeaf]]:
        at_site = {}
        if weights is not None:
            at_site = {site: weights[leaf] for site, leaf in self.leaf_of.items()}
        passed = tapped_pass(
            self.traced.program,
            self.routes,
            params,
            rows,
            self.spmd_axis_name,
            self.streamed,
            at_site,
        )
        return passed, measure_leaves(self.traced, self.routes, passed, self.streamed)

    def run(self, clip: Clip, real: Any) -> tuple[list[Any], MeasuredGradients]:
        """The sums, leaf by leaf, and what the first pass gave."""
        traced = self.traced
        passed, leaves = self._pass(traced.params, traced.rows)
        groups = clip.groups(jax.tree.unflatten(traced.tree, leaves))
        weights, finite = clip.factors(leaves, groups, real, self.slack)
        zeros = [
            self._zeros(leaf.shape, measured.dtype)
            for leaf, measured in zip(traced.params, leaves, strict=True)
        ]
        start = _Round(
            jnp.int32(0),
            ~jnp.any(finite),
            weights,
            finite,
            zeros,
        )
        start = as_varying(start, like=(passed.value, finite))
        last = jax.lax.while_loop(
            lambda state: ~state.accepted,
            lambda state: self._second(state, clip, groups),
            start,
        )
        aux = jax.tree.unflatten(traced.aux_tree, passed.rest)
        result = MeasuredGradients(
            [replace(leaf, add_up=_formed) for leaf in leaves],
            traced.tree,
            passed.value,
            aux,
            norms_of(leaves),
        )
        return last.sums, result

    @in_float64
    def _zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return jnp.zeros(shape, jnp.promote_types(dtype, self.accumulator))

    def _second(self, state: _Round, clip: Clip, groups: Sequence[int]) -> _Round:
        """Form the sum with the weights of `state`, and judge it by its own norms."""
        # Else a compiler shares the two passes, or moves this one out of the loop, and
        # holds all of its cotangents.
        params, rows, (count, _, weights, finite, _) = jax.lax.optimization_barrier(
            (self.traced.params, self.traced.rows, state._replace(sums=[]))
        )
        rows = [_filled(leaf, finite) for leaf in rows]
        _, leaves = self._pass(params, rows, weights)
        allowed, still_finite = clip.factors(leaves, groups, None)
        kept = [w <= most for w, most in zip(weights, allowed, strict=True)]
        kept_all = reduce(and_, kept)
        finite = finite & still_finite
        lowered = [
            jnp.where(kept_all, w, _lower(w, most, leaf, count, self.slack))
            for w, most, leaf in zip(weights, allowed, leaves, strict=True)
        ]
        # If no example is finite there is none to stand in for the others. (The choice
        # is made here: behind the loop it would take a second copy of the sums.)
        some = jnp.any(finite)
        sums = [
            in_float64(jnp.where)(some, leaf.add_up(weight, None), 0)
            for leaf, weight in zip(leaves, weights, strict=True)
        ]
        accepted = jnp.all(kept_all & still_finite) | ~some
        return _Round(count + 1, accepted, lowered, finite, sums)


@in_float64
def _lower(weight: Any, most: Any, leaf: MeasuredLeaf, count: Any, slack: float) -> Any:
    lower = jnp.minimum(weight, most) * jnp.asarray(1 - slack, weight.dtype)
    usable = (lower >= leaf.smallest_weight) & (count < _LOWERED)
    return jnp.where(usable, lower, jnp.zeros_like(lower))


def _filled(rows: Any, finite: Any) -> Any:
    """The rows, those that are not finite replaced by the first that is."""
    first = jax.lax.dynamic_index_in_dim(rows, jnp.argmax(finite), keepdims=True)
    flags = finite.reshape((-1,) + (1,) * (rows.ndim - 1))
    return jnp.where(flags, rows, first)


def _formed(weights: Any, finite: Any) -> Any:
    raise AssertionError("the sum of a two-pass gradient is formed in its second pass")
