"""Explanations: how ghost clipping treats each parameter, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from demur.training.clipping.ghost import layers
from demur.training.clipping.ghost.found_routes import Route
from demur.training.clipping.ghost.gradients import Traced
from demur.training.clipping.ghost.memory import Form, Memory, form_for, held_bytes
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
class CompiledMemory:
    """XLA's figures for temporary memory, in bytes: the ordinary gradient of the summed
    loss, and the clipped sum in its two forms."""

    gradient: int
    fast: int
    ordinary: int


@dataclass(frozen=True)
class MemoryExplanation:
    """The form that is taken, and the bytes that the fast form would hold."""

    form: Form
    held: int
    compiled: CompiledMemory | None = None

    def __str__(self) -> str:
        text = (
            f"memory: {self.form} form; the fast form holds {_size(self.held)} until"
            " the sum"
        )
        if self.compiled is None:
            return text
        figures = self.compiled
        return (
            f"{text}\nXLA's temporary memory: {_size(figures.gradient)} for the"
            f" ordinary gradient, {_size(figures.fast)} for the fast form,"
            f" {_size(figures.ordinary)} for the ordinary form"
        )


def _size(count: float) -> str:
    for name in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {name}"
        count /= 1024
    return f"{count:.4g} GiB"


@dataclass(frozen=True)
class Explanation:
    """One line for each parameter, and the form that is taken; `str` is a table."""

    leaves: tuple[LeafExplanation, ...]
    memory: MemoryExplanation | None = None

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
        lines = [
            "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in rows
        ]
        if self.memory is not None:
            lines.append(str(self.memory))
        return "\n".join(lines)


def named_leaves(params: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of every leaf."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return [
        (jax.tree_util.keystr(path) or "params", jnp.shape(leaf))
        for path, leaf in leaves
    ]


def _leaf(name: str, shape: tuple[int, ...], route: Route) -> LeafExplanation:
    if route.tapped is not None:
        return LeafExplanation(name, shape, "per example", route.reason)
    if not route.sites:
        return LeafExplanation(name, shape, "zero", "the loss does not depend on it")
    positions, inputs, outputs = route.form
    count = len(route.ends)
    uses = f" x {count} uses" if count > 1 else ""
    reason = f"{route.reason}{uses}: T={positions}, {inputs} x {outputs}"
    if route.is_looked_up:
        return LeafExplanation(name, shape, "equal rows", reason)
    if any(isinstance(site.layer, layers.Lookup) for site in route.sites):
        return LeafExplanation(name, shape, "rows and Gram", reason)
    if any(end.path.masked for end in route.all_ends):
        return LeafExplanation(name, shape, "a few at a time", reason)
    layer = route.sites[0].layer
    method = norm_method(
        positions, inputs, outputs, layer.output.dtype, layer.precision
    )
    return LeafExplanation(name, shape, method, reason)


def explain(
    loss: Loss, params: Any, rows: Any, memory: Memory, size: int
) -> Explanation:
    """How `method="auto"` computes each parameter's norms, `size` rows at a time."""
    traced = Traced(loss, params, rows)
    if traced.uses_references:
        return _all_per_example(params, "the loss reads or writes a jax.Ref")
    if traced.mixes:
        return _all_per_example(params, "one by one: a float64 convolution on a CPU")
    routes, held = traced.routes.of, held_bytes(traced) * size
    return Explanation(
        tuple(
            _leaf(name, shape, route)
            for (name, shape), route in zip(named_leaves(params), routes, strict=True)
        ),
        MemoryExplanation(form_for(memory, held), held),
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


Call = Callable[[Sequence[Any], dict[str, Any]], Any]


def only_shapes(look: Call, args: Sequence[Any], named: dict[str, Any]) -> Any:
    """`look(args, named)` with abstract arrays: nothing is computed or read."""
    results: list[Any] = []

    def run(args: Sequence[Any], named: dict[str, Any]) -> Any:
        results.append(look(args, named))
        return jnp.zeros(())

    function, arrays = _of_arrays(run, args, named)
    jax.eval_shape(function, arrays)
    return results[0]


def temporary_bytes(call: Call, args: Sequence[Any], named: dict[str, Any]) -> int:
    """XLA's figure for the temporary memory of `call(args, named)`: it compiles."""
    function, arrays = _of_arrays(call, args, named)
    figures: Any = jax.jit(function).lower(arrays).compile().memory_analysis()
    return int(figures.temp_size_in_bytes)


def _of_arrays(
    call: Call, args: Sequence[Any], named: dict[str, Any]
) -> tuple[Callable[[dict[int, Any]], Any], dict[int, Any]]:
    """`call` as a function of its array arguments, and their shapes."""
    leaves, tree = jax.tree.flatten((list(args), named))
    arrays = {
        number: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for number, leaf in enumerate(leaves)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    }

    def run(arrays: dict[int, Any]) -> Any:
        whole = [arrays.get(number, leaf) for number, leaf in enumerate(leaves)]
        return call(*jax.tree.unflatten(tree, whole))

    return run, arrays
