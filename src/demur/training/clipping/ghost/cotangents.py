"""Cotangents at taps: one backward pass that returns them instead of gradients.

A tap is a zero that is added to a value; the derivative with respect to it is the
cotangent of that value. The zeros are never computed with: `_tap` returns its first
operand and has the derivative of a sum, so nothing is added and, inside a scan, no
zeros are stored. The tap of a streamed layer (`streaming`) returns norms and a sum
instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from demur.training.clipping.ghost import inlining
from demur.training.clipping.ghost.found_routes import Routes, Site
from demur.training.clipping.ghost.inlining import kind_of
from demur.training.clipping.ghost.streaming import StreamedLayer
from demur.training.devices.varying_axes import as_varying


@jax.custom_jvp
def _tap(value: Any, zero: Any) -> Any:
    return value


@_tap.defjvp
def _tap_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[0], tangents[0] + tangents[1]


class BackwardPass(NamedTuple):
    """What one pass returns: outputs, the data operand and cotangent of each site, the
    per-example gradient of each tapped parameter, by its number, and the other operand
    of each step by which a weight is made of parameters.

    The cotangent at a streamed site is the pair of its numbers and its sum."""

    value: Any
    rest: list[Any]
    operands: dict[int, Any]
    cotangents: dict[int, Any]
    gradients: dict[int, Any]
    others: dict[int, Any]


def _forward(
    closed: core.ClosedJaxpr,
    routes: Routes,
    arguments: Sequence[Any],
    site_taps: dict[int, Any],
    value_taps: dict[core.Var, Any],
    streamed: Mapping[int, StreamedLayer],
    weights: Mapping[int, Any],
) -> tuple[list[Any], tuple[dict[int, Any], dict[int, Any]]]:
    operands: dict[int, Any] = {}
    others: dict[int, Any] = {}

    def step(eqn: core.JaxprEqn, inputs: list[Any]) -> list[Any]:
        sites = routes.inside.get(id(eqn))
        if sites is not None:
            return _region(eqn, sites, inputs)
        for made in routes.steps.get(id(eqn), ()):
            assert made.other is not None
            others[made.number] = jax.lax.stop_gradient(inputs[made.other])
        results = inlining.bind(eqn, inputs)
        site = routes.sites.get(id(eqn))
        if site is None:
            return results
        # stop_gradient: else a scan would carry the (zero) cotangents of these back.
        data = jax.lax.stop_gradient(inputs[site.layer.data_position])
        number, zeros = site.number, site_taps[site.number]
        if number in streamed:
            rule, weight = streamed[number], weights.get(number)
            return [rule.tap(results[0], data, zeros, weight)]
        operands[number] = data
        return [_tap(results[0], zeros)]

    def _region(eqn: core.JaxprEqn, sites: list[Site], inputs: list[Any]) -> list[Any]:
        def body(inner: Sequence[Any], taps: Any) -> tuple[list[Any], Any]:
            program = inlining.body_of(eqn)
            return _forward(program, routes, inner, taps, {}, streamed, weights)

        rebuilt = (
            inlining.rebuilt_scan if inlining.is_scan(eqn) else inlining.rebuilt_remat
        )
        taps = {site.number: site_taps[site.number] for site in sites}
        results, (inner_operands, inner_others) = rebuilt(eqn, inputs, body, taps)
        operands.update(inner_operands)
        others.update(inner_others)
        return results

    def mark(variable: core.Var, value: Any) -> Any:
        tap = value_taps.get(variable)
        return value if tap is None else _tap(value, tap)

    return inlining.evaluate(closed, arguments, step, mark), (operands, others)


def tapped_pass(
    closed: core.ClosedJaxpr,
    routes: Routes,
    parameters: Sequence[Any],
    data: Sequence[Any],
    spmd_axis_name: Any,
    streamed: Mapping[int, StreamedLayer] = MappingProxyType({}),
    weights: Mapping[int, Any] = MappingProxyType({}),
) -> BackwardPass:
    """Forward and backward once over a batch; the parameters are not batched.

    `streamed` has the rules of the sites that are streamed, `weights` their clip
    factors [B]; without weights there are norms and no sums.
    """
    tapped = {
        number: route.tapped
        for number, route in enumerate(routes.of)
        if route.tapped is not None
    }
    depth = {site.number: len(site.loops) for site in routes.all_sites}
    zeros = {site.number: _zeros(site, streamed, weights) for site in routes.all_sites}
    values = {
        number: jnp.zeros(kind_of(variable).shape, kind_of(variable).dtype)
        for number, variable in tapped.items()
    }
    zeros, values = as_varying((zeros, values), like=(parameters, data))

    def one_example(example: Sequence[Any], weights: Any) -> BackwardPass:
        def loss(taps: tuple[dict[int, Any], dict[int, Any]]) -> tuple[Any, Any]:
            at_values = {tapped[number]: zero for number, zero in taps[1].items()}
            results, seen = _forward(
                closed,
                routes,
                [*parameters, *example],
                taps[0],
                at_values,
                streamed,
                weights,
            )
            return results[0], (results[1:], seen)

        value, back, (rest, (operands, others)) = jax.vjp(
            loss, (zeros, values), has_aux=True
        )
        ((cotangents, gradients),) = back(jnp.ones_like(value))
        return BackwardPass(value, rest, operands, cotangents, gradients, others)

    # Inside scans the batch stands behind the scanned axes: no transposed copies.
    kept = {number: at for number, at in depth.items() if number not in streamed}
    cotangents = {
        number: (at, None) if number in streamed else at for number, at in depth.items()
    }
    axes: Any = BackwardPass(0, 0, kept, cotangents, 0, None)  # type: ignore[arg-type]
    return jax.vmap(one_example, out_axes=axes, spmd_axis_name=spmd_axis_name)(
        list(data), dict(weights)
    )


def _zeros(
    site: Site, streamed: Mapping[int, StreamedLayer], weights: Mapping[int, Any]
) -> Any:
    lengths = [loop.length for loop in site.loops]
    if site.number in streamed:
        return streamed[site.number].taps(lengths, summed=site.number in weights)
    output = site.layer.output
    return jnp.zeros((*lengths, *output.shape), output.dtype)
