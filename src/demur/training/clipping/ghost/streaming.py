"""Streamed layers: norms and sums formed inside the backward pass.

The fast form keeps the data operand and the cotangent of every layer until all clip
factors are known. A streamed layer keeps neither. Its tap has a derivative rule of its
own: where the cotangent of the output appears, the rule computes the squared norms from
it and the data operand, and from given clip factors the weighted sum. Both arrays end
there, in the body of a scan or a checkpoint too, so that what is rematerialised stays
so. Four numbers for each example and turn leave the body, and one sum for the batch.

A layer can be streamed if its parameter has no other use and each turn of a scan has
its own slice: then squared norms of turns add up. The gradient of a parameter that all
turns share, or that is used twice, is a sum whose terms are at hand at different times.
It is kept in the smaller form, as factors or example by example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend import core

from demur.training.clipping.accumulation import Accumulator
from demur.training.clipping.factored_gradients import FactoredGradients
from demur.training.clipping.ghost.found_routes import Route, Routes
from demur.training.clipping.ghost.layers import Layer, Lookup
from demur.training.clipping.ghost.lookups import measure_lookup, measure_mixed
from demur.training.clipping.norms import MeasuredLeaf, measure, norm_method
from demur.training.clipping.rounding import U64, in_float64, total
from demur.training.devices.varying_axes import as_varying

_NUMBERS = 4  # square, upper, sum_error, mass


def measure_factors(
    factors: FactoredGradients, more: FactoredGradients | None = None
) -> MeasuredLeaf:
    """Norms and sum, of a look-up or of any other layer, or of a look-up and more."""
    if more is not None:
        return measure_mixed(factors, more)
    looked_up = factors.rows is not None
    return measure_lookup(factors) if looked_up else measure(factors)


@dataclass(frozen=True, eq=False)
class StreamedLayer:
    """One layer's rule, and what is known of its sum beforehand.

    `dtype` and `least` are those of its `MeasuredLeaf`, `shape` is that of the
    parameter where it meets the data, `accumulator` the dtype of the sum.
    """

    layer: Layer
    dtype: Any
    least: float
    shape: tuple[int, ...]
    accumulator: Any

    @classmethod
    @in_float64
    def of(cls, layer: Layer, accumulator: Accumulator = "float32") -> StreamedLayer:
        """The rule of this layer; nothing is computed."""
        seen: list[MeasuredLeaf] = []

        def look(data: Any, cotangent: Any) -> Any:
            leaf = measure_factors(layer.factors(data, cotangent, ()))
            seen.append(leaf)
            return layer.restore(leaf.add_up(jnp.ones(1, leaf.dtype), None), ())

        structs = [
            jax.ShapeDtypeStruct((1, *kind.shape), kind.dtype)
            for kind in (layer.other, layer.output)
        ]
        result = jax.eval_shape(look, *structs)
        summed = jnp.promote_types(seen[0].dtype, accumulator)
        return cls(layer, seen[0].dtype, seen[0].least, result.shape, summed)

    def taps(self, lengths: Sequence[int], summed: bool) -> Any:
        """The zeros whose cotangents are the numbers and, if asked for, the sum."""
        zeros = in_float64(jnp.zeros)
        numbers = zeros((*lengths, _NUMBERS), jnp.float64)
        if not summed:
            return numbers, None
        return numbers, zeros((*lengths, *self.shape), self.accumulator)

    def tap(self, output: Any, data: Any, zeros: Any, weight: Any) -> Any:
        """`output`, with the derivative rule; `weight` is this example's."""
        return _streamed(self.layer)(output, data, zeros, weight)

    def measured(
        self, numbers: Any, sums: Any, back: Callable[[Any], Any]
    ) -> MeasuredLeaf:
        """The leaf from what the taps gave: numbers [turns..., B, 3] and the sum."""
        square, upper, error, mass = _over_turns(numbers)

        @in_float64
        def add_up(weights: Any, finite: Any) -> Any:
            return back(sums)  # it was formed with these weights

        return MeasuredLeaf(square, upper, error, self.dtype, add_up, mass, self.least)


@in_float64
def _over_turns(numbers: Any) -> tuple[Any, ...]:
    """Squares of orthogonal parts add up; the bounds are rounded up."""
    flat = jnp.moveaxis(numbers, -2, 0).reshape((numbers.shape[-2], -1, _NUMBERS))
    added = [total(flat[..., number], 1) for number in range(_NUMBERS)]
    grow = 1 + (flat.shape[1] + 16) * U64
    return added[0], *(bound * grow for bound in added[1:])


def _streamed(layer: Layer) -> Callable[..., Any]:
    def over_batch(data: Any, cotangent: Any, weights: Any) -> tuple[Any, Any]:
        """Numbers [B, 3] and, with weights, the sum over the batch."""
        leaf = measure_factors(layer.factors(data, cotangent, ()))
        sums = None
        if weights is not None:
            sums = in_float64(layer.restore)(leaf.add_up(weights, None), ())
        return _stacked(leaf), sums

    @custom_vmap
    def settle(data: Any, cotangent: Any, weight: Any) -> tuple[Any, Any]:
        one = [None if x is None else x[None] for x in (data, cotangent, weight)]
        numbers, sums = over_batch(*one)
        return jax.lax.index_in_dim(numbers, 0, keepdims=False), sums

    @settle.def_vmap
    def _(size: int, batched: Any, *arguments: Any) -> tuple[Any, Any]:
        def spread(value: Any, flag: Any) -> Any:
            if value is None or flag:
                return value
            return jnp.broadcast_to(value, (size, *jnp.shape(value)))

        whole = [spread(x, flag) for x, flag in zip(arguments, batched, strict=True)]
        numbers, sums = over_batch(*whole)
        # The sum is over the whole batch: it has no batch axis any more.
        return (numbers, sums), (True, None if sums is None else False)

    @jax.custom_vjp
    def tap(output: Any, data: Any, zeros: Any, weight: Any) -> Any:
        return output

    def forward(output: Any, data: Any, zeros: Any, weight: Any) -> tuple[Any, Any]:
        return output, (data, weight)

    def backward(kept: tuple[Any, Any], cotangent: Any) -> Any:
        data, weight = kept
        # The pass goes on behind the barrier: else a compiler may put the norms off,
        # and hold the arrays of several layers.
        cotangent, settled = jax.lax.optimization_barrier(
            (cotangent, settle(data, cotangent, weight))
        )
        return cotangent, None, settled, None

    tap.defvjp(forward, backward)
    return tap


@in_float64
def _stacked(leaf: MeasuredLeaf) -> Any:
    error = leaf.sum_error
    if error is None:
        error = jnp.zeros_like(leaf.square)
    numbers = (leaf.square, leaf.upper, error, leaf.mass)
    each = [number[:, None] for number in numbers]
    return jax.lax.concatenate(as_varying(each, like=each), 1)


def streams(route: Route) -> bool:
    """Whether norms and sum of this parameter can be formed in the backward pass."""
    return route.is_plain and all(loop.own_slice for loop in route.sites[0].loops)


def streaming_routes(closed: core.ClosedJaxpr, routes: Routes) -> Routes:
    """The routes, with a parameter that cannot be streamed tapped if that is smaller.

    Its gradients, example by example, are smaller than the factors exactly where their
    norms are found by instantiating them.
    """
    changed = []
    for variable, route in zip(closed.jaxpr.invars, routes.of, strict=False):
        if route.sites and not streams(route) and _instantiated(route):
            route = Route((), route.reason, tapped=variable)
        changed.append(route)
    return routes.with_routes(changed)


def _instantiated(route: Route) -> bool:
    if any(isinstance(site.layer, Lookup) for site in route.sites):
        return False
    return norm_method(*route.form) == "instantiated"
