"""Collectives in a loss: sums over the devices or members around it, which mix them.

Inside `shard_map`, `pmap` or a `vmap` with a name, a loss can add up values over the
shards or members (`jax.lax.pmean(hidden, "data")`, batch normalisation that is
synchronised between devices). Then the gradient of an example depends on examples of
other shards. Each gradient would be clipped, but one example more would move all the
others, and no bound on the sum follows. Where the shards hold parts of the parameters
instead, each would clip its part by itself. So a loss with such an operation is
refused, whatever the axis.

An operation over an axis that the loss binds itself (a `vmap` or `shard_map` in it)
stays inside of one example.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any

from jax.extend import core

# These name an axis and bring nothing over from other shards.
_HARMLESS = {"axis_index", "pvary", "pcast", "axis_size"}
_NAMES = ("axes", "axis_name")


def check_no_collectives(closed: core.ClosedJaxpr) -> None:
    """Refuse the program of a loss that combines values over devices or members."""
    for name, axis in _collectives(closed.jaxpr, frozenset()):
        raise ValueError(
            f"the loss uses {name} over the axis {axis!r} around it, so the gradient of"
            " an example depends on other shards or members, and clipping it bounds"
            " nothing. Take the operation out of the loss; sums over shards are added"
            " after clipping, by total.psum(axis). Nothing was drawn."
        )


def _collectives(jaxpr: core.Jaxpr, bound: frozenset[Any]) -> Iterator[tuple[str, Any]]:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name not in _HARMLESS:
            for axis in _axes(eqn):
                if axis not in bound:
                    yield name, axis
        inner = bound
        if name == "shard_map":
            inner |= frozenset(eqn.params["mesh"].axis_names)
        for value in eqn.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                part = getattr(part, "jaxpr", part)
                if isinstance(part, core.Jaxpr):
                    yield from _collectives(part, inner)


def _axes(eqn: core.JaxprEqn) -> list[Any]:
    """The axes that an equation names; those it counts are its operands' own."""
    found: list[Any] = []
    for key in _NAMES:
        named = eqn.params.get(key, ())
        found += named if isinstance(named, tuple | list) else [named]
    return [axis for axis in found if axis is not None and not _is_number(axis)]


def _is_number(axis: Any) -> bool:
    return isinstance(axis, numbers.Integral)
