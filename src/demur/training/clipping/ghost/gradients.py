"""Ghost clipping: per-example norms from one forward and one backward pass.

trace one example's loss            inlining
find the layers of each parameter   routes, layers
one pass with taps                  cotangents
norms from the two factors          norms
clip factors, then one contraction  clip_factors, norms
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from demur.training.clipping.factored_gradients import FactoredGradients
from demur.training.clipping.ghost import inlining, layers
from demur.training.clipping.ghost.cotangents import BackwardPass, tapped_pass
from demur.training.clipping.ghost.lookups import measure_lookup
from demur.training.clipping.ghost.rearrangements import pull_back
from demur.training.clipping.ghost.routes import Route, Routes, find_routes
from demur.training.clipping.norms import MeasuredLeaf, measure, measure_instantiated
from demur.training.clipping.per_example import (
    Loss,
    MeasuredGradients,
    norms_of,
    vmap_gradients,
)
from demur.training.clipping.rounding import sum_of_squares, wide
from demur.training.devices.varying_axes import as_varying, struct_of


class Traced:
    """The program of `loss(params, row) -> (value, aux)` and the routes in it.

    There are no routes through references (`jax.new_ref`): a loss with
    `uses_references` is differentiated example by example.
    """

    def __init__(self, loss: Loss, params: Any, rows: Any) -> None:
        self.params, self.tree = jax.tree.flatten(params)
        self.rows, rows_tree = jax.tree.flatten(rows)
        self.aux_tree: Any = None

        def flat(*arguments: Any) -> list[Any]:
            cut = len(self.params)
            value, aux = loss(
                jax.tree.unflatten(self.tree, arguments[:cut]),
                jax.tree.unflatten(rows_tree, arguments[cut:]),
            )
            leaves, self.aux_tree = jax.tree.flatten(aux)
            return [value, *leaves]

        structs = [struct_of(leaf) for leaf in self.params]
        structs += [struct_of(leaf, row=True) for leaf in self.rows]
        closed = jax.make_jaxpr(flat)(*structs)
        self.uses_references = inlining.uses_references(closed)
        if self.uses_references:
            return
        self.program = inlining.inlined(closed, *structs)
        self.routes: Routes = find_routes(self.program, len(self.params))


def _factors(route: Route, passed: BackwardPass) -> FactoredGradients:
    swaps = layers.swaps([site.layer for site in route.sites])
    if swaps is None:
        raise AssertionError("the layers of a route line up")
    parts = [
        site.layer.factors(
            passed.operands[site.number],
            passed.cotangents[site.number],
            site.loops,
            swap,
        )
        for site, swap in zip(route.sites, swaps, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    return FactoredGradients(
        jnp.concatenate([part.left for part in parts], axis=2),
        jnp.concatenate([part.right for part in parts], axis=2),
        parts[0].precision,
    )


def _back(route: Route, gradient: Any) -> Any:
    if route.sites:
        site = route.sites[0]
        gradient = site.layer.restore(gradient, site.loops)
    for eqn, stacked in reversed(route.steps):
        gradient = pull_back(eqn, gradient, stacked)
    return gradient


def _measure(
    route: Route, number: int, leaf: Any, passed: BackwardPass
) -> MeasuredLeaf:
    if not route.sites and route.tapped is None:
        zero = as_varying(jnp.zeros(leaf.shape, wide(leaf.dtype)), like=passed.value)
        nothing, _ = sum_of_squares(passed.value[:, None][:, :0], 1)
        return MeasuredLeaf(nothing, nothing, None, zero.dtype, lambda *_: zero)
    if route.sites:
        factors = _factors(route, passed)
        looked_up = factors.rows is not None
        measured = measure_lookup(factors) if looked_up else measure(factors)
    else:
        measured = measure_instantiated(passed.gradients[number])

    def add_up(weights: Any, finite: Any) -> Any:
        return _back(route, measured.add_up(weights, finite))

    return replace(measured, add_up=add_up)


def ghost_gradients(
    loss: Loss, params: Any, rows: Any, spmd_axis_name: Any
) -> MeasuredGradients:
    """Each parameter's norms; the values and auxiliary outputs of all examples."""
    traced = Traced(loss, params, rows)
    if traced.uses_references:
        return vmap_gradients(loss, params, rows, None, spmd_axis_name)
    passed = tapped_pass(
        traced.program, traced.routes, traced.params, traced.rows, spmd_axis_name
    )
    measured = [
        _measure(route, number, leaf, passed)
        for number, (route, leaf) in enumerate(
            zip(traced.routes.of, traced.params, strict=True)
        )
    ]
    aux = jax.tree.unflatten(traced.aux_tree, passed.rest)
    return MeasuredGradients(
        measured, traced.tree, passed.value, aux, norms_of(measured)
    )
