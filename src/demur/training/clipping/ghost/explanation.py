"""Explanations: how ghost clipping treats each parameter, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from demur.training.clipping.ghost import layers
from demur.training.clipping.ghost.convolution import Convolution
from demur.training.clipping.ghost.gradients import Traced
from demur.training.clipping.ghost.routes import Route, Site
from demur.training.clipping.norms import norm_method
from demur.training.clipping.per_example import Loss


@dataclass(frozen=True)
class LeafExplanation:
    """One parameter: `method` is how its norms are computed, `reason` why."""

    name: str
    shape: tuple[int, ...]
    method: str
    reason: str


@dataclass(frozen=True)
class Explanation:
    """One line for each parameter; `str` is a table."""

    leaves: tuple[LeafExplanation, ...]

    def __str__(self) -> str:
        rows = [("parameter", "shape", "norms", "because")]
        rows += [
            (
                leaf.name,
                "x".join(map(str, leaf.shape)) or "()",
                leaf.method,
                leaf.reason,
            )
            for leaf in self.leaves
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in rows
        )


def named_leaves(params: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of every leaf."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return [
        (jax.tree_util.keystr(path) or "params", jnp.shape(leaf))
        for path, leaf in leaves
    ]


def _form(site: Site) -> tuple[int, int, int]:
    """The sizes T, I, O of a site's factors."""
    layer, loops = site.layer, site.loops
    turns = math.prod(loop.length for loop in loops if not loop.own_slice)
    if isinstance(layer, layers.Product):
        size = layer.other.shape
        return (
            turns * math.prod(size[axis] for axis in layer.data_axes.free),
            math.prod(size[axis] for axis in layer.data_axes.contracted),
            math.prod(layer.shape[axis] for axis in layer.axes.free),
        )
    if isinstance(layer, Convolution):
        spec = layer.params["dimension_numbers"]
        groups = layer.params["feature_group_count"]
        outputs = layer.output.shape
        pixels = math.prod(outputs) // outputs[spec.out_spec[1]]
        kernel = layer.kernel[spec.rhs_spec[1]] * math.prod(layer.window)
        return turns * pixels, kernel, outputs[spec.out_spec[1]] // groups
    width = math.prod(layer.output.shape[axis] for axis in layer.offsets)
    return (
        turns * math.prod(layer.output.shape) // max(width, 1),
        layer.shape[layer.axis],
        width,
    )


def _leaf(name: str, shape: tuple[int, ...], route: Route) -> LeafExplanation:
    if route.tapped is not None:
        return LeafExplanation(name, shape, "per example", route.reason)
    if not route.sites:
        return LeafExplanation(name, shape, "zero", "the loss does not depend on it")
    site = route.sites[0]
    forms = [_form(site) for site in route.sites]
    positions, inputs, outputs = sum(form[0] for form in forms), *forms[0][1:]
    uses = "" if len(forms) == 1 else f" x {len(forms)} uses"
    reason = f"{route.reason}{uses}: T={positions}, {inputs} x {outputs}"
    if isinstance(site.layer, layers.Lookup):
        return LeafExplanation(name, shape, "equal rows", reason)
    method = norm_method(positions, inputs, outputs)
    return LeafExplanation(name, shape, method, reason)


def explain(loss: Loss, params: Any, rows: Any) -> Explanation:
    """How `method="auto"` computes each parameter's norms."""
    traced = Traced(loss, params, rows)
    if traced.uses_references:
        return _all_per_example(params, "the loss reads or writes a jax.Ref")
    routes = traced.routes.of
    return Explanation(
        tuple(
            _leaf(name, shape, route)
            for (name, shape), route in zip(named_leaves(params), routes, strict=True)
        )
    )


def explain_vmap(loss: Loss, params: Any, rows: Any) -> Explanation:
    """The same for `method="vmap"`, or for a transform of each gradient."""
    return _all_per_example(params, 'method="vmap", or a pre_clipping_transform')


def _all_per_example(params: Any, reason: str) -> Explanation:
    return Explanation(
        tuple(
            LeafExplanation(name, shape, "per example", reason)
            for name, shape in named_leaves(params)
        )
    )


def only_shapes(
    look: Callable[[Sequence[Any], dict[str, Any]], Explanation],
    args: Sequence[Any],
    named: dict[str, Any],
) -> Explanation:
    """`look(args, named)` with abstract arrays: nothing is computed or read."""
    leaves, tree = jax.tree.flatten((list(args), named))
    arrays = {
        number: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for number, leaf in enumerate(leaves)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    }
    explanations: list[Explanation] = []

    def run(arrays: dict[int, Any]) -> Any:
        whole = [arrays.get(number, leaf) for number, leaf in enumerate(leaves)]
        explanations.append(look(*jax.tree.unflatten(tree, whole)))
        return jnp.zeros(())

    jax.eval_shape(run, arrays)
    return explanations[0]
