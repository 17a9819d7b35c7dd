"""Convolutions: a kernel's gradient from windows of the data and of the cotangent.

A convolution is a product of patches with the kernel, so its gradient is a sum over
output pixels, as for a dense layer over positions. Patches are large: k times the data
along every axis of k offsets. But an offset may stand on either side. With x the padded
data, g the cotangent, and offset o = s a + r under a stride of s,

    G[o] = sum over pixels t of x[s t + o] g[t] = sum over p of x[s p + r] g[p - a]

where g is zero outside of its pixels. So along an axis the s phases r stay with the
data, and the k / s shifts a go to the cotangent, at the price of k / s - 1 positions
more. Of all such choices, axis by axis, the one whose two factors have fewest numbers
is taken: a 3 x 3 kernel takes 3 times the data and 3 times the cotangent instead of 9
times the data. (Where the stride does not divide the kernel's length, or strides a
dilated one, offsets stay with the data.)

Windows are cut out by one slice for each offset, one axis after the other. Channels
stay last, as they lie in most programs: neighbouring numbers are read and written
together, and the gradient comes out as a kernel [window..., channels, outputs].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from demur.training.clipping.factored_gradients import (
    FactoredGradients,
    ScanLoop,
    grouped,
)


@dataclass(frozen=True)
class WindowAxis:
    """One axis of a window: `offsets` = `shifts` (of the cotangent) x `phases`."""

    offsets: int
    stride: int
    dilation: int
    pixels: int
    shifted: bool = False

    @property
    def can_shift(self) -> bool:
        """Whether the offsets may stand with the cotangent.

        A slice has all data from the first position to the last. Where fewer pixels
        than the dilation leave gaps, some of it is under no window: not a number
        there, times zero, would leave out an example whose gradient is finite.
        """
        if self.stride == 1:
            return self.offsets > 1 and self.pixels >= self.dilation
        dense = self.dilation == 1 and self.offsets % self.stride == 0
        return self.offsets > 1 and dense

    @property
    def shifts(self) -> int:
        """How often the cotangent is taken."""
        return self.offsets // self.stride if self.shifted else 1

    @property
    def phases(self) -> int:
        """How often the data is taken."""
        return self.offsets // self.shifts

    @property
    def positions(self) -> int:
        """What is summed over: pixels, and as many as the shifts reach beyond."""
        return self.pixels + self._reach if self.pixels else 0

    @property
    def _reach(self) -> int:
        return (self.shifts - 1) * self._step

    @property
    def _step(self) -> int:
        """From one shift to the next, in positions."""
        return self.dilation if self.stride == 1 else 1

    def of_data(self, data: Any, axis: int) -> list[Any]:
        """A slice for each phase: positions along `axis`."""
        if self.shifted:
            needed = self.positions * self.stride  # the rest is not under any window
            data = jax.lax.slice_in_dim(data, 0, needed, axis=axis)
        apart = 1 if self.shifted else self.dilation
        length = max(0, (self.positions - 1) * self.stride + 1)
        return [
            jax.lax.slice_in_dim(
                data,
                offset * apart,
                offset * apart + length,
                stride=self.stride,
                axis=axis,
            )
            for offset in range(self.phases)
        ]

    def of_cotangent(self, cotangent: Any, axis: int) -> list[Any]:
        """The cotangent for each shift, with zeros around it."""
        reach = self._reach if self.pixels else 0
        before = [self._step * shift for shift in range(self.shifts)]
        return [_padded(cotangent, axis, n, reach - n) for n in before]


def _padded(array: Any, axis: int, before: int, behind: int) -> Any:
    config = [(0, 0, 0)] * array.ndim
    config[axis] = (before, behind, 0)
    return jax.lax.pad(array, jnp.zeros((), array.dtype), config)


@dataclass(frozen=True, eq=False)
class Convolution:
    """`conv_general_dilated` of data with a kernel that is a parameter."""

    params: dict[str, Any]
    kernel: tuple[int, ...]
    output: Any
    other: Any
    data_position = 0

    @property
    def precision(self) -> Any:
        """The precision asked for in the loss."""
        return self.params["precision"]

    @cached_property
    def window(self) -> tuple[WindowAxis, ...]:
        """The axes of the window, with the offsets where they take least room."""
        spec = self.params["dimension_numbers"]
        plain = [
            WindowAxis(
                self.kernel[kernel_axis],
                self.params["window_strides"][axis],
                self.params["rhs_dilation"][axis],
                self.output.shape[out_axis],
            )
            for axis, (kernel_axis, out_axis) in enumerate(
                zip(spec.rhs_spec[2:], spec.out_spec[2:], strict=True)
            )
        ]
        choices = [
            [axis, replace(axis, shifted=True)] if axis.can_shift else [axis]
            for axis in plain
        ]
        if math.prod(axis.pixels for axis in plain) <= 1:
            return tuple(plain)  # one position, of which the norm is a product
        return min(product(*choices), key=lambda window: sum(self._sizes(window)[1:]))

    def _sizes(self, window: Sequence[WindowAxis]) -> tuple[int, int, int]:
        """T, and T I and T O, for an example and a group."""
        groups = self.params["feature_group_count"]
        spec = self.params["dimension_numbers"]
        images = self.output.shape[spec.out_spec[0]]
        positions = images * math.prod(axis.positions for axis in window)
        inputs = self.kernel[spec.rhs_spec[1]]
        outputs = self.output.shape[spec.out_spec[1]] // groups
        return (
            positions,
            positions * inputs * math.prod(axis.phases for axis in window),
            positions * outputs * math.prod(axis.shifts for axis in window),
        )

    @property
    def form(self) -> tuple[int, int, int]:
        """T, I, O of the two factors."""
        positions, left, right = self._sizes(self.window)
        whole = max(positions, 1)
        return positions, left // whole, right // whole

    def factors(
        self, data: Any, cotangent: Any, loops: Sequence[ScanLoop]
    ) -> FactoredGradients:
        """Windows of both; groups of channels go with groups of outputs."""
        lead = len(loops) + 1
        groups = self.params["feature_group_count"]
        spec = self.params["dimension_numbers"]
        space = len(self.window)

        def standard(array: Any, order: Sequence[int]) -> Any:
            """[lead..., N, space..., channels]."""
            order = [order[0], *order[2:], order[1]]
            return jnp.transpose(
                array, [*range(lead), *(lead + axis for axis in order)]
            )

        def windows(array: Any, name: str) -> Any:
            """[lead..., N, positions..., window..., groups, channels of one]."""
            for number, axis in enumerate(self.window):
                parts = getattr(axis, name)(array, lead + 1 + number)
                array = jnp.stack(parts, axis=-2)
            return array.reshape((*array.shape[:-1], groups, array.shape[-1] // groups))

        left = windows(
            self._with_padding(standard(data, spec.lhs_spec), lead), "of_data"
        )
        right = windows(standard(cotangent, spec.out_spec), "of_cotangent")
        places = range(1 + space)  # N and positions
        window, end = range(1 + space, 1 + 2 * space), 1 + 2 * space
        axes = ([end], [*places], [*window, end + 1])
        return FactoredGradients(
            grouped(left, loops, axes), grouped(right, loops, axes), self.precision
        )

    def _with_padding(self, data: Any, lead: int) -> Any:
        params = self.params
        spare = [
            *[(0, 0, 0)] * (lead + 1),
            *(
                (low, high, step - 1)
                for (low, high), step in zip(
                    params["padding"], params["lhs_dilation"], strict=True
                )
            ),
            (0, 0, 0),
        ]
        return jax.lax.pad(data, jnp.zeros((), data.dtype), spare)

    def restore(self, gradient: Any, loops: Sequence[ScanLoop]) -> Any:
        """G [S, I, O] as a kernel, stacked axes in front."""
        stack = [loop.length for loop in loops if loop.own_slice]
        groups = self.params["feature_group_count"]
        spec = self.params["dimension_numbers"].rhs_spec
        outputs, inputs = self.kernel[spec[0]], self.kernel[spec[1]]
        lead, space = len(stack), len(self.window)
        phases = [axis.phases for axis in self.window]
        shifts = [axis.shifts for axis in self.window]
        gradient = gradient.reshape(
            (*stack, groups, *phases, inputs, *shifts, outputs // groups)
        )
        # An offset is `shift` times the number of phases, plus the phase.
        first, second = lead + 1, lead + 2 + space
        offsets = [at for n in range(space) for at in (second + n, first + n)]
        gradient = jnp.transpose(
            gradient,
            [*range(lead + 1), second + space, first + space, *offsets],
        )
        lengths = [axis.offsets for axis in self.window]
        gradient = gradient.reshape((*stack, outputs, inputs, *lengths))
        back = sorted(range(len(spec)), key=spec.__getitem__)
        return jnp.transpose(gradient, [*range(lead), *(lead + axis for axis in back)])
