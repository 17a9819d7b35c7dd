"""Layers with a rule: equations of a parameter and data, and the gradient there.

Each layer brings its gradient to one form. With b an example, s an index that the
parameter shares with the data (a batch axis of a product, a group of a convolution, a
turn of a scan over stacked layers) and t a position that is summed over (a token, a
pixel, a turn of a recurrence),

    G_b[s, i, o] = sum over t of left_b[s, t, i] right_b[s, t, o]

where left comes from the data operand and right is the cotangent of the layer's
output:

| layer       | t               | left                         | right          |
|-------------|-----------------|------------------------------|----------------|
| product     | free axes of x  | x, contracted axes           | free axes of W |
| convolution | output pixels   | the patch under the kernel   | channels       |
| look-up     | looked-up rows  | the row's number, as one-hot | the row        |

The numbers of a look-up are kept as integers instead of one-hot vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from demur.training.clipping.factored_gradients import (
    FactoredGradients,
    ScanLoop,
    grouped,
)
from demur.training.clipping.ghost.convolution import Convolution
from demur.training.clipping.ghost.inlining import kind_of


@dataclass(frozen=True)
class Axes:
    """The axes of one operand of a product, by what happens to them."""

    contracted: tuple[int, ...]
    batched: tuple[int, ...]
    free: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Product:
    """`dot_general` of a parameter and data."""

    axes: Axes  # of the parameter
    data_axes: Axes
    parameter_first: bool
    shape: tuple[int, ...]
    precision: Any
    output: Any
    other: Any

    @property
    def data_position(self) -> int:
        """Which operand is the data."""
        return 1 if self.parameter_first else 0

    def factors(
        self, data: Any, cotangent: Any, loops: Sequence[ScanLoop]
    ) -> FactoredGradients:
        """The two factors."""
        own, of_data = self.axes, self.data_axes
        s, t, o = len(own.batched), len(of_data.free), len(own.free)
        batch = range(s)
        if self.parameter_first:
            free, position = range(s, s + o), range(s + o, s + o + t)
        else:
            position, free = range(s, s + t), range(s + t, s + t + o)
        left = grouped(data, loops, (of_data.batched, of_data.free, of_data.contracted))
        right = grouped(cotangent, loops, (batch, position, free))
        return FactoredGradients(left, right, self.precision)

    def restore(self, gradient: Any, loops: Sequence[ScanLoop]) -> Any:
        """G [S, I, O] in the parameter's own shape, stacked axes in front."""
        stack = [loop.length for loop in loops if loop.own_slice]
        order = [*self.axes.batched, *self.axes.contracted, *self.axes.free]
        gradient = gradient.reshape((*stack, *(self.shape[axis] for axis in order)))
        back = sorted(range(len(order)), key=order.__getitem__)
        lead = len(stack)
        return jnp.transpose(gradient, [*range(lead), *(lead + axis for axis in back)])


@dataclass(frozen=True, eq=False)
class Lookup:
    """`gather` of whole rows of a parameter along one axis."""

    axis: int
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    clipped: bool
    output: Any
    other: Any
    precision = None
    data_position = 1

    def factors(
        self, data: Any, cotangent: Any, loops: Sequence[ScanLoop]
    ) -> FactoredGradients:
        """Row numbers against the rows' cotangents.

        A number outside the table is clipped or takes no part, as in JAX's derivative:
        plain indexing reads the nearest row there, and gives it no gradient.
        """
        size = self.shape[self.axis]
        numbers = data[..., 0]
        # A byte may end before the table does.
        largest = min(size - 1, int(np.iinfo(numbers.dtype).max))
        if self.clipped:
            numbers = jnp.clip(numbers, 0, largest)
        else:
            inside = (numbers >= 0) & (numbers <= largest)
            numbers = jnp.where(inside, numbers.astype(jnp.int32), -1)
        rank = len(self.output.shape)
        looked_up = [axis for axis in range(rank) if axis not in self.offsets]
        right = grouped(cotangent, loops, ([], looked_up, list(self.offsets)))
        rows = grouped(numbers, loops, ([], range(len(looked_up)), []))
        return FactoredGradients(None, right, rows=rows[..., 0], table=size)

    def restore(self, gradient: Any, loops: Sequence[ScanLoop]) -> Any:
        """G [S, rows, row] in the shape of the table, stacked axes in front."""
        stack = [loop.length for loop in loops if loop.own_slice]
        rest = [n for axis, n in enumerate(self.shape) if axis != self.axis]
        gradient = gradient.reshape((*stack, self.shape[self.axis], *rest))
        return jnp.moveaxis(gradient, len(stack), len(stack) + self.axis)


Layer: TypeAlias = Product | Convolution | Lookup


def recognise(eqn: core.JaxprEqn, position: int) -> Layer | None:
    """The layer this equation is for its operand at `position`, if it has a rule."""
    name = eqn.primitive.name
    parameter = kind_of(eqn.invars[position])
    other = kind_of(eqn.invars[1 - position])
    out: Any = eqn.outvars[0].aval
    if jnp.issubdtype(out.dtype, jnp.complexfloating):
        return None  # a real parameter's gradient is but the real part of a product
    if name == "dot_general":
        return _product(eqn, position, parameter, other)
    if name == "conv_general_dilated" and position == 1:
        if eqn.params["batch_group_count"] != 1 or not out.size:
            return None  # of an image smaller than the window there are no patches
        return Convolution(eqn.params, parameter.shape, eqn.outvars[0].aval, other)
    if name == "gather" and position == 0:
        return _lookup(eqn, parameter, other)
    return None


def _product(eqn: core.JaxprEqn, position: int, parameter: Any, other: Any) -> Layer:
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    sides = [(tuple(left), tuple(left_batch)), (tuple(right), tuple(right_batch))]

    def axes(rank: int, contracted: tuple[int, ...], batched: tuple[int, ...]) -> Axes:
        taken = contracted + batched
        free = tuple(axis for axis in range(rank) if axis not in taken)
        return Axes(contracted, batched, free)

    return Product(
        axes(parameter.ndim, *sides[position]),
        axes(other.ndim, *sides[1 - position]),
        position == 0,
        parameter.shape,
        eqn.params["precision"],
        eqn.outvars[0].aval,
        other,
    )


def _lookup(eqn: core.JaxprEqn, parameter: Any, other: Any) -> Layer | None:
    spec, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    if spec.operand_batching_dims or len(spec.start_index_map) != 1:
        return None
    (axis,) = spec.start_index_map
    if tuple(spec.collapsed_slice_dims) != (axis,):
        return None
    whole = [n for i, n in enumerate(parameter.shape) if i != axis]
    if [n for i, n in enumerate(sizes) if i != axis] != whole or sizes[axis] != 1:
        return None
    clipped = eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP
    return Lookup(
        axis,
        parameter.shape,
        tuple(spec.offset_dims),
        clipped,
        eqn.outvars[0].aval,
        other,
    )


def describe(layer: Layer) -> str:
    """The kind of a layer, in words."""
    return {Product: "product", Convolution: "convolution", Lookup: "look-up"}[
        type(layer)
    ]


def form_of(layer: Layer, loops: Sequence[ScanLoop]) -> tuple[int, int, int]:
    """The sizes T, I, O of the layer's factors."""
    turns = math.prod(loop.length for loop in loops if not loop.own_slice)
    if isinstance(layer, Product):
        size = layer.other.shape
        return (
            turns * math.prod(size[axis] for axis in layer.data_axes.free),
            math.prod(size[axis] for axis in layer.data_axes.contracted),
            math.prod(layer.shape[axis] for axis in layer.axes.free),
        )
    if isinstance(layer, Convolution):
        positions, inputs, outputs = layer.form
        return turns * positions, inputs, outputs
    width = math.prod(layer.output.shape[axis] for axis in layer.offsets)
    return (
        turns * math.prod(layer.output.shape) // max(width, 1),
        layer.shape[layer.axis],
        width,
    )
