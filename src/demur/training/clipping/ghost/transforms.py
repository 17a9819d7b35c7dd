"""Transformed weights: from the gradient of `W + A @ B` to those of W, A and B.

A weight may be made of parameters before it meets data: cast, transposed, scaled,
masked, added to others, multiplied by another matrix. Each of these is linear in one
operand while the others are held, so the gradient of the operand follows from that of
the result by the transposed map. On a gradient in factored form,
G[s, i, o] = sum over t of left[s, t, i] right[s, t, o], these maps act on one factor:

| step                            | gradient of the operand                           |
|---------------------------------|---------------------------------------------------|
| cast, transposition, sum        | the same factors                                  |
| negation                        | right, negated                                    |
| scale along rows or columns     | left or right, scaled                             |
| A @ B, for A (for B)            | right times B^T (left times A)                    |
| mask, scale of every entry      | the mask times G: kept beside the factors         |

A parameter that is reached on several ways has the sum of their gradients, by the
chain rule. Their factors are put behind one another if both name the same axes of the
parameter as left and as right.

The factors that a step returns are rounded, and the rounded arrays are what is measured
and contracted: the bound of `norms` is about them, so no step here enters it. A mask
does, and `norms` accounts for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend import core

from demur.training.clipping.factored_gradients import FactoredGradients, ScanLoop
from demur.training.clipping.ghost.convolution import Convolution
from demur.training.clipping.ghost.inlining import kind_of
from demur.training.clipping.ghost.layers import Layer, Lookup, Product

Action: TypeAlias = Literal["same", "negate", "left", "right", "mask", "product"]
_PASSED_ON = {"transpose", "convert_element_type", "copy", "neg"}
_COMBINED = {"add", "sub", "mul", "div", "dot_general", "select_n"}


@dataclass(frozen=True)
class Groups:
    """The axes of a parameter that its factors share, and those of left and right."""

    shared: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]

    @property
    def mirrored(self) -> Groups:
        """The same with the factors' names exchanged."""
        return Groups(self.shared, self.right, self.left)


@dataclass(frozen=True, eq=False)
class WeightStep:
    """One equation on the way, and the operand that is followed through it.

    `number` names the value of the `other` operand, `varies` are the axes along
    which that differs, `loops` the scans around the equation.
    """

    eqn: core.JaxprEqn
    position: int
    other: int | None
    varies: tuple[int, ...]
    loops: tuple[ScanLoop, ...]
    number: int = 0


def step_through(
    eqn: core.JaxprEqn,
    position: int,
    varies: Sequence[tuple[int, ...]],
    loops: tuple[ScanLoop, ...],
) -> WeightStep | None:
    """The equation as a step of the operand at `position`, if it is linear there.

    `varies` has, for each operand, the axes along which its value differs.
    """
    name = eqn.primitive.name
    if not jnp.issubdtype(kind_of(eqn.outvars[0]).dtype, jnp.floating):
        return None
    if name in _PASSED_ON and len(eqn.invars) == 1:
        return WeightStep(eqn, position, None, (), loops)
    if name not in _COMBINED or name == "div" and position != 0:
        return None
    if name in ("add", "sub", "mul", "div") and (
        kind_of(eqn.invars[position]).shape != kind_of(eqn.outvars[0]).shape
    ):
        return None  # a scalar is spread over the result
    if name in ("add", "sub"):
        return WeightStep(eqn, position, None, (), loops)
    if name == "dot_general" and any(eqn.params["dimension_numbers"][1]):
        return None
    if name == "select_n":
        return None if position == 0 else WeightStep(eqn, position, 0, varies[0], loops)
    return WeightStep(eqn, position, 1 - position, varies[1 - position], loops)


def groups_of(layer: Layer) -> Groups | None:
    """Which axes of its parameter a layer has in which factor; None: not by axes."""
    if isinstance(layer, Product):
        own = layer.axes
        return Groups(own.batched, own.contracted, own.free)
    if isinstance(layer, Convolution):
        return None
    rest = tuple(axis for axis in range(len(layer.shape)) if axis != layer.axis)
    return Groups((), (layer.axis,), rest)


@dataclass(frozen=True, eq=False)
class Back:
    """What one step does to factors, and the groups of its result and its operand."""

    step: WeightStep
    action: Action
    after: Groups
    before: Groups

    def apply(self, factors: FactoredGradients, other: Any) -> FactoredGradients:
        """The factors of the operand's gradient."""
        if self.action == "same":
            return factors
        if self.action == "negate":
            return replace(factors, right=-factors.right)
        value = _of_own_turns(other, self.step.loops)
        if self.action == "product":
            return self._multiplied(factors, value)
        value = self._scale(value)
        lead = sum(loop.own_slice for loop in self.step.loops)
        if self.action == "left":
            by = _spread(value, lead, self.after.shared, self.after.left)
            return replace(factors, left=factors.left * by[None, :, None, :])
        if self.action == "right":
            by = _spread(value, lead, self.after.shared, self.after.right)
            return replace(factors, right=factors.right * by[None, :, None, :])
        both = (*self.after.left, *self.after.right)
        sizes = (
            _size(kind_of(self.step.eqn.outvars[0]).shape, self.after.left),
            _size(kind_of(self.step.eqn.outvars[0]).shape, self.after.right),
        )
        mask = _spread(value, lead, self.after.shared, both)
        mask = mask.reshape((mask.shape[0], *sizes))
        if factors.mask is not None:
            mask = mask * factors.mask
        return replace(factors, mask=mask)

    def _scale(self, value: Any) -> Any:
        """The factor of every entry, in the shape of the result."""
        eqn, out = self.step.eqn, kind_of(self.step.eqn.outvars[0])
        lead = value.shape[: sum(loop.own_slice for loop in self.step.loops)]
        if value.ndim == len(lead):
            value = value.reshape((*lead, *(1 for _ in out.shape)))
        value = jnp.broadcast_to(value, (*lead, *out.shape))
        if eqn.primitive.name == "div":
            return 1 / value
        if eqn.primitive.name == "select_n":
            return (value == self.step.position - 1).astype(out.dtype)
        return value

    def _multiplied(self, factors: FactoredGradients, value: Any) -> FactoredGradients:
        """The factor along the other matrix's free axes, times that matrix."""
        ours, theirs, out_axes = _dot_axes(self.step)
        del ours
        lead = sum(loop.own_slice for loop in self.step.loops)
        contracted, free = theirs
        on_left = set(self.after.left) == set(out_axes[1])
        group = self.after.left if on_left else self.after.right
        of_out = dict(zip(out_axes[1], free, strict=True))
        order = [*range(lead)]
        order += [lead + of_out[axis] for axis in group]
        order += [lead + axis for axis in contracted]
        shape = value.shape
        matrix = jnp.transpose(value, order).reshape(
            (
                _size(shape, range(lead)),
                _size(shape, [lead + of_out[axis] for axis in group]),
                _size(shape, [lead + axis for axis in contracted]),
            )
        )
        factor = factors.left if on_left else factors.right
        new = jnp.einsum(
            "bstx,sxc->bstc",
            factor,
            matrix,
            precision=self.step.eqn.params["precision"],
        )
        return replace(factors, left=new) if on_left else replace(factors, right=new)


def back_through(step: WeightStep, after: Groups, looked_up: bool) -> Back | None:
    """What the step does to factors with these groups; None: they have no such form.

    The left factor of a look-up is a row's number, which nothing can be multiplied by.
    """
    name = step.eqn.primitive.name
    if name == "transpose":
        order = step.eqn.params["permutation"]
        before = Groups(
            *(
                tuple(order[axis] for axis in group)
                for group in (after.shared, after.left, after.right)
            )
        )
        return Back(step, "same", after, before)
    if name == "neg" or name == "sub" and step.position == 1:
        return Back(step, "negate", after, after)
    if step.other is None:
        return Back(step, "same", after, after)
    if name == "dot_general":
        return _back_through_product(step, after, looked_up)
    varies = set(step.varies)
    if varies <= {*after.shared, *after.right}:
        return Back(step, "right", after, after)
    if looked_up:
        return None
    if varies <= {*after.shared, *after.left}:
        return Back(step, "left", after, after)
    return Back(step, "mask", after, after)


def _dot_axes(step: WeightStep) -> tuple[Any, Any, Any]:
    """(contracted, free) axes of the followed and the other operand; where the free
    axes of both are in the result."""
    eqn = step.eqn
    contracted = eqn.params["dimension_numbers"][0]
    axes, out, start = [], [], 0
    for operand, taken in zip(eqn.invars, contracted, strict=True):
        rank = len(kind_of(operand).shape)
        free = tuple(axis for axis in range(rank) if axis not in taken)
        axes.append((tuple(taken), free))
        out.append(tuple(range(start, start + len(free))))
        start += len(free)
    if step.position == 1:
        axes, out = axes[::-1], out[::-1]
    return axes[0], axes[1], out


def _back_through_product(
    step: WeightStep, after: Groups, looked_up: bool
) -> Back | None:
    (contracted, free), _, (own_out, other_out) = _dot_axes(step)
    if after.shared or not own_out or not other_out:
        return None
    of_operand = dict(zip(own_out, free, strict=True))

    def mapped(group: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(of_operand[axis] for axis in group)

    if set(after.right) == set(other_out) and set(after.left) == set(own_out):
        before = Groups((), mapped(after.left), contracted)
        return Back(step, "product", after, before)
    if set(after.left) == set(other_out) and set(after.right) == set(own_out):
        if looked_up:
            return None
        return Back(step, "product", after, Groups((), contracted, mapped(after.right)))
    return None


@dataclass(frozen=True, eq=False)
class Path:
    """The way from a parameter to one layer: the steps back, and whether the factors
    are exchanged to line up with those of other ways."""

    backs: tuple[Back, ...]
    groups: Groups | None
    swap: bool = False

    @property
    def masked(self) -> bool:
        """Whether a mask stays beside the factors."""
        return any(back.action == "mask" for back in self.backs)

    def apply(self, factors: FactoredGradients, others: Any) -> FactoredGradients:
        """The parameter's factors from those of the layer."""
        for back in self.backs:
            value = None if back.step.other is None else others[back.step.number]
            factors = back.apply(factors, value)
        if self.swap:
            mask = factors.mask
            factors = replace(
                factors,
                left=factors.right,
                right=factors.left,
                mask=None if mask is None else jnp.swapaxes(mask, 1, 2),
            )
        return factors


def path_of(layer: Layer, steps: Sequence[WeightStep]) -> Path | None:
    """The way back from `layer` through `steps` (the last one is next to the layer)."""
    groups = groups_of(layer)
    if groups is None:
        return None if steps else Path((), None)
    backs: list[Back] = []
    for step in reversed(steps):
        back = back_through(step, groups, isinstance(layer, Lookup))
        masked = any(earlier.action == "mask" for earlier in backs)
        if back is None or masked and back.action == "product":
            return None
        backs.append(back)
        groups = back.before
    return Path(tuple(backs), groups)


def lined_up(layers: Sequence[Layer], paths: Sequence[Path]) -> list[Path] | None:
    """Several ways from one parameter, brought to one order of factors; else None.

    Products are put behind one another, x^T g + y^T h = [x; y]^T [g; h], and so are
    look-ups; `lookups.measure_mixed` has the cross term of the two.
    """
    if len(paths) == 1:
        return list(paths)
    if any(path.groups is None or path.masked for path in paths):
        return None
    first = next(
        (
            path
            for layer, path in zip(layers, paths, strict=True)
            if isinstance(layer, Lookup)
        ),
        paths[0],
    )
    precisions = {
        str(layer.precision) for layer in layers if not isinstance(layer, Lookup)
    }
    if len(precisions) > 1:
        return None
    found = []
    for layer, path in zip(layers, paths, strict=True):
        assert path.groups is not None and first.groups is not None
        if path.groups == first.groups:
            found.append(path)
        elif path.groups.mirrored == first.groups and not isinstance(layer, Lookup):
            found.append(replace(path, groups=first.groups, swap=True))
        else:
            return None
    return found


def restored(
    gradient: Any, groups: Groups, shape: tuple[int, ...], loops: Sequence[ScanLoop]
) -> Any:
    """G [S, I, O] in the parameter's own shape, stacked axes in front."""
    stack = [loop.length for loop in loops if loop.own_slice]
    order = [*groups.shared, *groups.left, *groups.right]
    gradient = gradient.reshape((*stack, *(shape[axis] for axis in order)))
    back = sorted(range(len(order)), key=order.__getitem__)
    lead = len(stack)
    return jnp.transpose(gradient, [*range(lead), *(lead + axis for axis in back)])


def _of_own_turns(value: Any, loops: Sequence[ScanLoop]) -> Any:
    """The value [loops..., ...] with one turn for loops that share the weight."""
    for axis in reversed(range(len(loops))):
        if not loops[axis].own_slice:
            value = jax.lax.index_in_dim(value, 0, axis, keepdims=False)
    return value


def _spread(
    value: Any, lead: int, shared: tuple[int, ...], group: tuple[int, ...]
) -> Any:
    """A value [own turns..., axes...] as [S, group]; it is the same along the rest."""
    kept = [*range(lead), *(lead + axis for axis in (*shared, *group))]
    for axis in range(value.ndim):
        if axis not in kept:
            value = jax.lax.slice_in_dim(value, 0, 1, axis=axis)
    rest = [axis for axis in range(value.ndim) if axis not in kept]
    moved = jnp.transpose(value, [*kept, *rest])
    slices = _size(moved.shape, range(lead + len(shared)))
    return moved.reshape((slices, -1))


def _size(shape: Sequence[int], axes: Any) -> int:
    size = 1
    for axis in axes:
        size *= shape[axis]
    return size
