"""What the book-keeping does with each parameter, and why, for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from demur.training.clipping.ghost import places
from demur.training.clipping.ghost.convolution import Convolution
from demur.training.clipping.ghost.engine import Traced
from demur.training.clipping.ghost.routes import Route, Site
from demur.training.clipping.norms import way_of
from demur.training.clipping.per_example import Loss


@dataclass(frozen=True)
class Leaf:
    """One parameter: `way` is how its norms are found, `reason` why."""

    name: str
    shape: tuple[int, ...]
    way: str
    reason: str


@dataclass(frozen=True)
class Explanation:
    """One line for each parameter; `str` is a table."""

    leaves: tuple[Leaf, ...]

    def __str__(self) -> str:
        rows = [("parameter", "shape", "norms", "because")]
        rows += [
            (leaf.name, "x".join(map(str, leaf.shape)) or "()", leaf.way, leaf.reason)
            for leaf in self.leaves
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in rows
        )


def _named(params: Any) -> list[tuple[str, tuple[int, ...]]]:
    found = jax.tree_util.tree_flatten_with_path(params)[0]
    return [
        (jax.tree_util.keystr(path) or "params", leaf.shape) for path, leaf in found
    ]


def _form(site: Site) -> tuple[int, int, int]:
    """The sizes T, I, O of a site's factors."""
    place, loops = site.place, site.loops
    turns = math.prod(loop.length for loop in loops if not loop.own_slice)
    if isinstance(place, places.Product):
        size = place.other.shape
        return (
            turns * math.prod(size[axis] for axis in place.data_free),
            math.prod(size[axis] for axis in place.data_contracted),
            math.prod(place.shape[axis] for axis in place.free),
        )
    if isinstance(place, Convolution):
        spec = place.params["dimension_numbers"]
        groups = place.params["feature_group_count"]
        outputs = place.output.shape
        pixels = math.prod(outputs) // outputs[spec.out_spec[1]]
        kernel = place.kernel[spec.rhs_spec[1]] * math.prod(place.window)
        return turns * pixels, kernel, outputs[spec.out_spec[1]] // groups
    width = math.prod(place.output.shape[axis] for axis in place.offsets)
    return (
        turns * math.prod(place.output.shape) // max(width, 1),
        place.shape[place.axis],
        width,
    )


def _leaf(name: str, shape: tuple[int, ...], route: Route) -> Leaf:
    if route.tapped is not None:
        return Leaf(name, shape, "per example", route.reason)
    if not route.sites:
        return Leaf(name, shape, "zero", "the loss does not depend on it")
    site = route.sites[0]
    forms = [_form(site) for site in route.sites]
    positions, inputs, outputs = sum(form[0] for form in forms), *forms[0][1:]
    uses = "" if len(forms) == 1 else f" x {len(forms)} uses"
    reason = f"{route.reason}{uses}: T={positions}, {inputs} x {outputs}"
    if isinstance(site.place, places.Lookup):
        return Leaf(name, shape, "equal rows", reason)
    return Leaf(name, shape, way_of(positions, inputs, outputs), reason)


def explain(loss: Loss, params: Any, rows: Any) -> Explanation:
    """What `method="auto"` does."""
    routes = Traced(loss, params, rows).routes.of
    return Explanation(
        tuple(
            _leaf(name, shape, route)
            for (name, shape), route in zip(_named(params), routes, strict=True)
        )
    )


def explain_vmap(loss: Loss, params: Any, rows: Any) -> Explanation:
    """What `method="vmap"`, or a transform of each gradient, does."""
    reason = 'method="vmap", or a pre_clipping_transform'
    return Explanation(
        tuple(
            Leaf(name, shape, "per example", reason) for name, shape in _named(params)
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
    found: list[Explanation] = []

    def run(arrays: dict[int, Any]) -> Any:
        whole = [arrays.get(number, leaf) for number, leaf in enumerate(leaves)]
        found.append(look(*jax.tree.unflatten(tree, whole)))
        return jnp.zeros(())

    jax.eval_shape(run, arrays)
    return found[0]
