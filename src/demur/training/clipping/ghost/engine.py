"""Clipped sums by book-keeping: one forward and one backward pass for the batch.

trace one example's loss            inline
find where parameters meet data     routes, places
one pass with taps                  tapped
norms from the two factors          norms
clip factors, then one contraction  clip_factors, norms
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from demur.training.clipping.factors import Factors
from demur.training.clipping.ghost import inline, places
from demur.training.clipping.ghost.rearrange import pull_back
from demur.training.clipping.ghost.routes import Route, Routes, find_routes
from demur.training.clipping.ghost.rows import measure_rows
from demur.training.clipping.ghost.tapped import Passed, tapped_pass
from demur.training.clipping.norms import Measured, measure, measure_instantiated
from demur.training.clipping.per_example import Found, Loss, norms_of
from demur.training.clipping.rounding import sum_of_squares, wide
from demur.training.devices.varying import struct_of, vary


class Traced:
    """The program of `loss(params, row) -> (value, aux)` and the routes in it."""

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
        self.program = inline.inlined(flat, *structs)
        self.routes: Routes = find_routes(self.program, len(self.params))


def _factors(route: Route, passed: Passed) -> Factors:
    swaps = places.swaps([site.place for site in route.sites])
    if swaps is None:
        raise AssertionError("a route's places line up")
    parts = [
        site.place.factors(
            passed.operands[site.number],
            passed.cotangents[site.number],
            site.loops,
            swap,
        )
        for site, swap in zip(route.sites, swaps, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    return Factors(
        jnp.concatenate([part.left for part in parts], axis=2),
        jnp.concatenate([part.right for part in parts], axis=2),
        parts[0].precision,
    )


def _back(route: Route, gradient: Any) -> Any:
    if route.sites:
        site = route.sites[0]
        gradient = site.place.restore(gradient, site.loops)
    for eqn, stacked in reversed(route.steps):
        gradient = pull_back(eqn, gradient, stacked)
    return gradient


def _measure(route: Route, number: int, leaf: Any, passed: Passed) -> Measured:
    if not route.sites and route.tapped is None:
        zero = vary(jnp.zeros(leaf.shape, wide(leaf.dtype)), like=passed.value)
        nothing, _ = sum_of_squares(passed.value[:, None][:, :0], 1)
        return Measured(nothing, nothing, None, zero.dtype, lambda *_: zero)
    if route.sites:
        factors = _factors(route, passed)
        by_rows = factors.rows is not None
        found = measure_rows(factors) if by_rows else measure(factors)
    else:
        found = measure_instantiated(passed.gradients[number])
    return replace(
        found, add_up=lambda weights, fine: _back(route, found.add_up(weights, fine))
    )


def measured_by_ghost(loss: Loss, params: Any, rows: Any, spmd_axis_name: Any) -> Found:
    """Each parameter's norms; the values and auxiliary outputs of all examples."""
    traced = Traced(loss, params, rows)
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
    return Found(measured, traced.tree, passed.value, aux, norms_of(measured))
