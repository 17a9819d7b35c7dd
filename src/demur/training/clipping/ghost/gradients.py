"""Ghost clipping: per-example norms from one forward and one backward pass.

trace one example's loss            inlining
find the layers of each parameter   routes, layers
one pass with taps                  cotangents
norms from the two factors          norms
clip factors, then one contraction  clip_factors, norms
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from demur.training.clipping.accumulation import accumulated
from demur.training.clipping.collectives import check_no_collectives
from demur.training.clipping.factored_gradients import FactoredGradients
from demur.training.clipping.ghost import inlining, transforms
from demur.training.clipping.ghost.cotangents import BackwardPass, tapped_pass
from demur.training.clipping.ghost.found_routes import Route, Routes
from demur.training.clipping.ghost.rearrangements import pull_back
from demur.training.clipping.ghost.routes import find_routes
from demur.training.clipping.ghost.streaming import StreamedLayer, measure_factors
from demur.training.clipping.norms import (
    MeasuredLeaf,
    measure_instantiated,
    side_by_side,
)
from demur.training.clipping.per_example import Loss, MeasuredGradients, norms_of
from demur.training.clipping.rounding import in_float64, sum_of_squares, wide
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
        check_no_collectives(closed)
        self.uses_references = inlining.uses_references(closed)
        self.mixes = any(inlining.mixing_convolutions(closed))
        if self.uses_references:
            return
        self.program = inlining.inlined(closed, *structs)
        self.routes: Routes = find_routes(self.program, len(self.params))
        # Gradients of a kernel with a route are formed here, and not by XLA.
        self.mixes = any(
            id(eqn) not in self.routes.sites
            for eqn in inlining.mixing_convolutions(self.program)
        )


def _factors(route: Route, passed: BackwardPass) -> list[FactoredGradients]:
    """The parameter's factors: those of its look-ups, then those of its products."""
    parts = [
        end.path.apply(
            end.site.layer.factors(
                passed.operands[end.site.number],
                passed.cotangents[end.site.number],
                end.site.loops,
            ),
            passed.others,
        )
        for end in route.ends
    ]
    kinds = [
        [part for part in parts if part.rows is not None],
        [part for part in parts if part.rows is None],
    ]
    return [_joined(same) for same in kinds if same]


def _joined(parts: list[FactoredGradients]) -> FactoredGradients:
    """Positions of several uses, one behind the other."""
    if len(parts) == 1:
        return parts[0]

    def along(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else jnp.concatenate(arrays, axis=2)

    return replace(
        parts[0], left=along("left"), right=along("right"), rows=along("rows")
    )


def _back(route: Route, gradient: Any, restored: bool = False) -> Any:
    if route.ends and not restored:
        (site, path) = route.ends[0].site, route.ends[0].path
        if path.groups is None:
            gradient = site.layer.restore(gradient, site.loops)
        else:
            gradient = transforms.restored(
                gradient, path.groups, route.shape, site.loops
            )
    for eqn, stacked in reversed(route.steps):
        gradient = pull_back(eqn, gradient, stacked)
    return gradient


def measure_leaves(
    traced: Traced,
    routes: Routes,
    passed: BackwardPass,
    streamed: Mapping[int, StreamedLayer] = MappingProxyType({}),
) -> list[MeasuredLeaf]:
    """Each parameter's norms and sum, from one pass."""
    return [
        _measure(route, number, leaf, passed, streamed)
        for number, (route, leaf) in enumerate(
            zip(routes.of, traced.params, strict=True)
        )
    ]


def _measure(
    route: Route,
    number: int,
    leaf: Any,
    passed: BackwardPass,
    streamed: Mapping[int, StreamedLayer],
) -> MeasuredLeaf:
    if not route.sites and route.tapped is None:
        zero = as_varying(jnp.zeros(leaf.shape, wide(leaf.dtype)), like=passed.value)
        nothing, _ = sum_of_squares(passed.value[:, None][:, :0], 1)

        @in_float64
        def nothing_added(weights: Any, finite: Any) -> Any:
            return zero.astype(accumulated(zero.dtype, weights))

        return MeasuredLeaf(nothing, nothing, None, zero.dtype, nothing_added, nothing)
    if route.parts:
        parts = [_measure(part, number, leaf, passed, {}) for part in route.parts]
        return side_by_side(parts)
    if route.sites and route.sites[0].number in streamed:
        site = route.sites[0].number
        numbers, sums = passed.cotangents[site]
        return streamed[site].measured(
            numbers, sums, lambda whole: _back(route, whole, restored=True)
        )
    if route.sites:
        measured = measure_factors(*_factors(route, passed))
    else:
        measured = measure_instantiated(passed.gradients[number])

    @in_float64
    def add_up(weights: Any, finite: Any) -> Any:
        return _back(route, measured.add_up(weights, finite))

    return replace(measured, add_up=add_up)


def ghost_gradients(traced: Traced, spmd_axis_name: Any) -> MeasuredGradients:
    """Each parameter's norms; the values and auxiliary outputs of all examples."""
    passed = tapped_pass(
        traced.program, traced.routes, traced.params, traced.rows, spmd_axis_name
    )
    measured = measure_leaves(traced, traced.routes, passed)
    aux = jax.tree.unflatten(traced.aux_tree, passed.rest)
    return MeasuredGradients(
        measured, traced.tree, passed.value, aux, norms_of(measured)
    )
