"""Low-rank adaptation (LoRA): matrices W + scale * left @ right, with W kept.

A loss is a function of whole matrices. Computing left @ right and adding it to W would
be right, and would cost clipping what all of W costs: every example has a gradient of
W's size. So the program of the loss is run with `LowRank` values in place of matrices,
and a product x @ W becomes x @ W + scale * (x @ left) @ right, through transposes,
changes of precision, `jit`, `scan` and `checkpoint`. Wherever else a matrix is used,
it is put together first: the result is the same, at that cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from demur.core import validate
from demur.training.clipping.ghost import inlining
from demur.training.clipping.types import PyTree
from demur.training.finetuning.parts import (
    Choice,
    ModelPart,
    check_distinct,
    check_floats,
    chosen,
    names_of,
)


class _Layout(NamedTuple):
    """Which axis of the whole, from the end, is that of `left`, and of `right`."""

    left: int
    right: int
    scale: float


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["base", "left", "right"],
    meta_fields=["layout"],
)
@dataclass(frozen=True)
class LowRank:
    """`base` + scale * left @ right; axes in front of these two count layers."""

    base: Any
    left: Any
    right: Any
    layout: _Layout

    def whole(self) -> Any:
        """The matrix itself, in the dtype of `base`."""
        added = self.layout.scale * jnp.matmul(self.left, self.right)
        if self.layout.left == -1:
            added = jnp.swapaxes(added, -1, -2)
        return self.base + added.astype(self.base.dtype)

    def as_dtype(self, dtype: Any) -> LowRank:
        """The same in another precision."""
        return LowRank(
            self.base.astype(dtype),
            self.left.astype(dtype),
            self.right.astype(dtype),
            self.layout,
        )

    def transposed(self) -> LowRank:
        """The last two axes exchanged."""
        layout = _Layout(self.layout.right, self.layout.left, self.layout.scale)
        return replace(self, base=jnp.swapaxes(self.base, -1, -2), layout=layout)

    def times(self, x: Any, axes: Sequence[int], contracted: int, dtype: Any) -> Any:
        """What is added to the product of x and `base`: the free axes of x, then ours.

        `axes` of x are summed over, against our axis `contracted`, from the end.
        """
        near, far = self.left, self.right
        if contracted == self.layout.right:
            near, far = far.T, near.T
        inner = jnp.tensordot(x, near.astype(x.dtype), (axes, (0,)))
        outer = jnp.matmul(inner, far.astype(x.dtype))
        return (self.layout.scale * outer).astype(dtype)


def lora(
    params: PyTree,
    *,
    rank: int,
    alpha: float | None = None,
    targets: Choice = "*",
    also: Choice | None = None,
    stacked: int = 0,
    key: Any = None,
) -> ModelPart:
    """Matrices of rank `rank` beside those that `targets` selects, kept as they are.

    They are scaled by alpha / rank; without `alpha` by 1. `left` starts at random (from
    `key`) and `right` at 0, so that the model starts as it is. What `also` selects (a
    new head) is trained as it is, without such matrices. `stacked` axes in front
    count the layers of a scanned model. What is no matrix is left out. Names are keys
    joined by dots.

    >>> params = {"w": jnp.ones((4, 3)), "bias": jnp.zeros(3)}
    >>> part = lora(params, rank=2)
    >>> {name: tuple(a.shape) for name, a in part.params["w"].items()}
    {'left': (4, 2), 'right': (2, 3)}
    >>> bool((part.merge(part.params)["w"] == params["w"]).all())
    True
    """
    validate.count(rank=rank)
    if alpha is not None:
        validate.positive(alpha=alpha)
    leaves, treedef = jax.tree.flatten(params)
    names = names_of(params)
    is_matrix = [_is_matrix(leaf, stacked) for leaf in leaves]
    asked = chosen(names, leaves, targets)
    whole = [False] * len(names) if also is None else chosen(names, leaves, (also,))
    check_floats(names, leaves, whole)
    picked = [
        i
        for i, (a, b, c) in enumerate(zip(asked, is_matrix, whole, strict=True))
        if a and b and not c
    ]
    if not picked:
        there = [name for name, one in zip(names, is_matrix, strict=True) if one]
        raise ValueError(
            f"targets={targets!r} selects no matrix of floating numbers; there are"
            f" {', '.join(there[:8]) or 'none'}{', ...' if len(there) > 8 else ''}"
        )
    check_distinct(names, [i in picked or whole[i] for i in range(len(names))])
    scale = 1.0 if alpha is None else float(alpha) / rank
    keys = jax.random.split(jax.random.key(0) if key is None else key, len(picked))
    trained = {
        names[i]: _start(leaves[i], rank, one)
        for i, one in zip(picked, keys, strict=True)
    }
    trained |= {names[i]: leaves[i] for i, one in enumerate(whole) if one}
    kept = [None if one else leaf for leaf, one in zip(leaves, whole, strict=True)]
    layout = _Layout(-2, -1, scale)

    def together(trained: Mapping[str, Any], frozen: PyTree, merge: bool) -> list[Any]:
        found = [
            trained[name] if one else leaf
            for name, leaf, one in zip(names, frozen, whole, strict=True)
        ]
        for i in picked:
            parts = trained[names[i]]
            low = LowRank(frozen[i], parts["left"], parts["right"], layout)
            found[i] = low.whole() if merge else low
        return found

    def join(trained: Mapping[str, Any], frozen: PyTree) -> PyTree:
        return jax.tree.unflatten(treedef, together(trained, frozen, True))

    def call(
        loss_fn: Callable[..., Any],
        trained: Mapping[str, Any],
        frozen: PyTree,
        *batch: Any,
    ) -> Any:
        flat_batch, batch_tree = jax.tree.flatten(batch)

        def of_leaves(*flat: Any) -> Any:
            model = jax.tree.unflatten(treedef, flat[: len(leaves)])
            rows = jax.tree.unflatten(batch_tree, flat[len(leaves) :])
            return loss_fn(model, *rows)

        parts = together(trained, frozen, False)
        bases = [each.base if isinstance(each, LowRank) else each for each in parts]
        program, shape = jax.make_jaxpr(of_leaves, return_shape=True)(
            *bases, *flat_batch
        )
        operands = [*parts, *flat_batch]
        results = inlining.evaluate(program, operands, _step)
        return jax.tree.unflatten(jax.tree.structure(shape), map(_whole, results))

    terms = {"kind": "lora", "rank": rank, "scale": scale, "stacked": stacked}
    return ModelPart(trained, kept, join, call, terms)


def _is_matrix(leaf: Any, stacked: int) -> bool:
    floats = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    return bool(floats and jnp.ndim(leaf) == stacked + 2)


def _start(leaf: Any, rank: int, key: Any) -> dict[str, Any]:
    *layers, rows, columns = leaf.shape
    left = jax.random.normal(key, (*layers, rows, rank), leaf.dtype)
    return {
        "left": left / math.sqrt(rows),
        "right": jnp.zeros((*layers, rank, columns), leaf.dtype),
    }


# -- running a program with them -------------------------------------------------------


def _whole(value: Any) -> Any:
    return value.whole() if isinstance(value, LowRank) else value


def _is_stacked(value: Any) -> bool:
    return isinstance(value, LowRank) and value.base.ndim > 2


def _step(eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
    """One equation, on arrays and `LowRank` values."""
    if not any(isinstance(operand, LowRank) for operand in operands):
        return inlining.bind(eqn, operands)
    if inlining.is_call(eqn):
        return inlining.evaluate(inlining.body_of(eqn), operands, _step)

    def body(inner: Sequence[Any], _: Any) -> tuple[list[Any], Any]:
        results = inlining.evaluate(inlining.body_of(eqn), inner, _step)
        return [_whole(result) for result in results], None

    if inlining.is_remat(eqn):
        return inlining.rebuilt_remat(eqn, operands, body)[0]
    if inlining.is_scan(eqn):
        consts, carry = inlining.scan_layout(eqn)
        # What is carried must come out as it went in; slices of a matrix are rows.
        carried = [_whole(value) for value in operands[consts : consts + carry]]
        scanned = [
            value if _is_stacked(value) else _whole(value)
            for value in operands[consts + carry :]
        ]
        operands = [*operands[:consts], *carried, *scanned]
        return inlining.rebuilt_scan(eqn, operands, body)[0]
    match eqn.primitive.name:
        case "convert_element_type" if not eqn.params.get("sharding"):
            return [operands[0].as_dtype(eqn.params["new_dtype"])]
        case "transpose" if _exchanges_last(eqn.params["permutation"]):
            return [operands[0].transposed()]
        case "dot_general":
            product = _product(eqn, operands)
            if product is not None:
                return [product]
    return inlining.bind(eqn, [_whole(operand) for operand in operands])


def _exchanges_last(order: Sequence[int]) -> bool:
    n = len(order)
    return tuple(order) == (*range(n - 2), n - 1, n - 2)


def _product(eqn: core.JaxprEqn, operands: list[Any]) -> Any:
    """x @ W for a `LowRank` W without axes of layers; None where there is no rule."""
    contracted, (batch, _) = eqn.params["dimension_numbers"]
    if batch or all(isinstance(operand, LowRank) for operand in operands):
        return None
    first = isinstance(operands[0], LowRank)
    low, x = operands if first else operands[::-1]
    ours, theirs = contracted if first else contracted[::-1]
    if low.base.ndim != 2 or len(ours) != 1:
        return None
    placed = [low.base, x] if first else [x, low.base]
    (product,) = inlining.bind(eqn, placed)
    added = low.times(x, theirs, ours[0] - 2, product.dtype)
    # A product has the free axes of its first operand in front.
    return product + (jnp.moveaxis(added, -1, 0) if first else added)
